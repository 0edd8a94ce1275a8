# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a reading means for the engine: level, draft cap, pause, halt. Pure; raises for no reading.

Levels go by the distance to the board's own trip points, never by absolute temperatures:

- CRITICAL: within `critical_margin_c` of the shutdown trip. By default that is 101.5 degC on Orin
  (clocks cut from 99, in hardware from 101 to 103, shutdown at 104.5) and 111.5 degC on Thor (seen
  throttled at 109, shutdown at 114.5): beyond where the kernel holds a healthy board, and some
  seconds before the power goes. The goal ends at once and new ones are refused, until the board is
  cooler than HOT.
- HOT: within `hot_margin_c` of where clocks are cut, or clocks are being cut now.
- WARM: within `warm_margin_c` of it. NOMINAL: cooler.
- UNKNOWN: no temperature, or no trip point to hold it against. What was in force is not loosened:
  the draft cap of the last known level counts too, a pause stays, and CRITICAL stays CRITICAL.
- DISABLED: `mode` is off. No cap, no pause, no halt.

A level is left downwards only `hysteresis_c` beyond its threshold, and no level changes within
`min_dwell_s` of the last change, except to CRITICAL.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Iterable, Mapping

from .reading import (
    TEMPERATURE_RANGE_C,
    THROTTLE_TO_CRITICAL_C,
    Reading,
    Throttle,
    plausible,
)

NO_CAP = 7
"""The largest draft length there is, so a cap of 7 caps nothing."""

SLOPE_HORIZON_S = 3.0
"""How far ahead the pause looks along the slope of the temperature."""

SLOPE_WEIGHT = 0.3
"""Weight of a new slope in its moving average; sensors step by 0.5 degC."""

SLOPE_MAX_C_PER_S = 2.0
"""Steeper is a sensor that came or went."""

SLOPE_GAP_S = 10.0
"""Readings further apart than this say nothing about a slope."""


class Level(enum.IntEnum):
    """Values of `level` in msg/PowerState."""

    UNKNOWN = 0
    NOMINAL = 1
    WARM = 2
    HOT = 3
    CRITICAL = 4
    DISABLED = 5


_LEVEL_NAMES = tuple(level.name for level in Level if level is not Level.DISABLED)


class Mode(str, enum.Enum):
    """Parameter `watchdog.mode`: report never pauses, guard does, off does nothing at all."""

    REPORT = "report"
    GUARD = "guard"
    OFF = "off"


@dataclasses.dataclass(frozen=True, slots=True)
class CapRule:
    """At `level`, and in power mode `power_mode` if one is named, draft at most `cap` tokens."""

    level: Level
    power_mode: str | None
    cap: int


BOUNDS: Mapping[str, tuple[float, float]] = {
    "warm_margin_c": (0.0, 60.0),
    "hot_margin_c": (0.0, 60.0),
    "critical_margin_c": (0.0, 30.0),
    "hysteresis_c": (0.0, 20.0),
    "min_dwell_s": (0.0, 600.0),
    "guard_margin_c": (0.0, 40.0),
    "guard_band_c": (0.5, 40.0),
    "max_pause_s": (0.0, 10.0),
}
"""Smallest and largest value of each number in `PolicyConfig`."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Parameters `watchdog.*`. Margins in degC below a trip point.

    warm_margin_c, hot_margin_c: from where clocks are cut. critical_margin_c: from the shutdown.
    guard_margin_c: where `guard` holds the board; keep it above the kernel's own hysteresis of 1.5,
        or a throttle once tripped is never released. guard_band_c: the pause grows from 0 to
        `max_pause_s` over this span above that margin.
    override: a level to act as, whatever is read; for tests on a robot.

    Raises:
        ValueError: a value out of its bounds; names the parameter, the value and the bound.
    """

    mode: Mode | str = Mode.REPORT
    draft_cap: tuple[CapRule, ...] = ()
    warm_margin_c: float = 15.0
    hot_margin_c: float = 5.0
    critical_margin_c: float = 3.0
    hysteresis_c: float = 2.0
    min_dwell_s: float = 5.0
    guard_margin_c: float = 3.0
    guard_band_c: float = 4.0
    max_pause_s: float = 1.0
    override: Level | None = None

    def __post_init__(self) -> None:
        modes = [mode.value for mode in Mode]
        if self.mode not in modes:
            raise ValueError(
                f"watchdog.mode {self.mode!r} is not one of {', '.join(modes)}; use report to "
                "watch without pausing."
            )
        object.__setattr__(self, "mode", Mode(self.mode))
        for name, (low, high) in BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or plausible(value, low, high) is None:
                raise ValueError(
                    f"watchdog.{name} {value!r} is outside {low:g} to {high:g}; set it within."
                )
        if self.warm_margin_c < self.hot_margin_c:
            raise ValueError(
                f"watchdog.warm_margin_c {self.warm_margin_c!r} is smaller than "
                f"watchdog.hot_margin_c {self.hot_margin_c!r}; WARM comes before HOT, so raise it."
            )
        if self.override is not None and not (
            isinstance(self.override, Level) and self.override.name in _LEVEL_NAMES
        ):
            raise ValueError(
                f"watchdog.override {self.override!r} is no level to force; the levels are "
                f"{', '.join(_LEVEL_NAMES)}, and "
                "watchdog.mode off disables the watchdog."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyState:
    """What `step` carries from one reading to the next.

    level: the level in force, None before the first reading; since_s: when it came into force.
    known: the last level that was not UNKNOWN. power_mode: the last that was readable.
    slope_c_per_s: moving average of the warming; margin_c, margin_s: the last margin and its time.
    """

    level: Level | None = None
    since_s: float = 0.0
    known: Level | None = None
    power_mode: str | None = None
    slope_c_per_s: float = 0.0
    margin_c: float | None = None
    margin_s: float = 0.0
    pause_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What the engine shall do until the next one.

    draft_cap: 0..7 drafted tokens a round at most. pause_s: after each round. halt: end the goal
    and refuse new ones. reason: one sentence for the operator.
    """

    level: Level = Level.UNKNOWN
    draft_cap: int = NO_CAP
    pause_s: float = 0.0
    halt: bool = False
    reason: str = ""


def parse_draft_cap(entries: Iterable[str]) -> tuple[CapRule, ...]:
    """Rules from entries such as `HOT=2` or `HOT@15W=1` (in power mode 15W).

    Blank entries are skipped: a ROS parameter file writes an empty string array as `[""]`.

    Raises:
        ValueError: an entry of another form; names it, the bound and an example.
    """
    return tuple(_cap_rule(entry) for entry in entries if str(entry).strip())


def draft_cap_for(rules: Iterable[CapRule], level: Level, power_mode: str | None) -> int:
    """The smallest cap of the rules for this level and power mode; 7 if none matches.

    Mode names match without regard to case and to the prefix MODE_ (AGX Orin says MODE_15W where
    Orin Nano says 15W). A rule for a mode does not match while no mode is known.
    """
    caps = [
        rule.cap
        for rule in rules
        if rule.level == level
        and (rule.power_mode is None or _mode_key(rule.power_mode) == _mode_key(power_mode))
    ]
    return min(caps, default=NO_CAP)


def step(
    config: PolicyConfig, state: PolicyState, reading: Reading, now_s: float
) -> tuple[PolicyState, Decision]:
    """One poll. `now_s` is CLOCK_MONOTONIC; `state` is `PolicyState()` at first."""
    if config.mode is Mode.OFF:
        return PolicyState(), Decision(Level.DISABLED, reason="watchdog.mode is off.")
    if not math.isfinite(now_s):
        now_s = max(state.since_s, state.margin_s)
    margin_c, critical_margin_c = _margins(reading)
    throttled = reading.throttle == Throttle.YES
    target = _target(config, state.known, margin_c, critical_margin_c, throttled)

    level, since_s = state.level, state.since_s
    if level is None or (
        target is not level and (target is Level.CRITICAL or now_s - since_s >= config.min_dwell_s)
    ):
        level, since_s = target, now_s
    power_mode = reading.power_mode or state.power_mode
    known = state.known if level is Level.UNKNOWN else level
    slope = _slope(state, margin_c, now_s)
    pause_s = state.pause_s
    if config.mode is not Mode.GUARD:
        pause_s = 0.0
    elif margin_c is not None:
        pause_s = _pause(config, margin_c, slope)

    state = PolicyState(
        level=level,
        since_s=since_s,
        known=known,
        power_mode=power_mode,
        slope_c_per_s=slope,
        margin_c=margin_c,
        margin_s=now_s,
        pause_s=pause_s,
    )
    if config.override is not None:
        acting, reason = config.override, f"watchdog.override forces {config.override.name}."
        cap = draft_cap_for(config.draft_cap, acting, power_mode)
    else:
        acting, reason = level, _reason(level, target, reading, margin_c, critical_margin_c)
        cap = draft_cap_for(config.draft_cap, acting, power_mode)
        if level is Level.UNKNOWN and known is not None:
            cap = min(cap, draft_cap_for(config.draft_cap, known, power_mode))
    return state, Decision(acting, cap, pause_s, acting is Level.CRITICAL, reason)


def _cap_rule(entry: str) -> CapRule:
    left, _, cap = (part.strip() for part in str(entry).partition("="))
    name, at, mode = (part.strip() for part in left.partition("@"))
    if not name or not cap or bool(at) != bool(mode) or "=" in cap or "@" in mode:
        problem = "is not of the form LEVEL=CAP or LEVEL@MODE=CAP"
    elif name.upper() not in _LEVEL_NAMES:
        problem = f"names no level; the levels are {', '.join(_LEVEL_NAMES)}"
    elif re.fullmatch("[0-7]", cap) is None:
        problem = f"has a cap that is no integer from 0 to {NO_CAP}"
    else:
        return CapRule(Level[name.upper()], mode or None, int(cap))
    shown = repr(entry[:60] + "..." if isinstance(entry, str) and len(entry) > 60 else entry)
    raise ValueError(
        f"watchdog.draft_cap entry {shown} {problem}; "
        "write for example HOT=2, or HOT@15W=1 for one power mode."
    )


def _mode_key(name: str | None) -> str | None:
    return None if name is None else name.strip().upper().removeprefix("MODE_")


def _margins(reading: Reading) -> tuple[float | None, float | None]:
    """Distances to the throttle and shutdown limits; None where the reading makes no sense."""
    if plausible(reading.temperature_c, *TEMPERATURE_RANGE_C) is None:
        return None, None
    margin_c = plausible(reading.margin_c, -250.0, 250.0)
    if margin_c is None:
        return None, None
    critical_margin_c = plausible(reading.critical_margin_c, -250.0, 250.0)
    if critical_margin_c is None:
        critical_margin_c = margin_c + THROTTLE_TO_CRITICAL_C
    return margin_c, critical_margin_c


def _target(
    config: PolicyConfig,
    known: Level | None,
    margin_c: float | None,
    critical_margin_c: float | None,
    throttled: bool,
) -> Level:
    """The level that this reading asks for, given the last known one."""
    if margin_c is None or critical_margin_c is None:
        if known is Level.CRITICAL:
            return Level.CRITICAL
        return Level.HOT if throttled else Level.UNKNOWN
    hot_c, warm_c = config.hot_margin_c, config.warm_margin_c
    if known is not None and known >= Level.HOT:
        hot_c += config.hysteresis_c
    if known is not None and known >= Level.WARM:
        warm_c += config.hysteresis_c
    if critical_margin_c <= config.critical_margin_c:
        return Level.CRITICAL
    if margin_c <= hot_c:
        return Level.CRITICAL if known is Level.CRITICAL else Level.HOT
    if throttled:
        return Level.HOT
    return Level.WARM if margin_c <= warm_c else Level.NOMINAL


def _slope(state: PolicyState, margin_c: float | None, now_s: float) -> float:
    """Moving average of the warming, degC per second, from the shrinking of the margin."""
    elapsed_s = now_s - state.margin_s
    if margin_c is None or state.margin_c is None or not 0.0 < elapsed_s <= SLOPE_GAP_S:
        return 0.0
    slope = (state.margin_c - margin_c) / elapsed_s
    slope = min(max(slope, -SLOPE_MAX_C_PER_S), SLOPE_MAX_C_PER_S)
    return state.slope_c_per_s + SLOPE_WEIGHT * (slope - state.slope_c_per_s)


def _pause(config: PolicyConfig, margin_c: float, slope_c_per_s: float) -> float:
    """Pause after each round, s: proportional to how far the margin, a little ahead, is used up.

    Never shorter for a hotter board. A first controller: without an integral it holds the board
    somewhere within the band, not at its edge.
    """
    ahead_c = margin_c - SLOPE_HORIZON_S * max(slope_c_per_s, 0.0)
    used = (config.guard_margin_c + config.guard_band_c - ahead_c) / config.guard_band_c
    return config.max_pause_s * min(max(used, 0.0), 1.0)


def _reason(
    level: Level,
    target: Level,
    reading: Reading,
    margin_c: float | None,
    critical_margin_c: float | None,
) -> str:
    zone = reading.margin_zone or reading.hottest_zone or "the board"
    if margin_c is None or critical_margin_c is None:
        if plausible(reading.temperature_c, *TEMPERATURE_RANGE_C) is None:
            text = "no temperature can be read"
        else:
            text = "no trip point is known to hold the temperature against"
    else:
        at = plausible(reading.zones.get(zone, reading.temperature_c), *TEMPERATURE_RANGE_C)
        celsius = "" if at is None else f" at {at:.1f} degC"
        if level is Level.CRITICAL or target is Level.CRITICAL:
            text = f"{zone}{celsius} is {_distance(critical_margin_c)} its shutdown trip"
        else:
            text = f"{zone}{celsius} is {_distance(margin_c)} where clocks are cut"
    if reading.throttle == Throttle.YES:
        text += f"; clocks are being cut ({reading.throttle_reason or 'the board says so'})"
    if target is not level:
        text += f"; {level.name} stays until its dwell is over, then {target.name}"
    elif level is Level.CRITICAL:
        text += "; goals are refused until it is cooler than HOT"
    return text + "."


def _distance(margin_c: float) -> str:
    return f"{abs(margin_c):.1f} degC {'below' if margin_c >= 0 else 'above'}"
