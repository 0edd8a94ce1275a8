# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a reading means for the engine: level, draft cap, duty, halt. Pure; raises for no reading.

`step` puts four rules together: `levels` (how near the board is to its trip points), `caps` (the
user's own draft caps), `pacing` (the share of time in which rounds may run) and `advice` (what an
operator could do better).

- At CRITICAL the goal ends at once and new ones are refused, until the board is cooler than HOT.
- At UNKNOWN what was in force is not loosened: the draft cap of the last known level counts too,
  the duty stays, then falls to `unknown_duty`, and CRITICAL stays CRITICAL.
- Mode `report` never paces. Mode `off` does nothing at all: no cap, no pause, no halt.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

from .advice import Advice, advise
from .caps import NO_CAP, CapRule, draft_cap_for, parse_draft_cap
from .levels import LEVEL_NAMES, Level, Standing, asked_for, margins, sentence, settle
from .pacing import Pacing, mean_pause_s, pace
from .reading import THROTTLE_TO_CRITICAL_C, Reading, Throttle, plausible

__all__ = [
    "BOUNDS",
    "NO_CAP",
    "CapRule",
    "Decision",
    "Level",
    "Mode",
    "PolicyConfig",
    "PolicyState",
    "draft_cap_for",
    "parse_draft_cap",
    "step",
]


class Mode(str, enum.Enum):
    """Parameter `watchdog.mode`: report never paces, guard does, off does nothing at all."""

    REPORT = "report"
    GUARD = "guard"
    OFF = "off"


BOUNDS: Mapping[str, tuple[float, float]] = {
    "warm_margin_c": (0.0, 60.0),
    "hot_margin_c": (0.0, 60.0),
    "critical_margin_c": (0.0, 30.0),
    "hysteresis_c": (0.0, 20.0),
    "min_dwell_s": (0.0, 600.0),
    "guard_margin_c": (0.0, 40.0),
    "guard_band_c": (0.5, 40.0),
    "guard_integral_s": (5.0, 3600.0),
    "guard_ahead_s": (0.0, 60.0),
    "max_pause_s": (0.0, 10.0),
    "unknown_duty": (0.02, 1.0),
    "stale_after_s": (0.1, 600.0),
}
"""Smallest and largest value of each number in `PolicyConfig`."""


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Parameters `watchdog.*`. Margins in degC below a trip point.

    warm_margin_c, hot_margin_c: from where clocks are cut. critical_margin_c: from the shutdown.
    guard_margin_c: where `guard` holds the board. At least 0.5 more than the kernel's own
        hysteresis (1.5 where it states none) is kept whatever is set, and up to 1 more with a noisy
        sensor.
    guard_band_c: each degC too hot takes 1/guard_band_c of the time away at once;
        guard_integral_s: as much again within this time. guard_ahead_s: how far ahead it looks
        along the slope of the temperature.
    max_pause_s: longest pause after a round, which bounds the duty from below.
    unknown_duty: the largest duty of `guard` after 10 s without a temperature.
    stale_after_s: a reading older than this is unknown.
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
    guard_margin_c: float = 2.0
    guard_band_c: float = 4.0
    guard_integral_s: float = 50.0
    guard_ahead_s: float = 2.0
    max_pause_s: float = 5.0
    unknown_duty: float = 0.5
    stale_after_s: float = 2.0
    override: Level | None = None

    def __post_init__(self) -> None:
        modes = [mode.value for mode in Mode]
        if self.mode not in modes:
            raise ValueError(
                f"watchdog.mode {self.mode!r} is not one of {', '.join(modes)}; use report to "
                "watch without pacing."
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
        if self.critical_margin_c > self.hot_margin_c + THROTTLE_TO_CRITICAL_C:
            raise ValueError(
                f"watchdog.critical_margin_c {self.critical_margin_c!r} reaches below HOT, which "
                f"begins {self.hot_margin_c + THROTTLE_TO_CRITICAL_C:g} below the shutdown; lower "
                "it, or raise watchdog.hot_margin_c."
            )
        if self.override is not None and not (
            isinstance(self.override, Level) and self.override.name in LEVEL_NAMES
        ):
            raise ValueError(
                f"watchdog.override {self.override!r} is no level to force; the levels are "
                f"{', '.join(LEVEL_NAMES)}, and "
                "watchdog.mode off disables the watchdog."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyState:
    """What `step` carries from one reading to the next. power_mode: the last that was readable."""

    standing: Standing = dataclasses.field(default_factory=Standing)
    pacing: Pacing = dataclasses.field(default_factory=Pacing)
    advice: Advice = dataclasses.field(default_factory=Advice)
    power_mode: str | None = None
    now_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What the engine shall do until the next one.

    draft_cap: 0..7 drafted tokens a round at most. duty: share of time in which rounds may run,
    above 0 and at most 1: after a round of t seconds pause t (1 / duty - 1). pause_s: the mean
    pause that this gives, to report; 0 while `Reading.round_s` is unknown. halt: end the goal and
    refuse new ones. reason: one sentence for the operator. advice: sentences on what would be
    better, or empty.
    """

    level: Level = Level.UNKNOWN
    draft_cap: int = NO_CAP
    pause_s: float = 0.0
    halt: bool = False
    reason: str = ""
    duty: float = 1.0
    advice: str = ""


def step(
    config: PolicyConfig, state: PolicyState, reading: Reading, now_s: float
) -> tuple[PolicyState, Decision]:
    """One poll. `now_s` is CLOCK_MONOTONIC; `state` is `PolicyState()` at first."""
    if config.mode is Mode.OFF:
        return PolicyState(), Decision(Level.DISABLED, reason="watchdog.mode is off.")
    if not math.isfinite(now_s):
        now_s = state.now_s
    distances = margins(reading, now_s, config.stale_after_s)
    throttled = reading.throttle == Throttle.YES
    asked = asked_for(config, state.standing.known, distances, throttled)
    standing = settle(config, state.standing, asked, now_s)
    power_mode = reading.power_mode or state.power_mode
    pacing = Pacing()
    if config.mode is Mode.GUARD:
        trips = reading.trips.get(reading.margin_zone or "")
        pacing = pace(
            config,
            state.pacing,
            distances.throttle_c,
            trips.hysteresis_c if trips else None,
            throttled,
            reading.round_s,
            now_s,
        )
    advice, advised = advise(state.advice, reading, power_mode, pacing.duty, now_s)
    state = PolicyState(standing, pacing, advice, power_mode, now_s)

    level, known = standing.level or Level.UNKNOWN, standing.known
    if config.override is not None:
        level = config.override
        reason = f"watchdog.override forces {level.name}, until it is set empty"
        cap = draft_cap_for(config.draft_cap, level, power_mode)
    else:
        reason = sentence(level, asked, reading, distances)
        cap = draft_cap_for(config.draft_cap, level, power_mode)
        if level is Level.UNKNOWN and known is not None:
            cap = min(cap, draft_cap_for(config.draft_cap, known, power_mode))
    if pacing.duty < 0.995:
        reason += f"; rounds run {pacing.duty:.0%} of the time"
    return state, Decision(
        level=level,
        draft_cap=cap,
        pause_s=mean_pause_s(pacing.duty, reading.round_s),
        halt=level is Level.CRITICAL,
        reason=reason + ".",
        duty=pacing.duty,
        advice=advised,
    )
