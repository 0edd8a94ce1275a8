# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Levels: how near the board is to its own trip points. Pure; raises for no reading.

They go by distances, never by absolute temperatures:

- CRITICAL: within `critical_margin_c` of the shutdown trip. By default that is 101.5 degC on Orin
  (clocks cut from 99, in hardware from 101 to 103, shutdown at 104.5) and 111.5 degC on Thor (seen
  throttled at 109, shutdown at 114.5): beyond where the kernel holds a healthy board, and some
  seconds before the power goes. It is left when the board is cooler than HOT.
- HOT: within `hot_margin_c` of where clocks are cut, or clocks are being cut now.
- WARM: within `warm_margin_c` of it. NOMINAL: cooler.
- UNKNOWN: no temperature, no trip point to hold it against, or a reading that is too old.
- DISABLED: `watchdog.mode` is off.

A level is left downwards only `hysteresis_c` beyond its threshold, and no level changes within
`min_dwell_s` of the last change, except to CRITICAL.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Protocol

from .reading import (
    TEMPERATURE_RANGE_C,
    THROTTLE_TO_CRITICAL_C,
    Reading,
    Throttle,
    plausible,
)


class Level(enum.IntEnum):
    """Values of `level` in msg/PowerState."""

    UNKNOWN = 0
    NOMINAL = 1
    WARM = 2
    HOT = 3
    CRITICAL = 4
    DISABLED = 5


LEVEL_NAMES = tuple(level.name for level in Level if level is not Level.DISABLED)
"""The levels that a board can have."""


class Thresholds(Protocol):
    """What levels need of `PolicyConfig`."""

    @property
    def warm_margin_c(self) -> float: ...
    @property
    def hot_margin_c(self) -> float: ...
    @property
    def critical_margin_c(self) -> float: ...
    @property
    def hysteresis_c(self) -> float: ...
    @property
    def min_dwell_s(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Margins:
    """Distances of the nearest zone from its limits, degC; None is unknown.

    throttle_c: to where clocks are cut. shutdown_c: to power off. `why`: why they are unknown.
    """

    throttle_c: float | None = None
    shutdown_c: float | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """The level in force (None before the first reading), since when, and the last known one."""

    level: Level | None = None
    since_s: float = 0.0
    known: Level | None = None


def margins(reading: Reading, now_s: float, stale_after_s: float) -> Margins:
    """What the reading says of the distances; unknown where it makes no sense or is too old."""
    if not now_s - reading.stamp_s <= stale_after_s:  # NaN is too old as well
        age_s = now_s - reading.stamp_s
        old = f"{age_s:.1f} s old" if math.isfinite(age_s) else "of an unknown time"
        return Margins(why=f"the last reading is {old}")
    if plausible(reading.temperature_c, *TEMPERATURE_RANGE_C) is None:
        return Margins(why="no temperature can be read")
    throttle_c = plausible(reading.margin_c, -250.0, 250.0)
    if throttle_c is None:
        return Margins(why="no trip point is known to hold the temperature against")
    shutdown_c = plausible(reading.critical_margin_c, -250.0, 250.0)
    if shutdown_c is None:
        shutdown_c = throttle_c + THROTTLE_TO_CRITICAL_C
    return Margins(throttle_c, shutdown_c)


def asked_for(
    config: Thresholds, known: Level | None, distances: Margins, throttled: bool
) -> Level:
    """The level that this reading asks for, given the last known one."""
    throttle_c, shutdown_c = distances.throttle_c, distances.shutdown_c
    if throttle_c is None or shutdown_c is None:
        if known is Level.CRITICAL:
            return Level.CRITICAL
        return Level.HOT if throttled else Level.UNKNOWN
    hot_c, warm_c = config.hot_margin_c, config.warm_margin_c
    if known is not None and known >= Level.HOT:
        hot_c += config.hysteresis_c
    if known is not None and known >= Level.WARM:
        warm_c += config.hysteresis_c
    critical_c = config.critical_margin_c
    if known is Level.CRITICAL:
        critical_c += config.hysteresis_c
    if shutdown_c <= critical_c:
        return Level.CRITICAL
    if throttle_c <= hot_c:
        return Level.CRITICAL if known is Level.CRITICAL else Level.HOT
    if throttled:
        return Level.HOT
    return Level.WARM if throttle_c <= warm_c else Level.NOMINAL


def settle(config: Thresholds, standing: Standing, asked: Level, now_s: float) -> Standing:
    """The level in force after a reading that asks for `asked`."""
    level, since_s = standing.level, standing.since_s
    due = now_s - since_s >= config.min_dwell_s
    if level is None or (asked is not level and (asked is Level.CRITICAL or due)):
        level, since_s = asked, now_s
    return Standing(level, since_s, standing.known if level is Level.UNKNOWN else level)


def sentence(level: Level, asked: Level, reading: Reading, distances: Margins) -> str:
    """One sentence for the operator, without its full stop."""
    zone = reading.margin_zone or reading.hottest_zone or "the board"
    throttle_c, shutdown_c = distances.throttle_c, distances.shutdown_c
    if throttle_c is None or shutdown_c is None:
        text = distances.why
    else:
        at = plausible(reading.zones.get(zone, reading.temperature_c), *TEMPERATURE_RANGE_C)
        celsius = "" if at is None else f" at {at:.1f} degC"
        if Level.CRITICAL in (level, asked):
            text = f"{zone}{celsius} is {_distance(shutdown_c)} its shutdown trip"
        else:
            text = f"{zone}{celsius} is {_distance(throttle_c)} where clocks are cut"
    if reading.throttle == Throttle.YES:
        text += f"; clocks are being cut ({reading.throttle_reason or 'the board says so'})"
    if asked is not level:
        text += f"; {level.name} stays until its dwell is over, then {asked.name}"
    elif level is Level.CRITICAL:
        text += "; goals are refused until it is cooler than HOT"
    return text


def _distance(margin_c: float) -> str:
    return f"{abs(margin_c):.1f} degC {'below' if margin_c >= 0 else 'above'}"
