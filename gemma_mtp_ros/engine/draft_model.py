# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Drafts by a second, smaller model of the family, which reads the same tokens on its own.

Speculative decoding as in Leviathan et al. 2022 (arXiv:2211.17192), with this engine's rule for
what stands. The model keeps keys and values of its own. Those of drafts that did not stand are
given up by moving a pointer; the row of a last draft that stood, which no step has written, is
computed with the first step of the next round, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..api import MAX_DRAFT
from .cache import ROWS, KVCache
from .draft_source import DraftSource
from .ops import read_back
from .prefill import Prefill
from .prefix import Owner, PrefixCache
from .target import Target


class DraftModel(DraftSource):
    """A smaller model that drafts.

    :param model: with caches of its own; its vocabulary is the target's.
    :param chunk: most tokens that are read between two signs of life.
    :param turn_end: token that ends a turn; None: the tokenizer has none.
    :param prefixes: snapshots of its prompts.
    """

    cache: KVCache
    prefixes: PrefixCache

    def __init__(
        self, model: Target, chunk: int, turn_end: int | None, prefixes: PrefixCache
    ) -> None:
        self.model = model
        self.cache = model.cache
        self.prefixes = prefixes
        self._chunk = chunk
        self._turn_end = turn_end
        self._noise: torch.Generator | None = None
        self.begin(())

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, and of the per-layer table where it is in memory."""
        return self.model.weight_bytes + (self.model.ple.bytes if self.model.ple else 0)

    @property
    def recorded_bytes(self) -> int:
        """Memory of the recorded passes."""
        return 0 if self.model.recorded is None else self.model.recorded.bytes

    def record(self, beat: Callable[[], None]) -> None:
        """Record passes of every width: a step has one row, the first of a round some more."""
        self.model.record(beat)

    def begin(self, prompt: Sequence[int], owner: Owner = None) -> None:
        """Another answer; its prompt is read by :meth:`catch_up`."""
        self._prompt = prompt
        self._owner = owner
        self._prefill: Prefill | None = None
        self._cached: int | None = None
        self._unread: list[int] = []
        self._new_round()

    def _new_round(self) -> None:
        self._fed: list[torch.Tensor] = []
        self._waiting: list[torch.Tensor] = []
        self._rows = 0

    def unread(self, standing: Sequence[int]) -> int:
        """Tokens of prompt and answer that have no row yet, the last one aside."""
        if self._prefill is not None:
            read = self.cache.length
        else:
            if self._cached is None:
                found = self.prefixes.find(list(self._prompt))
                self._cached = 0 if found is None else found.end
            read = self._cached
        return max(0, len(self._prompt) + len(standing) - 1 - read)

    def catch_up(self, standing: Sequence[int]) -> int | None:
        """Give up the rows of drafts that did not stand; read the prompt, or what became long.

        :return: fewer than ``MAX_DRAFT`` at the end of what this model may read.
        """
        cache, begin = self.cache, len(self._prompt)
        room = cache.max_context - begin - len(standing)
        if room <= 0:
            return 0
        if self._prefill is None:
            self._prefill = Prefill(
                self.model,
                self.prefixes,
                list(self._prompt),
                longest=self._chunk,
                turn_end=self._turn_end,
                owner=self._owner,
            )
        if not self._prefill.done:
            self._prefill.step()
            return None
        self._unread = self._left(standing)
        if len(self._unread) >= self._chunk:
            self._read(self._chunk)
            return None
        return min(MAX_DRAFT, room)

    def _left(self, standing: Sequence[int]) -> list[int]:
        """Tokens without a row, the last one aside: the target has not read that one either."""
        cache, begin = self.cache, len(self._prompt)
        if self._fed:
            fed = read_back(torch.cat(self._fed))
            after = standing[cache.length - begin : -1]
            stood = 0
            while stood < min(len(fed), len(after), self._rows) and fed[stood] == after[stood]:
                stood += 1
            cache.commit(cache.length + stood)
        self._new_round()
        return list(standing[cache.length - begin : -1])

    def _read(self, count: int) -> None:
        now, self._unread = self._unread[:count], self._unread[count:]
        self.model.prefill(self._tensor(now), False)

    def _tensor(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor(tokens, dtype=torch.long, device=self.model.device)

    def prepare(self) -> bool:
        """Read what would not fit into the first step."""
        if len(self._unread) < ROWS:
            return False
        self._read(len(self._unread))
        return True

    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Take a token; :meth:`logits` runs one pass over all that were taken since the last."""
        if self._unread:
            self._waiting.append(self._tensor(self._unread))
            self._unread = []
        self._waiting.append(token)
        return state, state

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """This model's own logits after the tokens taken."""
        ids = torch.cat(self._waiting)
        self._waiting = []
        for part in ids.split(ROWS):
            _, logits = self.model.decode(part, self.cache.length + self._rows)
            self._rows += len(part)
        self._fed.append(ids)
        return logits[-1:], None

    def rehearse(self, position: int) -> None:
        """Stand after rows of noise."""
        position = min(position, self.cache.max_context - ROWS)
        if self._noise is None:
            self._noise = torch.Generator(self.model.device).manual_seed(1)
            for layer in self.cache.layers.values():
                layer.fill(position + ROWS, self._noise)
        self.cache.commit(position)
        self._new_round()

    def forget(self) -> None:
        """Give the memory of the rows back."""
        self.cache.release()
        self._noise = None
        self.begin(())
