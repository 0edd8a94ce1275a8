# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What every kind of drafter does for a round.

Drafts are guesses: a draft stands iff it equals the target's own choice, so a source that is wrong,
late or empty changes the speed and never a token.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ..api import MAX_DRAFT
from .cache import KVCache
from .prefix import Owner, PrefixCache
from .sampling import Rules


class DraftSource(Protocol):
    """Where drafts come from. One answer at a time: :meth:`begin`, then for each round that is to
    have drafts :meth:`catch_up` and, where drafts are to be made, :meth:`prepare` and either
    :meth:`chain` or :meth:`step` and :meth:`logits` by turns.

    Attributes:
        tells: whether scores say how likely a draft is to stand.
        cache: keys and values of its own; None: it has none.
        prefixes: snapshots of those; None: it has none.
    """

    tells: bool = True
    cache: KVCache | None = None
    prefixes: PrefixCache | None = None

    @property
    def weight_bytes(self) -> int:
        """Memory of weights of its own."""
        return 0

    @property
    def recorded_bytes(self) -> int:
        """Memory of what was recorded for a GPU."""
        return 0

    def record(self, beat: Callable[[], None]) -> None:
        """Record what can be recorded, for a GPU.

        :param beat: called now and then, as a sign of life.
        """
        return

    def begin(self, prompt: Sequence[int], owner: Owner = None) -> None:
        """Another answer begins; nothing of the one before it counts any more.

        :param owner: of snapshots that are taken of the prompt.
        """
        return

    def unread(self, standing: Sequence[int]) -> int:
        """Tokens that this source has to read on its own before it can draft after ``standing``."""
        return 0

    def catch_up(self, standing: Sequence[int]) -> int | None:
        """Take note of what stands.

        :param standing: tokens of the answer, at least one; the last one was chosen by the target
            and is not in its caches yet.
        :return: most drafts that can be made now, up to ``MAX_DRAFT``; None: a part of the text was
            read and there is more to read, call again after a sign of life.
        """
        return MAX_DRAFT

    def prepare(self) -> bool:
        """Read what rounds without drafts left unread, before the first draft after them.

        :return: whether there was anything, that is whether this took time.
        """
        return False

    def proposes(self) -> bool:
        """Whether there is a draft to make after the last :meth:`step`."""
        return True

    def chain(
        self, token: torch.Tensor, state: torch.Tensor, k: int, rules: Rules, index: int
    ) -> torch.Tensor | None:
        """``(k,)`` drafts at once, penalties aside; None: they are made step by step.

        :param token: ``(1,)`` the last token.
        :param state: ``(1, backbone)`` the target's post-norm state at the last committed position.
        :param index: place of the first draft in the completion.
        """
        return None

    @abstractmethod
    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One step after the target's committed rows.

        :param token: ``(1,)`` the last token, drafted or decided.
        :param state: ``(1, backbone)`` the target's post-norm state at the last committed position
            in the first step of a round, this method's in the others.
        :return: the state of the next step, and what :meth:`logits` takes.
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores of the token after the last step: ``(1, candidates)``, and the candidates' ids.

        :return: ids None: all tokens of the vocabulary.
        """

    def rehearse(self, position: int) -> None:
        """Be ready to draft as after ``position`` tokens, to be timed."""
        return

    def forget(self) -> None:
        """Give back memory that no answer needs now."""
        if self.cache is not None:
            self.cache.release()
