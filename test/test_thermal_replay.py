# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated boards, and the policy on some of their hours."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.thermal_physics import (
    STEP_S,
    Plant,
    best_round,
    conductance,
    fan_rpm,
    onset_c,
    round_of,
    voltage,
)
from benchmarks.thermal_plants import (
    AGX_ORIN,
    BOARDS,
    ORIN_NANO,
    SCENARIOS,
    THOR,
    Board,
    Scenario,
)
from benchmarks.thermal_replay import (
    CAP_ONLY,
    GUARD,
    best_constant,
    constant,
    detailed,
    hours,
    in_lower_mode,
    simulate,
    variations,
    watchdog,
)
from gemma_mtp_ros.telemetry.policy import Level, PolicyConfig

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)


@pytest.mark.parametrize(
    ("board", "published"),
    [(ORIN_NANO, (22.0, 20.9, 20.2)), (AGX_ORIN, (48.2, 47.0, 46.1)), (THOR, (82.7, 81.4, 80.4))],
    ids=lambda value: value.name if isinstance(value, Board) else "",
)
def test_power_by_draft_length_is_as_fitted(board: Board, published: tuple[float, ...]) -> None:
    watts = [board.pause_w + round_of(board, 1.0, 1.0, k).extra_w for k in (0, 4, 8)]
    assert watts == pytest.approx(published, rel=0.01)


@boards
def test_drafting_saves_energy_and_slow_clocks_save_power(board: Board) -> None:
    plain, drafted = (round_of(board, 1.0, 1.0, k) for k in (0, 8))
    joules = [(board.pause_w + r.extra_w) * r.round_s / r.tokens for r in (plain, drafted)]
    assert 2.5 < joules[0] / joules[1] < 4.0
    slow = best_round(board, 0.6, 1.0, 7)
    fast = best_round(board, 1.0, 1.0, 7)
    assert slow.extra_w / fast.extra_w < 0.75
    assert slow.extra_w * slow.round_s / slow.tokens < fast.extra_w * fast.round_s / fast.tokens
    assert voltage(board, 0.2) == board.voltage_floor
    assert voltage(board, 1.0) == 1.0


def test_the_nano_has_the_published_balance() -> None:
    """45.3 degC at 6.6 W and 65.9 at 20.0 W, with the fan pinned."""
    resistance = ORIN_NANO.rds + 1 / conductance(ORIN_NANO, 6000.0)
    assert resistance == pytest.approx((65.9 - 45.3) / (20.0 - 6.6), rel=0.01)


def test_thor_throttles_in_a_warm_room_with_its_stock_fan() -> None:
    assert 20.0 < onset_c(THOR, BY_NAME["+1"]) < 27.0


def test_the_fan_follows_its_stock_curve() -> None:
    assert [fan_rpm(ORIN_NANO, c) for c in (20, 35, 54.5, 80, 94.5, 99)] == [
        0.0,
        0.0,
        2000.0,
        4000.0,
        5000.0,
        6000.0,
    ]


@boards
def test_the_exact_step_agrees_with_small_ones(board: Board) -> None:
    plant = Plant(board, Scenario("plain", None, 1, ambient_c=20.0, noise_c=0.0))
    plant._rpm = board.fan[-1][1]
    to_air = conductance(board, plant._rpm)
    die_c, sink_c = plant.die_c, plant.sink_c
    power_w, small_s = 3.0 * board.pause_w, 1e-4
    for _ in range(4):
        plant._heat(power_w)
    for _ in range(round(4 * STEP_S / small_s)):
        flow_w = (die_c - sink_c) / board.rds
        die_c += (power_w - flow_w) / board.cd * small_s
        sink_c += (flow_w - (sink_c - 20.0) * to_air) / board.cs * small_s
    assert plant.die_c == pytest.approx(die_c, abs=0.01)
    assert plant.sink_c == pytest.approx(sink_c, abs=0.01)


def test_the_ripple_of_the_die_agrees_with_small_steps() -> None:
    board, duty, round_s, extra_w = ORIN_NANO, 0.3, 0.2, 14.0
    plant = Plant(board, BY_NAME["+1"])
    above_c, seen = 0.0, []
    period = round(round_s / duty * 1000)
    for index in range(30 * period):
        power_w = extra_w if index % period < round_s * 1000 else 0.0
        above_c += (power_w - above_c / board.rds) / board.cd * 1e-3
        if index >= 29 * period:
            seen.append(above_c)
    assert plant._ripple(extra_w, round_s, duty) == pytest.approx(max(seen) - min(seen), rel=0.02)


def governed(celsius: list[float]) -> Iterator[int]:
    plant = Plant(AGX_ORIN, BY_NAME["+1"])
    for value in celsius:
        plant._govern(value)
        yield plant._state


def test_the_governor_steps_up_while_warming_and_down_below_its_hysteresis_alone() -> None:
    readings = [98.9, 99.0, 99.5, 99.4, 99.6, 98.0, 97.6, 97.4, 97.0, 98.5]
    assert list(governed(readings)) == [0, 1, 2, 2, 3, 3, 3, 2, 1, 0]


def test_a_board_within_the_hysteresis_stays_throttled() -> None:
    assert list(governed([99.0, *[98.0] * 50]))[-1] == 1


@boards
def test_onset_is_where_throttling_begins(board: Board) -> None:
    for over, throttled in ((-1.0, False), (1.0, True)):
        scenario = dataclasses.replace(BY_NAME["+1"], over_onset_c=over)
        assert (simulate(board, scenario, constant(1.0)).throttled_s > 0) == throttled


def test_a_board_past_its_shutdown_is_off() -> None:
    hour = simulate(ORIN_NANO, BY_NAME["blocked fan"], constant(1.0))
    assert hour.shut_down
    assert hour.seen[-1].tokens == 0
    assert hour.seen[-1].joules == 0


def test_an_hour_is_the_same_each_time() -> None:
    first, second = (
        simulate(AGX_ORIN, BY_NAME["bursty"], watchdog(AGX_ORIN, GUARD)) for _ in range(2)
    )
    assert first == second


def test_guard_keeps_the_clocks_where_report_loses_them() -> None:
    scenario = BY_NAME["+5"]
    guarded = simulate(ORIN_NANO, scenario, watchdog(ORIN_NANO, GUARD))
    reported = simulate(ORIN_NANO, scenario, watchdog(ORIN_NANO, PolicyConfig()))
    assert guarded.throttled_s == 0
    assert reported.throttled_s > 1800
    assert all(decision.duty == 1.0 for decision in reported.decisions)
    assert guarded.tokens_per_s < reported.tokens_per_s


def test_fewer_drafts_do_not_cool() -> None:
    hour = simulate(AGX_ORIN, BY_NAME["+3"], watchdog(AGX_ORIN, CAP_ONLY))
    assert hour.throttled_s > 1800


@boards
def test_guard_saves_a_board_whose_fan_stops(board: Board) -> None:
    hour = simulate(board, BY_NAME["blocked fan"], watchdog(board, GUARD))
    assert hour.throttled_s == 0
    assert hour.peak_c < board.throttle_c
    assert not any(decision.level is Level.CRITICAL for decision in hour.decisions)


def test_the_suggested_mode_is_faster() -> None:
    scenario = BY_NAME["+10"]
    guarded = simulate(ORIN_NANO, scenario, watchdog(ORIN_NANO, GUARD))
    assert "25W" in guarded.decisions[-1].advice
    assert in_lower_mode(ORIN_NANO, scenario).tokens_per_s > guarded.tokens_per_s


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_guard_holds_boards_it_was_not_tuned_on() -> None:
    for board, scenario in variations(seed=11):
        hour = simulate(board, scenario, watchdog(board, GUARD))
        assert hour.throttled_s == 0, (board, scenario)


@pytest.mark.slow
@pytest.mark.timeout(600)
@boards
def test_guard_is_near_the_best_constant_duty(board: Board) -> None:
    for name, least in (("+1", 0.9), ("+10", 0.85)):
        found = hours(board, BY_NAME[name])
        assert found["constant"].throttled_s == found["guard"].throttled_s == 0
        assert found["guard"].tokens_per_s >= least * found["constant"].tokens_per_s
    table, rows = detailed({(board.name, "+10"): found})
    assert table.row_count == 4
    assert len(rows) == 20


@boards
def test_no_constant_duty_is_lost_below_the_onset(board: Board) -> None:
    assert best_constant(board, BY_NAME["below"]) == 1.0
