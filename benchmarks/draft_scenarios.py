# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts, costs and noise that policies for the draft length are compared on. Fixed.

Whether a draft of the token at place t, made at depth d of a round, would stand is a function of
the seed, t and d alone, and so is the drafter's probability of it: every policy meets the same
text. Costs are in units of a target pass of one row before any change. Policies see times with
noise; what they are charged is the true cost.

Model of a text: a draft stands iff e < m + z, where m follows from the wanted acceptance, z is the
difficulty of the token, which the drafter may know of, and e is chance; both e and z are normal,
and largely the same at every depth, as a token that is hard for a draft of depth 1 is so at 4.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable
from typing import NamedTuple

DEPTHS = 7
TOKENS, SHORT = 2000, 100
SEEDS = range(8)
NOISES = (0.05, 0.20)
"""Standard deviation of the logarithm of a measured time."""

REPEATS = 15
"""Timings of each width at configure; their median is told."""

HISTORY = 600
"""Tokens of the earlier answer, in scenarios with a history."""

NORMAL = statistics.NormalDist()
DIFFICULTY = 1.0
"""Spread of z, relative to that of e."""

SHARED_DIFFICULTY, SHARED_CHANCE = 0.7, 0.6
"""Shares of the variances of z and e that all depths have in common."""


class Costs(NamedTuple):
    """Costs of passes of 1..8 rows and of a draft step."""

    passes: tuple[float, ...]
    draft: float


# Relative costs of a pass of 1..8 rows. Where a figure is named it is reported or measured; the
# values between such figures are interpolated, and illustrative.
FLAT = (1.0, 0.99, 0.98, 0.965, 0.955, 0.94, 0.93, 0.95)
"""AGX Orin, llama.cpp with MMQ kernels: 33.1 ms for 1 row, 30.8 for 7 (reported)."""
STEEP = (1.0, 1.23, 1.46, 1.69, 1.91, 2.14, 2.37, 2.60)
"""AGX Orin, llama.cpp with mvq kernels: 33.0 ms for 1 row, 85.7 for 8 (reported)."""
MOE = (1.0, 1.25, 1.45, 1.60, 1.75, 1.88, 2.0, 2.10)
"""Mixture of experts: 2.0 at 7 (reported): more rows open more experts, ever fewer new ones."""
INT4 = (1.0, 1.45, 1.90, 2.35, 2.77, 2.93, 3.09, 3.25)
"""CPU, int4: 2.77 at 5, 3.25 at 8 (measured, 2 threads)."""
INT8 = (1.0, 1.05, 1.11, 1.16, 1.22, 1.30, 1.38, 1.46)
"""CPU, int8 with dynamic activations: 1.22 at 5 (measured, 2 threads)."""
INT8_WEIGHTS = (1.0, 1.26, 1.52, 1.78, 2.04, 2.30, 2.56, 2.82)
"""CPU, int8 weights alone: 2.04 at 5 (measured, 2 threads)."""
STAIRS = (1.0, 1.02, 1.03, 1.05, 1.60, 1.62, 1.64, 1.66)
"""Kernels with tiles of four rows; illustrative."""
HALF_CLOCK = (1.15, 1.20, 1.30, 1.45, 1.65, 1.90, 2.15, 2.40)
"""FLAT with the GPU's clock halved: what memory bounded is now bounded by arithmetic; illustrative.
"""
LOW_MODE = (1.30, 1.90, 2.50, 3.10, 3.70, 4.30, 4.90, 5.50)
"""FLAT in a mode with few cores: every row costs; illustrative."""


def twice(passes: tuple[float, ...]) -> tuple[float, ...]:
    """All at half the speed."""
    return tuple(2.0 * each for each in passes)


class Kind(NamedTuple):
    """A kind of text: acceptance at depth 1, and what each further depth multiplies it by."""

    acceptance: float
    decline: float = 1.0


Walk = Callable[[int, random.Random], list[Kind]]
"""Kinds of ``tokens`` places."""


def steady(kind: Kind) -> Walk:
    """One kind throughout, its acceptance wandering a little."""

    def walk(tokens: int, rng: random.Random) -> list[Kind]:
        kinds, away = [], 0.0
        for _ in range(tokens):
            away += -0.01 * away + 0.01 * rng.gauss(0.0, 1.0)
            kinds.append(moved(kind, away))
        return kinds

    return walk


def drifting(low: Kind, high: Kind, period: int) -> Walk:
    """To and fro between two kinds, in a wave of ``period`` tokens that begins anywhere."""

    def walk(tokens: int, rng: random.Random) -> list[Kind]:
        begin = rng.random()
        kinds = []
        for i in range(tokens):
            share = 0.5 + 0.5 * math.sin(2.0 * math.pi * (i / period + begin))
            kinds.append(
                Kind(
                    low.acceptance + share * (high.acceptance - low.acceptance),
                    low.decline + share * (high.decline - low.decline),
                )
            )
        return kinds

    return walk


def switching(first: Kind, second: Kind, dwell: int) -> Walk:
    """A Markov chain between two kinds that stays ``dwell`` tokens in each on average."""

    def walk(tokens: int, rng: random.Random) -> list[Kind]:
        now = rng.random() < 0.5
        kinds = []
        for _ in range(tokens):
            now ^= rng.random() < 1.0 / dwell
            kinds.append(first if now else second)
        return kinds

    return walk


def turning(first: Kind, second: Kind) -> Walk:
    """One kind in the first half, another in the second."""

    def walk(tokens: int, rng: random.Random) -> list[Kind]:
        return [first] * (tokens // 2) + [second] * (tokens - tokens // 2)

    return walk


def moved(kind: Kind, by: float) -> Kind:
    """A kind whose acceptance is moved by ``by`` standard deviations."""
    middle = NORMAL.inv_cdf(kind.acceptance)
    return kind._replace(acceptance=NORMAL.cdf(middle + by))


class Scenario(NamedTuple):
    """``after`` are the costs in the second half, if other ones."""

    name: str
    walk: Walk
    costs: Costs
    after: Costs | None = None
    history: Kind | None = None


CODE, PROSE = Kind(0.95, 0.995), Kind(0.30, 0.95)

SCENARIOS = (
    Scenario("flat_high", steady(Kind(0.90)), Costs(FLAT, 0.01)),
    Scenario("flat_high_dear_draft", steady(Kind(0.90, 0.98)), Costs(FLAT, 0.25)),
    Scenario("flat_declining", steady(Kind(0.85, 0.93)), Costs(FLAT, 0.12)),
    Scenario("flat_low", steady(Kind(0.25, 0.95)), Costs(FLAT, 0.06)),
    Scenario("steep_high", steady(Kind(0.90, 0.98)), Costs(STEEP, 0.06)),
    Scenario("steep_low", steady(Kind(0.30, 0.95)), Costs(STEEP, 0.12)),
    Scenario("hopeless", steady(Kind(0.05)), Costs(STEEP, 0.25)),
    Scenario("moe_medium", steady(Kind(0.70, 0.97)), Costs(MOE, 0.06)),
    Scenario("moe_low", steady(Kind(0.40, 0.95)), Costs(MOE, 0.25)),
    Scenario("int4_high", steady(Kind(0.92, 0.99)), Costs(INT4, 0.12)),
    Scenario("int4_marginal", steady(Kind(0.60, 0.95)), Costs(INT4, 0.06)),
    Scenario("int8_high", steady(Kind(0.88, 0.98)), Costs(INT8, 0.06)),
    Scenario("int8_weights_medium", steady(Kind(0.65, 0.97)), Costs(INT8_WEIGHTS, 0.25)),
    Scenario("stairs_medium", steady(Kind(0.80, 0.98)), Costs(STAIRS, 0.06)),
    Scenario(
        "drifting_flat", drifting(Kind(0.35, 0.95), Kind(0.92, 0.99), 1000), Costs(FLAT, 0.06)
    ),
    Scenario(
        "drifting_steep", drifting(Kind(0.20, 0.95), Kind(0.95, 0.99), 700), Costs(STEEP, 0.06)
    ),
    Scenario("switching_flat", switching(CODE, PROSE, 60), Costs(FLAT, 0.12)),
    Scenario("switching_int8", switching(CODE, PROSE, 120), Costs(INT8, 0.06)),
    Scenario("switching_moe", switching(CODE, PROSE, 120), Costs(MOE, 0.12)),
    Scenario("turns_easy", turning(Kind(0.15), Kind(0.92, 0.99)), Costs(MOE, 0.12)),
    Scenario("turns_hard", turning(Kind(0.92, 0.99), Kind(0.15)), Costs(STEEP, 0.25)),
    Scenario(
        "history_low_text_high",
        steady(Kind(0.90, 0.98)),
        Costs(INT8, 0.06),
        history=Kind(0.10),
    ),
    Scenario(
        "history_high_text_low",
        steady(Kind(0.20, 0.95)),
        Costs(STEEP, 0.12),
        history=Kind(0.95, 0.995),
    ),
    Scenario("clock_halved", steady(Kind(0.85, 0.99)), Costs(FLAT, 0.06), Costs(HALF_CLOCK, 0.096)),
    Scenario(
        "clock_restored", steady(Kind(0.85, 0.99)), Costs(HALF_CLOCK, 0.096), Costs(FLAT, 0.06)
    ),
    Scenario(
        "clock_halved_evenly",
        steady(Kind(0.80, 0.98)),
        Costs(INT4, 0.06),
        Costs(twice(INT4), 0.12),
    ),
    Scenario("mode_drop", steady(Kind(0.75, 0.98)), Costs(FLAT, 0.06), Costs(LOW_MODE, 0.10)),
)

SWITCHING = tuple(each for each in SCENARIOS if each.name.startswith("switching"))


class Follow(NamedTuple):
    """A change of costs that the draft length must follow.

    Attributes:
        told: whether the power mode's name changes too.
        visits: how often the board was in the new mode before, for 100 tokens each.
    """

    name: str
    costs: Costs
    after: Costs
    told: bool = False
    visits: int = 0


FOLLOW_KIND = Kind(0.85, 0.99)
FOLLOW_AT = 400
"""Token at which the costs change."""

FOLLOWS = (
    Follow("clock_halved", Costs(FLAT, 0.06), Costs(HALF_CLOCK, 0.096)),
    Follow("clock_restored", Costs(HALF_CLOCK, 0.096), Costs(FLAT, 0.06)),
    Follow("cores_lost", Costs(FLAT, 0.06), Costs(LOW_MODE, 0.10)),
    Follow("cores_back", Costs(LOW_MODE, 0.10), Costs(FLAT, 0.06)),
    Follow("mode_down", Costs(FLAT, 0.06), Costs(LOW_MODE, 0.10), told=True),
    Follow("mode_up", Costs(LOW_MODE, 0.10), Costs(FLAT, 0.06), told=True),
    Follow("mode_down_again", Costs(FLAT, 0.06), Costs(LOW_MODE, 0.10), told=True, visits=1),
    Follow("mode_up_again", Costs(LOW_MODE, 0.10), Costs(FLAT, 0.06), told=True, visits=1),
)

NO_CONFIDENCE, WEAK, INFORMATIVE = QUALITIES = ("none", "weak", "informative")
"""What the drafter's probability says: it is not read back; it is too sure, and mostly noise; it
knows the difficulty, but not quite and is a little too sure."""


class Text(NamedTuple):
    """A text of some places, as the drafter meets it.

    Attributes:
        stands: by place and depth: whether a draft of this place would stand.
        confidence: by quality, place and depth: the drafter's probability of its draft.
    """

    stands: list[tuple[bool, ...]]
    confidence: dict[str, list[tuple[float, ...]]]


def make_text(walk: Walk, tokens: int, seed: str) -> Text:
    """The text of a seed, with places past ``tokens`` for drafts that reach there."""
    rng = random.Random(seed)
    kinds = walk(tokens, rng)
    kinds += [kinds[-1]] * (DEPTHS + 1)
    stands: list[tuple[bool, ...]] = []
    confidence: dict[str, list[tuple[float, ...]]] = {WEAK: [], INFORMATIVE: []}
    spread = math.sqrt(1.0 + DIFFICULTY**2)
    for kind in kinds:
        hard, luck = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
        row, weak, informative = [], [], []
        for depth in range(DEPTHS):
            wanted = kind.acceptance * kind.decline**depth
            own = math.sqrt(1.0 - SHARED_DIFFICULTY) * rng.gauss(0.0, 1.0)
            signal = NORMAL.inv_cdf(wanted) * spread + DIFFICULTY * (
                math.sqrt(SHARED_DIFFICULTY) * hard + own
            )
            chance = math.sqrt(SHARED_CHANCE) * luck
            chance += math.sqrt(1.0 - SHARED_CHANCE) * rng.gauss(0.0, 1.0)
            row.append(chance < signal)
            weak.append(probability(1.5 + 0.35 * (signal + 1.5 * rng.gauss(0.0, 1.0))))
            informative.append(probability(0.2 + 0.9 * (signal + 0.35 * rng.gauss(0.0, 1.0))))
        stands.append(tuple(row))
        confidence[WEAK].append(tuple(weak))
        confidence[INFORMATIVE].append(tuple(informative))
    return Text(stands, confidence)


def probability(score: float) -> float:
    """A probability as a softmax may give it, never quite 0 or 1."""
    return min(max(NORMAL.cdf(score), 1e-4), 1.0 - 1e-4)


@functools.cache
def text_of(scenario: Scenario, tokens: int, seed: int) -> Text:
    """The text of a scenario."""
    return make_text(scenario.walk, tokens, f"{scenario.name} {tokens} {seed}")


@functools.cache
def history_of(scenario: Scenario, seed: int) -> Text | None:
    """The answer before it, if the scenario has one."""
    if scenario.history is None:
        return None
    return make_text(steady(scenario.history), HISTORY, f"{scenario.name} history {seed}")


def measured(costs: Costs, noise: float, seed: str) -> Costs:
    """What timing each width and the draft step at configure gives."""
    rng = random.Random(seed)

    def median(true: float) -> float:
        return true * statistics.median(
            math.exp(noise * rng.gauss(0.0, 1.0)) for _ in range(REPEATS)
        )

    return Costs(tuple(median(each) for each in costs.passes), median(costs.draft))
