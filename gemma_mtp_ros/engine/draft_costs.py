# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What target passes and draft steps cost now: measured at configure, corrected by every round.

Pure. Costs are believed in as logarithms: what a clock changes, it changes by a factor, and noise
of timing is a factor too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..api import MAX_DRAFT
from .belief import Belief

WIDTHS = MAX_DRAFT + 1
DRAFT = WIDTHS
"""Place of the draft step among the costs; places 0..7 are passes of 1..8 rows."""


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds.

    Attributes:
        passes: of a target pass of 1, 2, ... rows.
        draft: of one draft step.
        noise: of a single timing: standard deviation of its logarithm.
    """

    passes: tuple[float, ...]
    draft: float
    noise: float = 0.1


REPEATS = 15
"""Timings of each cost at configure."""

MEDIAN = math.sqrt(math.pi / 2.0 / REPEATS)
"""Error of their median, relative to the noise of one."""

MEASURED_LEAST = 0.015
"""Relative error of a cost measured at configure, at least: answers are not the measurement."""

DRIFT_OWN = 0.003
"""What each cost may change in a round by itself (standard deviation)."""

DRIFT_COMMON, COMMON_EVERY = 0.012, 16
"""What all may change together in so many timings."""

CHANGE_COMMON, CHANGE_SHAPE, REACH = 0.5, 0.9, 0.985
"""A change of clock or mode: of all costs, of one against another; widths that are one row apart
change alike by the last."""

NOISE_LEAST, NOISE_MEMORY = 0.02, 0.97
"""Noise of one timing at least, and its memory in rounds."""

CLIP, USUAL = 4.0, 2.5
"""A timing further off than this many standard deviations counts as this far off; in the noise."""

SLACK, ALARM = 0.6, 5.5
"""A change is found once timings were off in one direction by this much in all, in standard
deviations, where each may be off by the slack (a CUSUM test: false about once in 2,000 rounds)."""

CALM = 8
"""Timings after a change in which no other one is looked for."""


def rising(costs: Sequence[float]) -> list[float]:
    """Costs that never fall with the width, nearest to those given (pool adjacent violators).

    A pass of more rows does more; where it was measured to take less, that was noise.
    """
    pools: list[tuple[float, int]] = []
    for each in costs:
        pools.append((each, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (high, many), (low, few) = pools[-2:]
            pools[-2:] = [((high * many + low * few) / (many + few), many + few)]
    return [mean for mean, count in pools for _ in range(count)]


def _square(common: float, own: float) -> list[list[float]]:
    size = WIDTHS + 1
    return [[common**2 + (own**2 if i == j else 0.0) for j in range(size)] for i in range(size)]


def _change() -> list[list[float]]:
    table = _square(CHANGE_COMMON, 0.0)
    for i in range(WIDTHS):
        for j in range(WIDTHS):
            table[i][j] += CHANGE_SHAPE**2 * REACH ** abs(i - j)
    table[DRAFT][DRAFT] += CHANGE_SHAPE**2
    return table


class CostBelief:
    """What passes and draft steps are believed to cost.

    Attributes:
        noise: standard deviation of the logarithm of a timing.
        changes: changes found so far.
    """

    def __init__(self, costs: Costs) -> None:
        mean = [math.log(each) for each in (*rising(costs.passes), costs.draft)]
        self.noise = max(NOISE_LEAST, costs.noise)
        error = max(MEASURED_LEAST, MEDIAN * costs.noise)
        self._belief = Belief(mean, _square(0.0, error))
        self.changes = 0
        self._above = self._below = 0.0
        self._seen = self._calm_until = 0
        self._refresh()

    def copy(self) -> CostBelief:
        """An independent copy, for another power mode."""
        made = object.__new__(CostBelief)
        made.__dict__.update(self.__dict__)
        made._belief = self._belief.copy()
        return made

    def _refresh(self) -> None:
        *self.passes, self.draft = map(math.exp, self._belief.mean)

    def pass_s(self, rows: int, seconds: float) -> None:
        """A pass of so many rows took this long."""
        self._observe(rows - 1, 0.0, self.passes[rows - 1], seconds)

    def draft_s(self, steps: int, seconds: float) -> None:
        """So many draft steps took this long together."""
        self._observe(0, 1.0, steps * self.draft, seconds)

    def round_s(self, rows: int, steps: int, seconds: float) -> None:
        """Draft steps and a pass took this long together."""
        drafting = steps * self.draft
        expected = self.passes[rows - 1] + drafting
        self._observe(rows - 1, drafting / expected, expected, seconds)

    def _observe(self, place: int, drafting: float, expected: float, seconds: float) -> None:
        """A time, of which the share ``drafting`` is of draft steps and the rest of a pass."""
        belief = self._belief
        table = belief.covariance
        self._seen += 1
        if self._seen % COMMON_EVERY == 0:
            belief.widen(_COMMON)
        for i in range(DRAFT + 1):
            table[i][i] += DRIFT_OWN**2
        along, variance = self._along(place, drafting)
        surprise = math.log(seconds / expected)
        scale = math.sqrt(variance + self.noise**2)
        off = max(-CLIP, min(CLIP, surprise / scale))
        self._above = max(0.0, self._above + off - SLACK)
        self._below = max(0.0, self._below - off - SLACK)
        if self._seen < self._calm_until:
            self._above = self._below = 0.0
        if max(self._above, self._below) > ALARM:
            self.changed()
            along, variance = self._along(place, drafting)
        else:
            usual = max(-USUAL, min(USUAL, off))  # neither a spike nor a change is noise
            seen = max(0.0, (usual * scale) ** 2 - variance)
            noise = NOISE_MEMORY * self.noise**2 + (1.0 - NOISE_MEMORY) * seen
            self.noise = max(NOISE_LEAST, math.sqrt(noise))
            surprise = off * scale
        belief.take(along, surprise, variance + self.noise**2)
        self._refresh()

    def _along(self, place: int, drafting: float) -> tuple[list[float], float]:
        share = 1.0 - drafting
        along = [share * row[place] + drafting * row[DRAFT] for row in self._belief.covariance]
        return along, share * along[place] + drafting * along[DRAFT]

    def changed(self) -> None:
        """Clock or mode are others now: know less."""
        self.changes += 1
        self._calm_until = self._seen + CALM
        self._above = self._below = 0.0
        self._belief.widen(_CHANGE)

    def optimistic(self, at: int, by: float) -> list[float]:
        """Costs of passes, each as low as it may be by so many standard deviations.

        Relative to a pass of ``at`` rows: what all may have in common does not matter.
        """
        table, i = self._belief.covariance, at - 1
        return [
            cost * math.exp(-by * math.sqrt(max(0.0, table[j][j] + table[i][i] - 2 * table[i][j])))
            for j, cost in enumerate(self.passes)
        ]


_COMMON = _square(DRIFT_COMMON, 0.0)
_CHANGE = _change()
