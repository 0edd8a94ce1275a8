# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a prompt in chunks, from the longest cached prefix on.

The rows of a chunk have the bits that its own width gives them, so a prompt must be cut into the
same chunks whatever was cached before. Where it is cut depends on the tokens before the cut alone:
at the end of a turn, and where a chunk is full. Two prompts are then cut alike as far as they
agree, and rows that one has left are those that the other would compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from .prefix import Owner, PrefixCache
from .target import Target

SHORTEST = 64
"""Tokens of the shortest chunk that the end of a turn closes; a pass over fewer costs about as much
as over one, where memory traffic bounds it."""


def chunk_ends(
    tokens: Iterable[int], longest: int, turn_end: int | None, shortest: int = SHORTEST
) -> list[int]:
    """Ends of the chunks that stand whatever tokens follow, in order.

    :param longest: tokens of a chunk at most (``engine.prefill_chunk``).
    :param turn_end: token that ends a turn; None: the tokenizer has none.
    """
    ends, begin = [], 0
    for end, token in enumerate(tokens, 1):
        if end - begin >= longest or (token == turn_end and end - begin >= shortest):
            ends.append(end)
            begin = end
    return ends


class Prefill:
    """One prompt on its way into the cache.

    Snapshots are taken where system prompt and tools end, at the last cut of the prompt, and where
    the prompt parts from one that was kept.

    Attributes:
        cached: tokens that were not computed anew.
        done: whether all of the prompt is in the cache.
    """

    def __init__(
        self,
        target: Target,
        prefixes: PrefixCache,
        prompt: Sequence[int],
        *,
        longest: int,
        turn_end: int | None,
        owner: Owner = None,
    ) -> None:
        self._target = target
        self._prefixes = prefixes
        self._prompt = prompt
        self._owner = owner
        cuts = chunk_ends(prompt, longest, turn_end)
        found = prefixes.find(prompt)
        self.cached = 0 if found is None else found.end
        target.cache.reset()
        self._last = cuts[-1] if cuts else 0
        self._points: set[int] = set()
        if prefixes.budget:
            first_turn = prompt.index(turn_end) + 1 if turn_end in prompt else 0
            for end in (first_turn, prefixes.common(prompt), len(prompt)):
                self._points |= {max((cut for cut in cuts if cut <= end), default=0)}
        if found is not None:
            prefixes.restore(found, owner)
            if found.end == self._last:
                self._keep(self._last)
        ends = cuts if self._last == len(prompt) else [*cuts, len(prompt)]
        self._ends = [end for end in ends if end > self.cached]

    @property
    def done(self) -> bool:
        """Whether all of the prompt is in the cache."""
        return not self._ends

    @torch.inference_mode()
    def step(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Compute the next chunk.

        :return: post-norm state ``(1, hidden)`` and logits ``(1, vocab)`` of the prompt's last
            token, once it is there.
        """
        begin, end = self._target.cache.length, self._ends.pop(0)
        ids = torch.tensor(self._prompt[begin:end], dtype=torch.long, device=self._target.device)
        result = self._target.prefill(ids, self.done)
        if end in self._points:
            self._keep(end)
        return result

    def stop(self) -> None:
        """Keep what was read; the rest is not wanted any more."""
        end = self._target.cache.length
        if self._prefixes.budget and self.cached < end < self._last and end not in self._points:
            self._keep(end)

    def _keep(self, end: int) -> None:
        self._prefixes.keep(self._prompt[:end], self._owner if end == self._last else None)
