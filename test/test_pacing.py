# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The controller behind the duty: its rules, and what holds under any trace."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.telemetry import pacing
from gemma_mtp_ros.telemetry.pacing import Pacing, least_duty, mean_pause_s, pace, wanted_margin_c
from gemma_mtp_ros.telemetry.policy import PolicyConfig

PROPERTY = settings(max_examples=200, deadline=None)
CONFIG = PolicyConfig(mode="guard")


def through(
    margins: list[float | None],
    config: PolicyConfig = CONFIG,
    throttled: bool = False,
    period_s: float = 0.5,
    state: Pacing | None = None,
) -> list[Pacing]:
    """The states after readings that come one a period."""
    state = state or Pacing()
    begin_s = 100.0 if state.at_s is None else state.at_s + period_s
    states = []
    for index, margin_c in enumerate(margins):
        now_s = begin_s + index * period_s
        state = pace(config, state, margin_c, 1.5, throttled, None, now_s)
        states.append(state)
    return states


@pytest.mark.parametrize(
    ("margin_c", "hysteresis_c", "noise_c", "wanted"),
    [
        (2.0, None, 0.0, 2.0),
        (2.0, 1.5, 0.2, 2.0),
        (0.0, 1.5, 0.0, 2.0),  # never within the kernel's own hysteresis
        (2.0, 4.0, 0.0, 4.5),
        (6.0, 4.0, 0.0, 6.0),
        (2.0, 1.5, 0.3, 2.6),
        (2.0, 1.5, 5.0, 3.0),
        (2.0, math.nan, 0.0, 2.0),
        (2.0, -3.0, 0.0, 2.0),
    ],
)
def test_the_wanted_margin(
    margin_c: float, hysteresis_c: float | None, noise_c: float, wanted: float
) -> None:
    assert wanted_margin_c(margin_c, hysteresis_c, noise_c) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("max_pause_s", "round_s", "least"),
    [(1.0, 0.25, 0.2), (5.0, None, 0.02), (10.0, 0.01, 0.02), (0.0, 0.1, 1.0), (1.0, -1.0, 0.02)],
)
def test_the_longest_pause_bounds_the_duty(
    max_pause_s: float, round_s: float | None, least: float
) -> None:
    assert least_duty(max_pause_s, round_s) == pytest.approx(least)


def test_not_knowing_keeps_the_longest_pause() -> None:
    """Paced hard while idle, no round known; then the sensor vanishes and a goal runs."""
    config = PolicyConfig(mode="guard", max_pause_s=5.0)
    state = Pacing(duty=0.02, at_s=0.0)
    assert pace(config, state, None, None, False, 2.0, 0.5).duty == pytest.approx(2.0 / 7.0)


def test_the_mean_pause_of_a_round() -> None:
    assert mean_pause_s(0.25, 0.1) == pytest.approx(0.3)
    assert mean_pause_s(1.0, 0.1) == 0.0
    assert mean_pause_s(0.5, None) == mean_pause_s(0.5, math.nan) == 0.0


def test_a_rising_temperature_is_acted_on_before_the_margin_is_used_up() -> None:
    rising = through([12.0 - 0.5 * index for index in range(20)])
    assert rising[-1].recent[-1] == 2.5
    assert rising[-1].slope_c_per_s == pytest.approx(1.0, abs=0.2)
    assert rising[-1].duty < 0.95
    assert through([2.5] * 20)[-1].duty == 1.0


def test_the_integral_goes_on_until_the_margin_is_there() -> None:
    duties = [state.duty for state in through([1.0] * 240)]
    assert duties[0] == pytest.approx(0.75)
    assert duties[-1] < 0.5
    assert all(later <= earlier for earlier, later in itertools.pairwise(duties))


def test_a_long_overshoot_winds_nothing_up() -> None:
    hot = through([-3.0] * 2000)[-1]
    assert hot.integral == pytest.approx(1 - pacing.MIN_DUTY)
    assert hot.duty == pytest.approx(pacing.MIN_DUTY)
    cool = through([6.0] * 400, state=hot)
    assert cool[-1].duty == 1.0
    assert next(i for i, state in enumerate(cool) if state.duty > 0.9) < 320


def test_an_idle_minute_is_not_forgetting() -> None:
    held = through([1.0] * 240)[-1]
    idle = through([14.0] * 80, state=held)[-1]
    assert idle.integral > held.integral - 0.3
    assert idle.duty == 1.0


def test_throttling_counts_as_too_hot_on_a_warm_board_alone() -> None:
    assert through([10.0] * 20, throttled=True)[-1].duty < 0.85
    assert through([40.0] * 20, throttled=True)[-1].duty == 1.0


def test_throttling_without_a_temperature_takes_the_safe_duty_at_once() -> None:
    assert through([None], throttled=True)[0].duty == CONFIG.unknown_duty


def test_a_gap_is_neither_slope_nor_time_to_integrate() -> None:
    held = through([1.0] * 10)[-1]
    after = pace(CONFIG, held, -1.0, 1.5, False, None, (held.at_s or 0.0) + 3600.0)
    assert after.slope_c_per_s == 0.0
    assert after.integral - held.integral <= 3.0 * pacing.INTEGRATED_S / (4.0 * 50.0) + 1e-9


@pytest.mark.parametrize("deviation_c", [0.1, 0.3, 0.6])
def test_the_noise_is_estimated(deviation_c: float) -> None:
    draw = random.Random(1)
    drifting = [20.0 - 0.01 * i + draw.gauss(0, deviation_c) for i in range(1000)]
    assert through(list(drifting))[-1].noise_c == pytest.approx(deviation_c, rel=0.25)


margins = st.none() | st.floats(-15, 80)
traces = st.lists(st.tuples(st.floats(0, 12), margins, st.booleans()), max_size=30)
configs = st.builds(
    PolicyConfig,
    mode=st.just("guard"),
    guard_margin_c=st.floats(0, 10),
    guard_band_c=st.floats(0.5, 40),
    guard_integral_s=st.floats(5, 600),
    guard_ahead_s=st.floats(0, 20),
    max_pause_s=st.floats(0, 10),
    unknown_duty=st.floats(0.02, 1),
)


def after(
    config: PolicyConfig, trace: list[tuple[float, float | None, bool]]
) -> tuple[Pacing, float]:
    state, now_s = Pacing(), 0.0
    for gap_s, margin_c, throttled in trace:
        now_s += gap_s
        state = pace(config, state, margin_c, 1.5, throttled, 0.1, now_s)
    return state, now_s


@PROPERTY
@given(configs, traces, st.floats(-15, 80), st.floats(-15, 80), st.floats(0, 12), st.booleans())
def test_a_hotter_board_never_gets_a_larger_duty(
    config: PolicyConfig,
    trace: list[tuple[float, float | None, bool]],
    one: float,
    other: float,
    gap_s: float,
    throttled: bool,
) -> None:
    state, now_s = after(config, trace)
    hotter, cooler = (
        pace(config, state, margin_c, 1.5, throttled, 0.1, now_s + gap_s)
        for margin_c in sorted((one, other))
    )
    assert hotter.duty <= cooler.duty
    assert cooler.integral <= hotter.integral


@PROPERTY
@given(configs, traces)
def test_duty_and_integral_stay_within_their_clamps(
    config: PolicyConfig, trace: list[tuple[float, float | None, bool]]
) -> None:
    state, _ = after(config, trace)
    floor = least_duty(config.max_pause_s, 0.1)
    assert floor - 1e-9 <= state.duty <= 1
    assert 0 <= state.integral <= 1 - floor


@PROPERTY
@given(configs, traces, st.lists(st.booleans(), min_size=1, max_size=30))
def test_not_knowing_never_raises_the_duty(
    config: PolicyConfig, trace: list[tuple[float, float | None, bool]], signs: list[bool]
) -> None:
    state, now_s = after(config, trace)
    for index, throttled in enumerate(signs):
        blind = pace(config, state, None, None, throttled, 0.1, now_s + index)
        assert blind.duty <= state.duty
        state = blind


@PROPERTY
@given(configs, traces)
def test_a_cool_board_gets_all_the_time_again(
    config: PolicyConfig, trace: list[tuple[float, float | None, bool]]
) -> None:
    state, now_s = after(config, trace)
    for _ in range(400):
        now_s += 0.5
        state = pace(config, state, 60.0, 1.5, False, 0.1, now_s)
    assert state.duty == 1.0


def test_the_state_is_a_value() -> None:
    state = through([1.0] * 5)[-1]
    again = dataclasses.replace(state)
    assert pace(CONFIG, state, 1.0, 1.5, False, 0.1, 200.0) == pace(
        CONFIG, again, 1.0, 1.5, False, 0.1, 200.0
    )
