# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The share of time in which rounds may run, so that the board stays below its trip point. Pure.

A controller with three parts on e, by how much the margin is smaller than wanted:

    paused share = (e + ahead * slope) / band + integral,   0 <= integral <= 1 - floor
    integral    += clip(e) * dt / (band * integral_s)

The slope lets it act before the margin is used up: the die warms within seconds. The integral
finds the share that this ambient, fan and text need: the heat sink takes minutes. Its clamp is
what keeps it from overshooting into throttling after a long warm-up or idle time.

The margin is kept above the kernel's own hysteresis: a throttle once tripped is released only below
that, and a board held within it would stay throttled for good.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

KERNEL_HYSTERESIS_C = 1.5
"""Assumed where the kernel does not state how far below the trip it releases the clocks."""

BEYOND_HYSTERESIS_C = 0.5
"""The margin is at least this much larger than the kernel's hysteresis."""

NOISE_FREE_C = 0.2
"""A sensor with a standard deviation up to this needs no more margin than a perfect one."""

NOISE_MARGIN = 6.0
"""Margin added for each degC of standard deviation beyond that ..."""

NOISE_MARGIN_MAX_C = 1.0
"""... up to this."""

NOISE_WEIGHT = 0.02
"""Weight of a new sample in the moving average of the noise."""

SLOPE_WEIGHT = 0.1
"""Weight of a new slope in its moving average; sensors step by up to 0.5 degC."""

SLOPE_MAX_C_PER_S = 2.0
"""Steeper is a sensor that came or went."""

GAP_S = 10.0
"""Readings further apart than this say nothing about a slope."""

INTEGRATED_S = 2.0
"""At most this much time is integrated at once."""

INTEGRATED_BELOW_C = 1.0
"""Colder than wanted by more than this counts as this much in the integral: an idle minute between
goals does not make the controller forget what the board needs."""

INTEGRATED_ABOVE_C = 4.0
"""The same, hotter."""

THROTTLED_C = 1.0
"""While a warm board cuts its clocks it counts as at least this much too hot."""

UNKNOWN_AFTER_S = 10.0
"""Without a temperature the last share stays for this long, then the safe one is taken."""

MIN_DUTY = 0.02
"""The least share of time in which rounds run, whatever the parameters say."""


class PacingConfig(Protocol):
    """What pacing needs of `PolicyConfig`."""

    @property
    def guard_margin_c(self) -> float: ...
    @property
    def guard_band_c(self) -> float: ...
    @property
    def guard_integral_s(self) -> float: ...
    @property
    def guard_ahead_s(self) -> float: ...
    @property
    def max_pause_s(self) -> float: ...
    @property
    def unknown_duty(self) -> float: ...
    @property
    def warm_margin_c(self) -> float: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Pacing:
    """What is carried from one reading to the next.

    duty: share of time in which rounds may run. integral: see above. slope_c_per_s: of the
    temperature. noise_c: standard deviation of the sensor. recent: the last two margins, newest
    last. at_s: when the newest was known; None before.
    """

    duty: float = 1.0
    integral: float = 0.0
    slope_c_per_s: float = 0.0
    noise_c: float = 0.0
    recent: tuple[float, ...] = ()
    at_s: float | None = None


def pace(
    config: PacingConfig,
    state: Pacing,
    margin_c: float | None,
    hysteresis_c: float | None,
    throttled: bool,
    round_s: float | None,
    now_s: float,
) -> Pacing:
    """One reading. A smaller margin never gives a larger duty.

    margin_c: distance from where clocks are cut; None: unknown. hysteresis_c: the kernel's own.
    """
    floor = least_duty(config.max_pause_s, round_s)
    if margin_c is None:
        return _blind(config, state, throttled, floor, now_s)
    elapsed_s = GAP_S + 1.0 if state.at_s is None else now_s - state.at_s
    slope = 0.0
    if 0.0 < elapsed_s <= GAP_S and state.recent:
        slope = (state.recent[-1] - margin_c) / elapsed_s
        slope = min(max(slope, -SLOPE_MAX_C_PER_S), SLOPE_MAX_C_PER_S)
        slope = state.slope_c_per_s + SLOPE_WEIGHT * (slope - state.slope_c_per_s)
    # The noise up to the last reading: this one's own would make a colder one pause more.
    error_c = wanted_margin_c(config.guard_margin_c, hysteresis_c, state.noise_c) - margin_c
    if throttled and margin_c <= config.warm_margin_c:
        error_c = max(error_c, THROTTLED_C)
    integrated_s = min(max(elapsed_s, 0.0), INTEGRATED_S) if state.at_s is not None else 0.0
    clipped_c = min(max(error_c, -INTEGRATED_BELOW_C), INTEGRATED_ABOVE_C)
    integral = state.integral + clipped_c * integrated_s / (
        config.guard_band_c * config.guard_integral_s
    )
    integral = min(max(integral, 0.0), 1.0 - floor)
    paused = (error_c + config.guard_ahead_s * slope) / config.guard_band_c + integral
    return Pacing(
        duty=1.0 - min(max(paused, 0.0), 1.0 - floor),
        integral=integral,
        slope_c_per_s=slope,
        noise_c=_noise(state, margin_c, elapsed_s),
        recent=(*state.recent[-1:], margin_c),
        at_s=now_s,
    )


def least_duty(max_pause_s: float, round_s: float | None) -> float:
    """The duty at which the pause after a round is `max_pause_s`; 0.02 while no round is known."""
    if round_s is None or not 0.0 < round_s < 1e4:
        return MIN_DUTY
    return max(round_s / (round_s + max_pause_s), MIN_DUTY)


def wanted_margin_c(guard_margin_c: float, hysteresis_c: float | None, noise_c: float) -> float:
    """Where the board is held, degC below where clocks are cut."""
    if hysteresis_c is None or not 0.0 <= hysteresis_c <= 20.0:
        hysteresis_c = KERNEL_HYSTERESIS_C
    for_noise_c = min(max(NOISE_MARGIN * (noise_c - NOISE_FREE_C), 0.0), NOISE_MARGIN_MAX_C)
    return max(guard_margin_c, hysteresis_c + BEYOND_HYSTERESIS_C) + for_noise_c


def mean_pause_s(duty: float, round_s: float | None) -> float:
    """Mean pause after a round of `round_s`; 0 while no round is known."""
    if round_s is None or not 0.0 < round_s < 1e4:
        return 0.0
    return round_s * (1.0 / duty - 1.0)


def _blind(
    config: PacingConfig, state: Pacing, throttled: bool, floor: float, now_s: float
) -> Pacing:
    """Without a temperature: the last duty for a while, then a safe one, never a larger one."""
    at_s = now_s if state.at_s is None else state.at_s
    duty = state.duty
    if throttled or now_s - at_s >= UNKNOWN_AFTER_S:
        duty = min(duty, max(config.unknown_duty, floor))
    duty = max(duty, floor)
    return dataclasses.replace(state, duty=duty, slope_c_per_s=0.0, at_s=at_s)


def _noise(state: Pacing, margin_c: float, elapsed_s: float) -> float:
    """Moving average of the standard deviation, from second differences: slow changes drop out.

    The mean size of x0 - 2 x1 + x2 is sqrt(6) sqrt(2 / pi) = 1.954 times the standard deviation of
    independent normal errors.
    """
    if len(state.recent) < 2 or not 0.0 < elapsed_s <= GAP_S:
        return state.noise_c
    before, last = state.recent
    sample = min(abs(margin_c - 2.0 * last + before) / 1.954, 2.0)
    return state.noise_c + NOISE_WEIGHT * (sample - state.noise_c)
