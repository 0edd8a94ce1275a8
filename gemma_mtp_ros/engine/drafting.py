# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The drafts of one round: as a chain of fixed length, or step by step while one more pays."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from .draft_length import DraftController, Round
from .draft_source import DraftSource
from .ops import read_number
from .sampling import Rules, TokenCounts, choose, penalise, probability_of


@dataclass(frozen=True)
class Place:
    """Where a round begins.

    Attributes:
        token: ``(1,)`` the last token, chosen but not in the caches.
        state: ``(1, backbone)`` the target's post-norm state at the last committed position.
        index: place of the first draft in the completion.
        counts: tokens so far, where penalties need them.
    """

    token: torch.Tensor
    state: torch.Tensor
    rules: Rules
    index: int
    counts: TokenCounts | None = None


@dataclass(frozen=True)
class Drafts:
    """Drafts made.

    Attributes:
        tokens: ``(made,)``.
        checked: how many of them the target is to check.
        round: the controller's, if one chose.
        draft_s: time that they took, where it is known.
        late_s: time for reading what rounds without drafts had left unread.
    """

    tokens: torch.Tensor
    checked: int
    round: Round | None = None
    draft_s: float | None = None
    late_s: float = 0.0


READING_PAYS_S = 1e-3
"""Draft steps from which on reading back the drafter's probability, and deciding by it, is worth
the tenth of a millisecond that it takes."""


def reads_confidence(drafter: DraftSource, device: torch.device, step_s: float) -> bool:
    """Whether the drafter's probability is read back after each step.

    Not on a GPU, where each step would wait for the device (a recorded chain does not stop in the
    middle), nor where it says nothing.

    :param step_s: time of a draft step.
    """
    return drafter.tells and device.type == "cpu" and step_s >= READING_PAYS_S


def draft(
    drafter: DraftSource | None, controller: DraftController | None, place: Place, longest: int
) -> Drafts:
    """Make the drafts of a round, ``longest`` at most; without a controller as many as that."""
    if drafter is None:
        return Drafts(place.token[:0], 0)
    if controller is None:
        if longest:
            drafter.prepare()
        return Drafts(chain(drafter, place, longest), longest)
    if not reads_confidence(drafter, place.token.device, controller.measured.draft):
        now = controller.chain(longest)
        late_s = prepare(drafter) if now.steps else 0.0
        return Drafts(chain(drafter, place, now.steps), now.checked, now, None, late_s)
    began_s = time.monotonic()
    now, late_s = controller.open(longest), 0.0
    made = Steps(drafter, place)
    while controller.more(now):
        if not now.steps:
            late_s = prepare(drafter)
        controller.add(now, made.step())
    drafts = made.tokens()
    checked = controller.settle(now)
    return Drafts(drafts, checked, now, time.monotonic() - began_s - late_s, late_s)


def prepare(drafter: DraftSource) -> float:
    """Let the drafter read what it has left unread; seconds that it took."""
    began_s = time.monotonic()
    return time.monotonic() - began_s if drafter.prepare() else 0.0


def chain(drafter: DraftSource, place: Place, k: int) -> torch.Tensor:
    """``(k,)`` drafts, without a wait between them."""
    if k and (place.counts is None or not drafter.tells):
        whole = drafter.chain(place.token, place.state, k, place.rules, place.index)
        if whole is not None:
            return whole
    made = Steps(drafter, place)
    for _ in range(k):
        made.step(confidence=False)
    return made.tokens()


class Steps:
    """Draft steps: the drafter's own choices under the noise that the target will meet."""

    def __init__(self, drafter: DraftSource, place: Place) -> None:
        self._drafter = drafter
        self._place = place
        self._token, self._state = place.token, place.state
        self._drafts: list[torch.Tensor] = []

    def tokens(self) -> torch.Tensor:
        """``(made,)`` drafts so far."""
        return torch.cat(self._drafts) if self._drafts else self._place.token[:0]

    def step(self, confidence: bool = True) -> float | None:
        """Make one more draft.

        :return: the drafter's probability of it, if asked for.
        """
        place = self._place
        self._state, hidden = self._drafter.step(self._token, self._state)
        scores, ids = self._drafter.logits(hidden)
        if place.counts is not None:
            so_far, prompt = place.counts.rows(self.tokens())[-1:], place.counts.prompt
            if ids is not None:
                so_far, prompt = so_far[:, ids], prompt[ids]
            scores = penalise(scores, place.rules, prompt, so_far)
        self._token = choose(scores, place.rules, place.index + len(self._drafts), ids)
        self._drafts.append(self._token)
        return read_number(probability_of(scores, self._token, ids)) if confidence else None
