# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""One round: draft, verify in one target pass, keep what stands."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..api import MAX_DRAFT
from .draft_length import DraftController, longest_draft
from .draft_source import DraftSource
from .drafting import Place, draft
from .load import LoadedModel
from .masked_drafting import draft_masked
from .ops import read_back
from .sampling import choose, penalise, standing
from .sequence import Sequence


class Decided(NamedTuple):
    """What a round decided.

    Attributes:
        chosen: the drafts that stand, the target's choice, and what is forced to the end if all is.
        state: the target's post-norm state at the last committed place.
        drafted: drafts checked that were the drafter's own.
        stood: places among ``chosen`` of those of them that stand.
    """

    chosen: list[int]
    state: torch.Tensor
    drafted: int
    stood: list[int]


@dataclass
class Rounds:
    """What runs the rounds of an answer.

    Attributes:
        controller: chooses draft lengths; None: always the longest.
        context: tokens of prompt and completion together.
        forcing: whether tokens that a grammar forces cost no pass of their own.
        aside_s: time since the last round that is no cost of a round: pauses, and what a drafter
            read of a long text.
    """

    model: LoadedModel
    drafter: DraftSource | None
    controller: DraftController | None
    context: int
    forcing: bool = True
    aside_s: float = 0.0

    def run(self, sequence: Sequence, place: Place, cap: int, paused_s: float) -> Decided | None:
        """Decide one token at least.

        :param cap: most that the drafter may draft.
        :param paused_s: time since the last call that was paused.
        :return: None: the drafter read a part of the text and has more to read; call again, after
            a sign of life.
        """
        self.aside_s += paused_s
        cache = self.model.target.cache
        left = sequence.limit - place.index, self.context - cache.length
        unread = 0
        if self.drafter is not None and cap:
            unread = self.drafter.unread(sequence.tokens)
            if self.controller is not None and not self.controller.wants(cap, unread, min(left)):
                cap = 0
            elif (ready := self._catch_up(self.drafter, sequence.tokens, unread)) is None:
                return None
            else:
                cap = min(cap, ready)
        longest = longest_draft(cap, *left)
        if sequence.guide is not None and sequence.guide.grammar is not None:
            most = longest_draft(MAX_DRAFT, *left)
            return self._masked(sequence, place, longest, most, unread)
        drafted = draft(self.drafter, self.controller, place, longest)
        k = drafted.checked
        checked = drafted.tokens[:k]
        hidden, logits = self._verify(sequence, place, checked)
        logits = (
            self.model.suppress(logits)
            if sequence.guide is None
            else sequence.guide.restrict(logits)
        )
        choices = choose(logits, place.rules, place.index)
        both = read_back(torch.cat([drafted.tokens, choices]))
        drafts, chosen = both[: len(drafted.tokens)], both[len(drafted.tokens) :]
        kept = standing(drafts[:k], chosen)
        following = drafts[k] == chosen[k] if kept == k < len(drafts) else None
        decided = chosen[: kept + 1]
        if sequence.guide is not None:
            decided, _ = sequence.guide.settle(drafts[:k], chosen)
        self._commit(sequence, len(decided), k)
        self._was_read(unread, drafted.late_s)
        if self.controller is not None and drafted.round is not None:
            round_s = self._round_s(sequence)
            self.controller.close(drafted.round, kept, following, round_s, drafted.draft_s)
        last = len(decided) - 1
        return Decided(decided, hidden[last : last + 1], k, list(range(last)))

    def _catch_up(self, drafter: DraftSource, standing: list[int], unread: int) -> int | None:
        began_s = time.monotonic()
        ready = drafter.catch_up(standing)
        if ready is None:
            self._was_read(unread - drafter.unread(standing), time.monotonic() - began_s)
        return ready

    def _was_read(self, tokens: int, spent_s: float) -> None:
        self.aside_s += spent_s
        if self.controller is not None and spent_s:
            self.controller.read(tokens, spent_s)

    def _masked(
        self, sequence: Sequence, place: Place, longest: int, most: int, unread: int
    ) -> Decided:
        """A round under a grammar: forced drafts always stand."""
        guide = sequence.guide
        assert guide is not None
        assert guide.grammar is not None
        made = draft_masked(
            self.drafter, self.controller, place, guide.grammar, longest, most, self.forcing
        )
        device = place.token.device
        drafts = torch.tensor(made.tokens, dtype=torch.long, device=device)
        hidden, logits = self._verify(sequence, place, drafts)
        logits = guide.restrict(logits, made.tokens)
        choices = read_back(choose(logits, place.rules, place.index))
        chosen, kept = guide.settle(made.tokens, choices, self.forcing)
        self._commit(sequence, kept + 1, len(made.own))
        self._was_read(unread, made.late_s)
        round_s = self._round_s(sequence)
        if self.controller is not None and made.round is not None:
            self.controller.close(made.round, kept, None, round_s)
        stood = [at for at in made.own if at < kept]
        return Decided(chosen, hidden[kept : kept + 1], len(made.own), stood)

    def _round_s(self, sequence: Sequence) -> float:
        round_s = sequence.round_s(self.aside_s)
        self.aside_s = 0.0
        return round_s

    def _verify(
        self, sequence: Sequence, place: Place, drafts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """States and logits after 0, 1, ... of the drafts, penalties applied."""
        target, counts = self.model.target, place.counts
        hidden, logits = target.decode(torch.cat([place.token, drafts]), target.cache.length)
        if counts is not None:
            logits = penalise(logits, place.rules, counts.prompt, counts.rows(drafts))
        return hidden, logits

    def _commit(self, sequence: Sequence, rows: int, drafted: int) -> None:
        cache = self.model.target.cache
        cache.commit(cache.length + rows)
        sequence.rounds += 1
        for i in range(drafted):
            sequence.drafted[i] += 1
