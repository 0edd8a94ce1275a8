# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft in the next round. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..api import MAX_DRAFT

DECAY = 0.96
"""What a round's outcome weighs in the next: half after 17 rounds."""

PRIOR_ACCEPTANCE = 0.8
PRIOR_WEIGHT = 2.0
"""Acceptance expected of a drafter that was not seen yet, and how many drafts that counts for."""

PROBE_EVERY = 50
"""Rounds without drafts after which one token is drafted, or acceptance is never seen again."""


@dataclass(frozen=True)
class Costs:
    """Measured times in seconds.

    Attributes:
        passes: of a target pass of 1, 2, ... rows.
        draft: of one draft step.
    """

    passes: tuple[float, ...]
    draft: float


def longest_draft(cap: int, tokens_left: int, context_left: int) -> int:
    """Longest draft that a round may have.

    :param cap: the least of ``draft.max_length`` and the watchdog's cap.
    :param tokens_left: tokens that the completion may still take; a round decides one more than it
        drafts.
    :param context_left: rows that the context may still take; a round writes one more than it
        drafts.
    """
    return max(0, min(cap, MAX_DRAFT, tokens_left - 1, context_left - 1))


def best_length(acceptance: Sequence[float], costs: Costs, longest: int) -> int:
    """Draft length with the most tokens per second expected.

    :param acceptance: of draft ``i``, given that those before it stand.
    """
    best, best_rate = 0, 1.0 / costs.passes[0]
    tokens, chance = 1.0, 1.0
    for k in range(1, min(longest, len(costs.passes) - 1) + 1):
        chance *= acceptance[k - 1]
        tokens += chance
        rate = tokens / (costs.passes[k] + k * costs.draft)
        if rate > best_rate:
            best, best_rate = k, rate
    return best


@dataclass
class Acceptance:
    """Decayed acceptance by position, of drafts whose predecessors stood."""

    stood: list[float] = field(
        default_factory=lambda: [PRIOR_ACCEPTANCE * PRIOR_WEIGHT] * MAX_DRAFT
    )
    seen: list[float] = field(default_factory=lambda: [PRIOR_WEIGHT] * MAX_DRAFT)
    idle_rounds: int = 0

    def add(self, drafted: int, kept: int) -> None:
        """Take note of a round: ``kept`` of ``drafted`` stood."""
        self.idle_rounds = 0 if drafted else self.idle_rounds + 1
        for i in range(min(drafted, kept + 1)):
            self.stood[i] = self.stood[i] * DECAY + (i < kept)
            self.seen[i] = self.seen[i] * DECAY + 1.0

    def rates(self) -> list[float]:
        """Acceptance by position; one not seen for long is taken to be like the one before it."""
        rates: list[float] = []
        for i, (stood, seen) in enumerate(zip(self.stood, self.seen, strict=True)):
            before = rates[i - 1] if i else PRIOR_ACCEPTANCE
            rates.append((stood + before) / (seen + 1.0))
        return rates

    def choose(self, costs: Costs, longest: int) -> int:
        """Draft length of the next round."""
        best = best_length(self.rates(), costs, longest)
        if best == 0 and longest and self.idle_rounds >= PROBE_EVERY:
            return 1
        return best
