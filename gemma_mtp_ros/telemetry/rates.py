# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a counter of the kernel grows."""

from __future__ import annotations


class Rate:
    """From one value of a counter to the next, per second.

    Unknown (None) at the first value, after one that was unknown, and where the counter fell
    without a known range to wrap around in: the driver was loaded again.
    """

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def update(self, value: int | None, now_s: float, wraps_at: int | None = None) -> float | None:
        """The rate since the value before; `now_s` is CLOCK_MONOTONIC.

        wraps_at: the largest value, after which the counter begins at 0 again.
        """
        last = self._last
        self._last = None if value is None else (value, now_s)
        if value is None or last is None or now_s <= last[1]:
            return None
        grown = value - last[0]
        if grown < 0 and wraps_at is not None and last[0] <= wraps_at:
            grown += wraps_at
        return grown / (now_s - last[1]) if grown >= 0 else None
