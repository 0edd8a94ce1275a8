# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Energy that the board drew over a span of time, from the readings of its power."""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque

HOLD_S = 3.0
"""A reading stands for this long at most, when no other follows."""

HISTORY = 16384
"""Readings kept: two hours at 2 Hz."""


class Energy:
    """Each reading stands until the next. Fed and asked from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._powers: deque[tuple[float, float | None]] = deque(maxlen=HISTORY)

    def add(self, at_s: float, power_w: float | None) -> None:
        """Take note of a reading; one that is not newer than the last says nothing new.

        :param at_s: its CLOCK_MONOTONIC time.
        :param power_w: None is unknown.
        """
        with self._lock:
            if not self._powers or at_s > self._powers[-1][0]:
                self._powers.append((at_s, power_w))

    def between(self, begin_s: float, end_s: float) -> float | None:
        """Joules drawn from ``begin_s`` to ``end_s``; None where the power is unknown within."""
        with self._lock:
            powers = list(self._powers)
        total, known_to_s = 0.0, begin_s
        ends = itertools.chain((at_s for at_s, _ in powers[1:]), [math.inf])
        for (at_s, power_w), next_s in zip(powers, ends):  # noqa: B905  empty: one end too many
            until_s = min(next_s, at_s + HOLD_S, end_s)
            if until_s <= known_to_s:
                continue
            if at_s > known_to_s or power_w is None:
                return None
            total += power_w * (until_s - known_to_s)
            known_to_s = until_s
        return total if known_to_s >= end_s else None
