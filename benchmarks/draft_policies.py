# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Policies for the draft length, this project's and others', and the rounds they are tried in."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gemma_mtp_ros.engine.draft_length import Costs, DraftController, Round

from . import draft_scenarios as given

Ask = Callable[[], float]
"""Make one more draft; the drafter's probability of it."""


class Outcome(NamedTuple):
    """What a round came to; ``next_stood`` is of the first draft that was not checked."""

    kept: int
    next_stood: bool | None
    round_s: float
    draft_s: float


class Policy(Protocol):
    """Decides rounds. ``choose`` returns how many drafts were made and how many to check."""

    def new_answer(self) -> None: ...
    def power_mode(self, name: str) -> None: ...
    def choose(self, ask: Ask, longest: int) -> tuple[int, int]: ...
    def learn(self, outcome: Outcome) -> None: ...


class Simple:
    """A policy that needs to know neither costs nor modes."""

    def new_answer(self) -> None:
        """Nothing to do."""

    def power_mode(self, name: str) -> None:
        """Nothing to do."""

    def choose(self, ask: Ask, longest: int) -> tuple[int, int]:
        """A length fixed before the round."""
        k = min(self.length(), longest)
        return k, k

    def length(self) -> int:
        """Length of the next round."""
        raise NotImplementedError

    def learn(self, outcome: Outcome) -> None:
        """Nothing to do."""


class Fixed(Simple):
    """Always as many."""

    def __init__(self, k: int) -> None:
        self.k = k

    def length(self) -> int:
        return self.k


class Heuristic(Simple):
    """transformers' ``num_assistant_tokens_schedule="heuristic"``.

    2 more after a round whose drafts all stood, else 1 fewer; at least 1. It begins with 5.
    """

    def __init__(self) -> None:
        self.k = 5
        self.made = 0

    def length(self) -> int:
        self.made = self.k
        return self.k

    def learn(self, outcome: Outcome) -> None:
        """Up or down."""
        stood = outcome.kept >= min(self.made, given.DEPTHS)
        self.k = min(self.k + 2, given.DEPTHS) if stood else max(1, self.k - 1)


class Threshold(Simple):
    """transformers' ``assistant_confidence_threshold`` of 0.4.

    Drafts until the drafter's probability of its draft is under it.
    """

    def choose(self, ask: Ask, longest: int) -> tuple[int, int]:
        """All drafts made are checked."""
        made = 0
        while made < longest:
            made += 1
            if ask() < 0.4:
                break
        return made, made


class Tiers(Simple):
    """Like SGLang's adaptive steps.

    Tiers 1, 3 and 7 by a moving average of accepted drafts, looked at every five rounds, with a
    hysteresis of half a draft.
    """

    TIERS = (1, 3, 7)

    def __init__(self) -> None:
        self.at = 1
        self.average = 1.0
        self.rounds = 0

    def length(self) -> int:
        return self.TIERS[self.at]

    def learn(self, outcome: Outcome) -> None:
        """Average, and now and then a step up or down."""
        self.average += 0.2 * (outcome.kept - self.average)
        self.rounds += 1
        if self.rounds % 5:
            return
        if self.at < len(self.TIERS) - 1 and self.average > self.TIERS[self.at] - 0.5:
            self.at += 1
        elif self.at > 0 and self.average < self.TIERS[self.at - 1] - 0.5:
            self.at -= 1


class Adaptive:
    """This project's controller, with or without the drafter's probability."""

    def __init__(self, costs: given.Costs, noise: float, confident: bool) -> None:
        self.controller = DraftController(Costs(costs.passes, costs.draft, noise))
        self.confident = confident
        self._round = Round(0)

    def new_answer(self) -> None:
        """Another text."""
        self.controller.new_answer()

    def power_mode(self, name: str) -> None:
        """Another mode."""
        self.controller.power_mode(name)

    def choose(self, ask: Ask, longest: int) -> tuple[int, int]:
        """As the engine does, with a recorded chain of drafts or step by step."""
        if not self.confident:
            self._round = self.controller.chain(longest)
            return self._round.steps, self._round.checked
        self._round = self.controller.open(longest)
        while self.controller.more(self._round):
            self.controller.add(self._round, ask())
        return self._round.steps, self.controller.settle(self._round)

    def learn(self, outcome: Outcome) -> None:
        """Only an engine that waits for each draft knows what the drafts took."""
        self.controller.close(
            self._round,
            outcome.kept,
            outcome.next_stood,
            outcome.round_s,
            outcome.draft_s if self.confident else None,
        )


class Trace(NamedTuple):
    """Rounds of an answer: place of each, and drafts made and checked."""

    cost: float
    places: list[int]
    made: list[int]
    checked: list[int]


def answer(
    policy: Policy,
    text: given.Text,
    tokens: int,
    costs: Callable[[int], given.Costs],
    noise: float,
    seed: str,
    quality: str = given.NO_CONFIDENCE,
    mode: Callable[[int], str] = lambda place: "",
) -> Trace:
    """Decode ``tokens`` tokens.

    :param costs: true costs at a place.
    :return: the true cost of it all; the policy sees times with noise.
    """
    rng = random.Random(seed)
    confidence = text.confidence.get(quality)
    trace = Trace(0.0, [], [], [])
    place, total = 0, 0.0
    while place < tokens:
        depth = 0

        def ask() -> float:
            nonlocal depth
            depth += 1
            assert confidence is not None
            return confidence[place + depth - 1][depth - 1]  # noqa: B023

        now = costs(place)
        policy.power_mode(mode(place))
        made, checked = policy.choose(ask, min(given.DEPTHS, tokens - place - 1))
        kept = 0
        while kept < checked and text.stands[place + kept][kept]:
            kept += 1
        next_stood = None
        if kept == checked and made > checked:
            next_stood = text.stands[place + checked][checked]
        drafting, passing = made * now.draft, now.passes[checked]
        total += drafting + passing
        drafting *= math.exp(noise * rng.gauss(0.0, 1.0))
        passing *= math.exp(noise * rng.gauss(0.0, 1.0))
        policy.learn(Outcome(kept, next_stood, drafting + passing, drafting))
        trace.places.append(place)
        trace.made.append(made)
        trace.checked.append(checked)
        place += kept + 1
    return trace._replace(cost=total)
