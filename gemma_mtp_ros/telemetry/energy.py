# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Energy that the board drew over a span of time, from the readings of its power."""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import NamedTuple

HOLD_S = 3.0
"""A reading stands for this long at most, when no other follows."""

HISTORY = 16384
"""Readings kept: two hours at 2 Hz."""


class _Power(NamedTuple):
    at_s: float
    power_w: float | None
    is_mean: bool


class Energy:
    """Each reading stands until the next; a mean stands back to the one before. For any thread.

    Attributes:
        hold_s: how long a reading stands at most.
    """

    def __init__(self) -> None:
        self.hold_s = HOLD_S
        self._lock = threading.Lock()
        self._powers: deque[_Power] = deque(maxlen=HISTORY)

    def add(self, at_s: float, power_w: float | None, is_mean: bool = False) -> None:
        """Take note of a reading; one that is not newer than the last says nothing new.

        :param at_s: its CLOCK_MONOTONIC time.
        :param power_w: None is unknown.
        :param is_mean: of the time since the reading before.
        """
        with self._lock:
            if not self._powers or at_s > self._powers[-1].at_s:
                self._powers.append(_Power(at_s, power_w, is_mean))

    def between(self, begin_s: float, end_s: float) -> float | None:
        """Joules drawn from ``begin_s`` to ``end_s``; None where the power is unknown within."""
        with self._lock:
            powers = list(self._powers)
        total, known_to_s = 0.0, begin_s
        for i, now in enumerate(powers):
            after = powers[i + 1] if i + 1 < len(powers) else None
            power_w = after.power_w if after is not None and after.is_mean else now.power_w
            until_s = min(after.at_s if after else math.inf, now.at_s + self.hold_s, end_s)
            if until_s <= known_to_s:
                continue
            if now.at_s > known_to_s or power_w is None:
                return None
            total += power_w * (until_s - known_to_s)
            known_to_s = until_s
        return total if known_to_s >= end_s else None
