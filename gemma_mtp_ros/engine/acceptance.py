# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How likely drafts stand: a logistic model of depth, text and the drafter's probability. Pure.

The log-odds that a draft stands, given that those before it in the round do, are a base, an extra
at the first depth, a decline per depth, a level that follows the text, and a slope times x: how far
the drafter's own log-odds lie above their average (online Platt scaling). All are learned from
which drafts stood (extended Kalman filter of a logistic model).
"""

from __future__ import annotations

import math

from ..api import MAX_DRAFT
from .belief import Belief

BASE, FIRST, DECLINE, LEVEL, SLOPE = range(5)

PRIOR_MEAN = (1.3, 0.0, 0.0, 0.0, 0.3)
"""Of a drafter that was not seen yet: acceptance 0.79 at every depth."""

PRIOR_SPREAD = (1.0, 0.3, 0.8, 0.25, 0.4)
"""How far off that may be (standard deviations); the decline is over all depths."""

DRIFT = (0.03, 0.01, 0.02, 0.15, 0.01)
"""What each may change in a round (standard deviations)."""

LEVEL_MEMORY = 0.97
"""What stays of the level from a round to the next."""

EVIDENCE_MEMORY, EVIDENCE_MOST = 0.97, 4.0
"""Memory, in drafts, and bound of the evidence (log of the odds) that the level explains more than
its own noise."""

TELLS = 0.5
"""Log-odds that the drafter must move a chance by, to be worth hearing first."""

LEAST = 1.0 / (1.0 + math.exp(5.0))
"""Bound of the drafter's probability, as of one less it: surer than 0.993 is no surer."""

CENTRE_OVER, RECENT_OVER = 50, 30
"""Drafts that the drafter's log-odds are averaged over: the first, once and for all, to measure x
from; the latest, for what x to expect."""

HISTORY = 0.5
"""Weight of earlier answers in what a new one begins with."""


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, x))))  # never quite 0 or 1


def _flattened(mean: float, variance: float) -> float:
    """Probability whose log-odds are normal (MacKay's approximation, Neural Computation 1992)."""
    return _sigmoid(mean / math.sqrt(1.0 + 0.3927 * max(variance, 0.0)))


class Acceptance:
    """What is known of the acceptance of drafts."""

    def __init__(self) -> None:
        self._belief = Belief(PRIOR_MEAN, _PRIOR)
        self._evidence = 0.0
        self._centre = 0.0
        self._recent = 0.0
        self._variance = 1.0
        self._seen = 0
        self._told = False

    def new_answer(self) -> None:
        """Another text begins: what the last one showed, if anything, counts for little."""
        if not self._told:
            return
        self._told = False
        belief = self._belief
        for i in (BASE, FIRST, DECLINE):
            belief.mean[i] += (1.0 - HISTORY) * (PRIOR_MEAN[i] - belief.mean[i])
        belief.mean[LEVEL] = self._evidence = 0.0
        self._recent += (1.0 - HISTORY) * (self._centre - self._recent)
        own = HISTORY**2
        for i, row in enumerate(belief.covariance):
            for j in range(len(row)):
                kept = 1.0 if i == j == SLOPE else 0.0 if LEVEL in (i, j) else own
                row[j] = kept * row[j] + (1.0 - kept) * _PRIOR[i][j]

    def age(self) -> None:
        """A round passes: text may change."""
        belief = self._belief
        table = belief.covariance
        level = table[LEVEL]
        for i, each in enumerate(_DRIFT):
            table[i][LEVEL] *= LEVEL_MEMORY
            level[i] *= LEVEL_MEMORY
            table[i][i] += each
        belief.mean[LEVEL] *= LEVEL_MEMORY

    def note(self, probability: float) -> float:
        """The drafter gave this to a draft of its own; returned are its log-odds, bounded."""
        p = max(LEAST, min(1.0 - LEAST, probability))
        log_odds = math.log(p / (1.0 - p))
        self._seen += 1
        if self._seen <= CENTRE_OVER:
            self._centre += (log_odds - self._centre) / self._seen
        share = 1.0 / min(self._seen, RECENT_OVER)
        off = log_odds - self._recent
        self._recent += share * off
        self._variance += min(share, 0.5) * (off * off - self._variance)
        return log_odds

    def _trust(self) -> float:
        """Weight of the level: what speaks for it against its noise."""
        return _sigmoid(self._evidence)

    def rates(self) -> list[float]:
        """Chance of each depth to stand if those before it do, before the drafter speaks."""
        mean, table = self._belief.mean, self._belief.covariance
        trust = self._trust()
        spoken = mean[SLOPE] ** 2 * self._variance if self._seen else 0.0
        variance = table[BASE][BASE] + trust * (table[LEVEL][LEVEL] + 2 * table[BASE][LEVEL])
        scale = 1.0 / math.sqrt(1.0 + 0.3927 * max(variance + spoken, 0.0))
        at = mean[BASE] + trust * mean[LEVEL] + mean[SLOPE] * (self._recent - self._centre)
        rates = [_sigmoid(scale * (at + mean[FIRST]))]
        for depth in range(1, MAX_DRAFT):
            rates.append(_sigmoid(scale * (at + mean[DECLINE] * depth / (MAX_DRAFT - 1))))
        return rates

    def may_say(self, depth: int) -> list[tuple[float, float]]:
        """What the drafter may say of a draft to come: weights, and the chances that follow.

        Three points of a normal distribution (Gauss-Hermite); none while it tells little.
        """
        slope = self._belief.mean[SLOPE]
        away = slope * math.sqrt(3.0 * self._variance)
        if not self._seen or away < TELLS:
            return []
        middle = self._recent
        reach = math.sqrt(3.0 * self._variance)
        return [
            (weight, self.chance(depth, middle + each * reach))
            for weight, each in ((1 / 6, -1.0), (2 / 3, 0.0), (1 / 6, 1.0))
        ]

    def chance(self, depth: int, log_odds: float) -> float:
        """Chance of a draft to stand if those before it do, given the drafter's log-odds."""
        mean, table = self._belief.mean, self._belief.covariance
        trust = self._trust()
        x = log_odds - self._centre
        at = mean[BASE] + trust * mean[LEVEL] + x * mean[SLOPE]
        at += mean[DECLINE] * depth / (MAX_DRAFT - 1) if depth else mean[FIRST]
        variance = table[BASE][BASE] + trust * (table[LEVEL][LEVEL] + 2 * table[BASE][LEVEL])
        return _flattened(at, variance + x * x * table[SLOPE][SLOPE])

    def observe(self, depth: int, log_odds: float | None, stood: bool) -> None:
        """A draft was checked whose predecessors stood.

        :param log_odds: the drafter's, None if it is not known.
        """
        self._told = True
        belief = self._belief
        mean = belief.mean
        x = 0.0 if log_odds is None else log_odds - self._centre
        weights = [1.0, 0.0, 0.0, 1.0, x]
        if depth:
            weights[DECLINE] = depth / (MAX_DRAFT - 1)
        else:
            weights[FIRST] = 1.0
        along, variance = belief.along(weights)
        at = sum(map(float.__mul__, weights, mean))
        chance = _flattened(at, variance)
        without = _flattened(at - mean[LEVEL], belief.covariance[BASE][BASE])
        gain = math.log(chance / without if stood else (1.0 - chance) / (1.0 - without))
        self._evidence = max(
            -EVIDENCE_MOST, min(EVIDENCE_MOST, EVIDENCE_MEMORY * self._evidence + gain)
        )
        information = max(chance * (1.0 - chance), 1e-3)
        belief.take(along, (stood - chance) / information, variance + 1.0 / information)


_PRIOR = [[each**2 if i == j else 0.0 for j in range(5)] for i, each in enumerate(PRIOR_SPREAD)]
_DRIFT = [each**2 for each in DRIFT]
