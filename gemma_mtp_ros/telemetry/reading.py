# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""One reading of a board: temperatures, trip points, power, clocks, throttling, power mode.

`None` is unknown. A sensor that cannot be read, or reads something impossible, is unknown and
never taken for healthy.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import time
from collections.abc import Mapping

TEMPERATURE_RANGE_C = (-40.0, 150.0)
"""Die temperatures outside are sensor faults (JetPack 5 says -256 for a zone that is off)."""

TRIP_RANGE_C = (40.0, 150.0)
"""Trip points outside are placeholders (0, -274) that firmware leaves for "not set"."""

HYSTERESIS_RANGE_C = (0.0, 20.0)
"""Of a trip point."""

THROTTLE_TO_CRITICAL_C = 5.5
"""Assumed distance between the first cut of clocks and the shutdown trip where a zone states only
one of the two. Jetson Orin: 99.0 and 104.5 degC stated. Jetson Thor: throttling seen at about
109 degC, shutdown stated at 114.5 degC."""


class Throttle(enum.IntEnum):
    """Whether the board is cutting clocks now; values of `throttle` in msg/PowerState."""

    UNKNOWN = 0
    NO = 1
    YES = 2


def plausible(value: float | None, low: float, high: float) -> float | None:
    """`value` if it is a finite number within [low, high], else None."""
    if value is None or not math.isfinite(value) or not low <= value <= high:
        return None
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class Trips:
    """Trip points of one thermal zone as the kernel states them, degC; None is not stated.

    throttle_c: lowest passive trip that cuts clocks. critical_c: shutdown.
    hysteresis_c: how far below `throttle_c` the kernel releases the clocks.
    """

    throttle_c: float | None = None
    critical_c: float | None = None
    hysteresis_c: float | None = None

    @property
    def throttle_limit_c(self) -> float | None:
        """Where clocks are cut: the stated trip, else `THROTTLE_TO_CRITICAL_C` below shutdown."""
        if self.throttle_c is None and self.critical_c is not None:
            return self.critical_c - THROTTLE_TO_CRITICAL_C
        return self.throttle_c

    @property
    def critical_limit_c(self) -> float | None:
        """Shutdown: the stated trip, else `THROTTLE_TO_CRITICAL_C` above the throttle trip."""
        if self.critical_c is None and self.throttle_c is not None:
            return self.throttle_c + THROTTLE_TO_CRITICAL_C
        return self.critical_c


@dataclasses.dataclass(frozen=True, slots=True)
class Heat:
    """The zones in a nutshell, degC; see `Reading` for the fields."""

    hottest_zone: str | None = None
    temperature_c: float | None = None
    margin_zone: str | None = None
    margin_c: float | None = None
    critical_margin_c: float | None = None


def summarise(zones: Mapping[str, float | None], trips: Mapping[str, Trips]) -> Heat:
    """Hottest zone and smallest margins over all zones that read.

    A zone that states no trip point is held to the lowest one that any zone of the board states:
    on a Jetson all zones lie on one die. The first of equally hot zones is named.
    """
    throttle_limits = [t.throttle_limit_c for t in trips.values() if t.throttle_limit_c is not None]
    critical_limits = [t.critical_limit_c for t in trips.values() if t.critical_limit_c is not None]
    known = {zone: temperature for zone, temperature in zones.items() if temperature is not None}
    if not known:
        return Heat()
    hottest = max(known, key=lambda zone: known[zone])
    if not throttle_limits or not critical_limits:
        return Heat(hottest_zone=hottest, temperature_c=known[hottest])
    margins: dict[str, float] = {}
    critical_margins: list[float] = []
    for zone, temperature in known.items():
        own = trips.get(zone, Trips())
        throttle = own.throttle_limit_c
        critical = own.critical_limit_c
        margins[zone] = (min(throttle_limits) if throttle is None else throttle) - temperature
        critical_margins.append(
            (min(critical_limits) if critical is None else critical) - temperature
        )
    nearest = min(margins, key=lambda zone: margins[zone])
    return Heat(
        hottest_zone=hottest,
        temperature_c=known[hottest],
        margin_zone=nearest,
        margin_c=margins[nearest],
        critical_margin_c=min(critical_margins),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What is known of the board at one moment; None is unknown. The mappings are read-only.

    stamp_s: CLOCK_MONOTONIC at the start of the reading. wall_s: time since the epoch.
    source: where it comes from ("sysfs"), or "none" if there is nothing to read.
    note: one sentence on what could not be had, "" if all is well.
    zones, trips: per thermal zone, by the kernel's own name for it (`type`), degC.
    hottest_zone, temperature_c: the hottest zone that reads.
    margin_zone, margin_c: the zone nearest to where clocks are cut, and its distance from there
        in degC (negative: beyond). See `Trips.throttle_limit_c`.
    critical_margin_c: smallest distance of any zone from its shutdown trip, degC.
    rails: power per labelled rail, W; rails may be parts of each other. power_w: the whole board.
    power_is_mean: both are means since the reading before, from counters of energy.
    gpu_clock_mhz: 0 where the GPU is power-gated. gpu_max_clock_mhz: cap of the power mode.
    gpu_load: 0..1. memory_clock_mhz: on Orin the cap of the power mode, elsewhere the clock.
    throttle, throttle_reason: whether clocks are being cut, and what says so.
    over_current_events: sum of the counters since boot. over_current_per_s: how fast it grows.
    power_mode: name of the nvpmodel mode. board: the device tree's model name.
    round_s: how long a round of the engine takes; no sensor's value, the node fills it in, as the
        next two. draft_length: mean of the last second. tokens_per_s: of the last second, pauses
        included.
    """

    stamp_s: float
    wall_s: float
    source: str = "none"
    note: str = ""
    board: str | None = None
    zones: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    trips: Mapping[str, Trips] = dataclasses.field(default_factory=dict)
    hottest_zone: str | None = None
    temperature_c: float | None = None
    margin_zone: str | None = None
    margin_c: float | None = None
    critical_margin_c: float | None = None
    rails: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    power_w: float | None = None
    power_is_mean: bool = False
    gpu_clock_mhz: float | None = None
    gpu_max_clock_mhz: float | None = None
    gpu_load: float | None = None
    memory_clock_mhz: float | None = None
    throttle: Throttle = Throttle.UNKNOWN
    throttle_reason: str = ""
    over_current_events: int | None = None
    over_current_per_s: float | None = None
    power_mode: str | None = None
    round_s: float | None = None
    draft_length: float | None = None
    tokens_per_s: float | None = None

    def age_s(self, now_s: float) -> float:
        """Seconds since the reading was begun; `now_s` is CLOCK_MONOTONIC."""
        return max(now_s - self.stamp_s, 0.0)


def unknown(stamp_s: float, source: str, note: str, board: str | None = None) -> Reading:
    """A reading that knows nothing, for the reason in `note`; `wall_s` is that of `stamp_s`."""
    wall_s = time.time() - (time.monotonic() - stamp_s)
    return Reading(stamp_s=stamp_s, wall_s=wall_s, source=source, note=note, board=board)
