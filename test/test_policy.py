# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Levels, caps, pauses and halts, rule by rule and over arbitrary traces."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.telemetry.levels import Standing
from gemma_mtp_ros.telemetry.policy import (
    BOUNDS,
    NO_CAP,
    CapRule,
    Decision,
    Level,
    Mode,
    PolicyConfig,
    PolicyState,
    draft_cap_for,
    parse_draft_cap,
    step,
)
from gemma_mtp_ros.telemetry.reading import Reading, Throttle, Trips, summarise

PROPERTY = settings(max_examples=200, deadline=None)

ORIN = Trips(throttle_c=99.0, critical_c=104.5)
AT_ONCE = PolicyConfig(min_dwell_s=0.0)


def at(
    celsius: float | None,
    throttle: Throttle = Throttle.NO,
    power_mode: str | None = None,
    trips: Trips = ORIN,
) -> Reading:
    heat = summarise({"cpu-thermal": celsius}, {"cpu-thermal": trips})
    return Reading(
        stamp_s=0.0,  # `decide` sets it
        wall_s=0.0,
        source="sysfs",
        zones={"cpu-thermal": celsius},
        trips={"cpu-thermal": trips},
        throttle=throttle,
        power_mode=power_mode,
        **dataclasses.asdict(heat),
    )


def decide(
    config: PolicyConfig, state: PolicyState, reading: Reading, now_s: float
) -> tuple[PolicyState, Decision]:
    """A poll of a reading made just now."""
    return step(config, state, dataclasses.replace(reading, stamp_s=now_s), now_s)


def run(config: PolicyConfig, readings: Iterable[Reading], period_s: float = 0.5) -> list[Decision]:
    """The decisions on readings that come one a period."""
    state = PolicyState()
    decisions = []
    for index, reading in enumerate(readings):
        state, decision = decide(config, state, reading, 100.0 + index * period_s)
        decisions.append(decision)
    return decisions


def levels(config: PolicyConfig, celsius: Iterable[float | None]) -> list[Level]:
    return [decision.level for decision in run(config, [at(c) for c in celsius])]


@pytest.mark.parametrize(
    ("celsius", "level"),
    [
        (-10.0, Level.NOMINAL),
        (51.7, Level.NOMINAL),
        (83.9, Level.NOMINAL),
        (84.0, Level.WARM),
        (93.9, Level.WARM),
        (94.0, Level.HOT),
        (101.4, Level.HOT),
        (101.5, Level.CRITICAL),
        (149.0, Level.CRITICAL),
        (None, Level.UNKNOWN),
    ],
)
def test_levels_on_orin(celsius: float | None, level: Level) -> None:
    assert levels(PolicyConfig(), [celsius]) == [level]


def test_levels_on_thor_follow_its_own_trips() -> None:
    thor = Trips(critical_c=114.5)
    seen = [
        run(PolicyConfig(), [at(celsius, trips=thor)])[0].level
        for celsius in (93.9, 94.0, 103.9, 104.0, 111.4, 111.5)
    ]
    assert seen == [1, 2, 2, 3, 3, 4]


def test_no_trip_point_is_unknown() -> None:
    decision = run(PolicyConfig(), [at(60.0, trips=Trips())])[0]
    assert decision.level is Level.UNKNOWN
    assert decision.reason == "no trip point is known to hold the temperature against."


def test_hysteresis_downwards_only() -> None:
    assert levels(AT_ONCE, [94.0, 92.1, 91.9, 84.0, 82.1, 81.9, 83.9, 84.0]) == [
        Level.HOT,
        Level.HOT,
        Level.WARM,
        Level.WARM,
        Level.WARM,
        Level.NOMINAL,
        Level.NOMINAL,
        Level.WARM,
    ]


def test_a_change_waits_for_the_dwell() -> None:
    config = PolicyConfig(min_dwell_s=2.0)  # four polls
    assert levels(config, [50, 95, 95, 95, 95, 50, 50, 50, 50]) == [1, 1, 1, 1, 3, 3, 3, 3, 1]


def test_critical_does_not_wait_and_halts_at_once() -> None:
    before, critical = run(PolicyConfig(min_dwell_s=600.0), [at(50.0), at(101.5)])
    assert not before.halt
    assert (critical.level, critical.halt) == (Level.CRITICAL, True)
    assert "cpu-thermal at 101.5 degC is 3.0 degC below its shutdown trip" in critical.reason


def test_critical_is_left_when_cooler_than_hot_and_after_the_dwell() -> None:
    config = PolicyConfig(min_dwell_s=1.0)
    decisions = run(config, [at(c) for c in (102, 98, 98, 98, 92.1, 91.9, 91.9, 80)])
    assert [d.halt for d in decisions] == [True, True, True, True, True, False, False, False]
    assert [d.level for d in decisions][5:] == [Level.WARM, Level.WARM, Level.NOMINAL]


def test_critical_has_hysteresis_of_its_own() -> None:
    config = PolicyConfig(min_dwell_s=0.0, critical_margin_c=10.0, hot_margin_c=5.0)
    levels = [d.level for d in run(config, [at(c) for c in (94.6, 94.4, 94.6, 93.0, 91.9)])]
    assert levels[:4] == [Level.CRITICAL] * 4
    assert levels[4] < Level.CRITICAL


def test_critical_outlasts_a_sensor_that_went_silent() -> None:
    decisions = run(AT_ONCE, [at(102), at(None), at(None), at(50)])
    assert [d.halt for d in decisions] == [True, True, True, False]


def test_throttling_outranks_the_temperature() -> None:
    decisions = run(AT_ONCE, [at(50, Throttle.YES), at(None, Throttle.YES), at(50)])
    assert [d.level for d in decisions] == [Level.HOT, Level.HOT, Level.NOMINAL]
    assert "clocks are being cut" in decisions[0].reason
    assert run(AT_ONCE, [at(103, Throttle.YES)])[0].level is Level.CRITICAL


def test_unknown_throttling_alone_changes_nothing() -> None:
    assert run(AT_ONCE, [at(50, Throttle.UNKNOWN)])[0].level is Level.NOMINAL


def test_unknown_does_not_loosen_the_cap() -> None:
    config = PolicyConfig(min_dwell_s=0.0, draft_cap=parse_draft_cap(["HOT=2", "UNKNOWN=5"]))
    decisions = run(config, [at(None), at(50), at(None), at(95), at(None), at(None), at(50)])
    assert [d.draft_cap for d in decisions] == [5, 7, 5, 2, 2, 2, 7]
    assert decisions[4].level is Level.UNKNOWN


def test_an_unreadable_power_mode_does_not_loosen_the_cap() -> None:
    config = PolicyConfig(draft_cap=parse_draft_cap(["NOMINAL@15W=1"]))
    decisions = run(config, [at(50), at(50, power_mode="15W"), at(50), at(50, power_mode="25W")])
    assert [d.draft_cap for d in decisions] == [7, 1, 1, 7]


def test_a_mode_change_changes_the_cap_within_the_poll() -> None:
    config = PolicyConfig(min_dwell_s=600, draft_cap=parse_draft_cap(["NOMINAL@7W=0"]))
    decisions = run(config, [at(50, power_mode="25W"), at(50, power_mode="7W")])
    assert [d.draft_cap for d in decisions] == [7, 0]


def test_report_never_paces_and_guard_does() -> None:
    for celsius in (50.0, 95.0, 99.0, 103.0):
        report = run(PolicyConfig(mode="report"), [at(celsius)] * 20)[-1]
        assert (report.duty, report.pause_s) == (1.0, 0.0)
    guard = [run(PolicyConfig(mode="guard"), [at(c)])[0].duty for c in (50, 96.9, 98.5, 100, 103)]
    assert guard == pytest.approx([1.0, 1.0, 0.625, 0.25, 0.02])


def test_the_pause_is_what_the_duty_makes_of_a_round() -> None:
    reading = dataclasses.replace(at(98.5), round_s=0.08)
    decision = run(PolicyConfig(mode="guard"), [reading])[0]
    assert decision.duty == 0.625
    assert decision.pause_s == pytest.approx(0.048)
    assert decision.reason == (
        "cpu-thermal at 98.5 degC is 0.5 degC below where clocks are cut; "
        "rounds run 62% of the time."
    )


def test_guard_with_nothing_known_takes_the_safe_duty() -> None:
    config = PolicyConfig(mode="guard", unknown_duty=0.6)
    decisions = run(config, [at(98.5), *[at(None)] * 30, at(50.0)])
    assert [d.duty for d in decisions[:21]] == [0.625] * 20 + [0.6]
    assert decisions[-1].duty == 1.0
    assert run(config, [at(None)] * 21)[-1].duty == 0.6


def test_a_stale_reading_is_unknown() -> None:
    config = PolicyConfig(stale_after_s=2.0)
    old = dataclasses.replace(at(103.0), stamp_s=10.0)
    assert step(config, PolicyState(), old, 12.0)[1].level is Level.CRITICAL
    decision = step(config, PolicyState(), old, 12.5)[1]
    assert decision.level is Level.UNKNOWN
    assert decision.reason == "the last reading is 2.5 s old."
    lost = dataclasses.replace(old, stamp_s=math.nan)
    assert step(config, PolicyState(), lost, 12.0)[1].reason == (
        "the last reading is of an unknown time."
    )


def test_off_is_disabled_and_forgets() -> None:
    off = PolicyConfig(mode="off", draft_cap=parse_draft_cap(["CRITICAL=0"]))
    state, _ = decide(AT_ONCE, PolicyState(), at(103), 1.0)
    state, decision = decide(off, state, at(103), 1.5)
    assert state == PolicyState()
    assert decision == Decision(Level.DISABLED, 7, 0.0, False, "watchdog.mode is off.", 1.0, "")


def test_override_acts_without_touching_what_is_known() -> None:
    rules = parse_draft_cap(["HOT=2"])
    config = PolicyConfig(draft_cap=rules)
    state, decision = decide(config, PolicyState(), at(50), 1.0)
    state, decision = decide(dataclasses.replace(config, override=Level.HOT), state, at(50), 1.5)
    assert (decision.level, decision.draft_cap, decision.halt) == (Level.HOT, 2, False)
    critical = dataclasses.replace(config, override=Level.CRITICAL)
    assert decide(critical, state, at(50), 2.0)[1].halt
    state, decision = decide(config, state, at(50), 2.5)
    assert (decision.level, decision.draft_cap) == (Level.NOMINAL, 7)


def test_reasons_are_sentences() -> None:
    assert run(PolicyConfig(), [at(51.7)])[0].reason == (
        "cpu-thermal at 51.7 degC is 47.3 degC below where clocks are cut."
    )
    assert run(PolicyConfig(), [at(None)])[0].reason == "no temperature can be read."
    waiting = run(PolicyConfig(), [at(50), at(99.5)])[1].reason
    assert waiting == (
        "cpu-thermal at 99.5 degC is 0.5 degC above where clocks are cut; "
        "NOMINAL stays until its dwell is over, then HOT."
    )


def test_parse_draft_cap() -> None:
    assert parse_draft_cap(["HOT=2", " hot@15W = 1 ", "", "UNKNOWN=0", "WARM@MAXN_SUPER=7"]) == (
        CapRule(Level.HOT, None, 2),
        CapRule(Level.HOT, "15W", 1),
        CapRule(Level.UNKNOWN, None, 0),
        CapRule(Level.WARM, "MAXN_SUPER", 7),
    )
    assert parse_draft_cap([""]) == parse_draft_cap([]) == ()


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("HOT=8", "no integer from 0 to 7"),
        ("HOT=-1", "no integer from 0 to 7"),
        ("HOT=two", "no integer from 0 to 7"),
        ("HOT=1.5", "no integer from 0 to 7"),
        ("HOT=٣", "no integer from 0 to 7"),
        ("BOILING=2", "names no level; the levels are UNKNOWN, NOMINAL, WARM, HOT, CRITICAL"),
        ("DISABLED=2", "names no level"),
        ("3=2", "names no level"),
        ("HOT", "not of the form LEVEL=CAP or LEVEL@MODE=CAP"),
        ("HOT=", "not of the form"),
        ("=2", "not of the form"),
        ("@15W=2", "not of the form"),
        ("HOT@=2", "not of the form"),
        ("HOT@ =2", "not of the form"),
        ("HOT=1=2", "not of the form"),
        ("HOT@a@b=2", "not of the form"),
        ("\0", "not of the form"),
    ],
)
def test_a_bad_entry_is_named_with_bound_and_remedy(entry: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"watchdog\.draft_cap entry") as caught:
        parse_draft_cap(["HOT=2", entry])
    message = str(caught.value)
    assert repr(entry) in message
    assert problem in message
    assert message.endswith("; write for example HOT=2, or HOT@15W=1 for one power mode.")


def test_a_huge_entry_is_shortened() -> None:
    with pytest.raises(ValueError, match="watchdog") as caught:
        parse_draft_cap(["x@" * 500_000])
    assert len(str(caught.value)) < 300


@PROPERTY
@given(st.lists(st.text(max_size=12) | st.sampled_from(["HOT=2", "WARM@7W=0"]), max_size=4))
def test_parsing_gives_rules_or_one_sentence(entries: list[str]) -> None:
    try:
        rules = parse_draft_cap(entries)
    except ValueError as error:
        assert "watchdog.draft_cap entry" in str(error)  # noqa: PT017
    else:
        assert all(0 <= rule.cap <= NO_CAP for rule in rules)


def test_the_smallest_matching_cap_counts() -> None:
    rules = parse_draft_cap(["HOT=3", "HOT@15W=1", "HOT@15W=2", "WARM=5"])
    assert draft_cap_for(rules, Level.HOT, None) == 3
    assert draft_cap_for(rules, Level.HOT, "15w") == 1
    assert draft_cap_for(rules, Level.HOT, "MODE_15W") == 1
    assert draft_cap_for(rules, Level.HOT, "MAXN") == 3
    assert draft_cap_for(rules, Level.WARM, "15W") == 5
    assert draft_cap_for(rules, Level.NOMINAL, "15W") == 7
    assert draft_cap_for([], Level.HOT, "15W") == 7


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"mode": "protect"}, "watchdog.mode 'protect' is not one of report, guard, off; use"),
        ({"mode": None}, "watchdog.mode None is not one of"),
        ({"hot_margin_c": math.nan}, "watchdog.hot_margin_c nan is outside 0 to 60; set it"),
        ({"min_dwell_s": -1.0}, "watchdog.min_dwell_s -1.0 is outside 0 to 600"),
        ({"max_pause_s": "1"}, "watchdog.max_pause_s '1' is outside 0 to 10"),
        ({"unknown_duty": 0.0}, "watchdog.unknown_duty 0.0 is outside 0.02 to 1"),
        ({"warm_margin_c": 4.0}, "watchdog.warm_margin_c 4.0 is smaller than"),
        ({"critical_margin_c": 20.0}, "watchdog.critical_margin_c 20.0 reaches below HOT"),
        ({"override": Level.DISABLED}, "is no level to force; the levels are UNKNOWN"),
        ({"override": "HOT"}, "watchdog.override 'HOT' is no level to force"),
    ],
)
def test_a_bad_parameter_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="watchdog") as caught:
        PolicyConfig(**bad)
    assert message in str(caught.value)


def test_every_number_of_the_config_has_a_bound() -> None:
    numbers = {f.name for f in dataclasses.fields(PolicyConfig) if f.type == "float"}
    assert set(BOUNDS) == numbers


# Arbitrary traces: any floats, as well as board-like ones, in any field a decision looks at.
temperatures = st.none() | st.floats() | st.floats(40, 110) | st.sampled_from([-256.0, 999.0])
modes = st.none() | st.sampled_from(["15W", "MODE_15W", "MAXN", ""])
honest_readings = st.builds(at, st.none() | st.floats(-40, 150), st.sampled_from(Throttle), modes)
absurd_readings = st.builds(
    Reading,
    stamp_s=st.floats(),
    wall_s=st.floats(),
    zones=st.dictionaries(st.just("cpu"), temperatures),
    margin_zone=st.none() | st.just("cpu"),
    temperature_c=temperatures,
    margin_c=temperatures,
    critical_margin_c=temperatures,
    throttle=st.sampled_from(Throttle),
    power_mode=modes,
    round_s=st.none() | st.floats(),
    power_w=st.none() | st.floats(),
    tokens_per_s=st.none() | st.floats(),
    draft_length=st.none() | st.floats(),
)
rules = st.builds(
    CapRule,
    st.sampled_from([level for level in Level if level is not Level.DISABLED]),
    st.none() | st.sampled_from(["15W", "MAXN"]),
    st.integers(0, NO_CAP),
)
configs = st.builds(
    PolicyConfig,
    mode=st.sampled_from([Mode.REPORT, Mode.GUARD]),
    draft_cap=st.lists(rules, max_size=4).map(tuple),
    min_dwell_s=st.floats(0, 10),
    hysteresis_c=st.floats(0, 5),
)
traces = st.lists(
    st.tuples(st.floats(0.0, 5.0), honest_readings | absurd_readings), min_size=1, max_size=25
)


@PROPERTY
@given(configs, traces)
def test_any_trace_is_decided_within_bounds(
    config: PolicyConfig, trace: list[tuple[float, Reading]]
) -> None:
    state, now_s = PolicyState(), 0.0
    level, changed_s = None, 0.0
    for elapsed_s, reading in trace:
        now_s += elapsed_s
        state, decision = decide(config, state, reading, now_s)
        assert 0 <= decision.draft_cap <= NO_CAP
        assert 0 < decision.duty <= 1
        assert decision.pause_s >= 0
        assert 0 <= state.pacing.integral <= 1
        if config.mode is not Mode.GUARD:
            assert (decision.duty, decision.pause_s) == (1, 0)
        assert decision.halt == (decision.level is Level.CRITICAL)
        assert decision.level is not Level.DISABLED
        assert decision.reason.endswith(".")
        if decision.level is not level:
            if level is not None and decision.level is not Level.CRITICAL:
                assert now_s - changed_s >= config.min_dwell_s
            level, changed_s = decision.level, now_s


@PROPERTY
@given(configs, traces, st.floats(101.5, 150.0), st.sampled_from(Throttle))
def test_critical_comes_with_the_first_reading_that_asks_for_it(
    config: PolicyConfig, trace: list[tuple[float, Reading]], celsius: float, throttle: Throttle
) -> None:
    state, now_s = PolicyState(), 0.0
    for elapsed_s, reading in trace:
        now_s += elapsed_s
        state, _ = decide(config, state, reading, now_s)
    assert decide(config, state, at(celsius, throttle), now_s)[1].halt


@PROPERTY
@given(configs, traces)
def test_a_cool_board_recovers(config: PolicyConfig, trace: list[tuple[float, Reading]]) -> None:
    state, now_s = PolicyState(), 0.0
    for elapsed_s, reading in trace:
        now_s += elapsed_s
        state, _ = decide(config, state, reading, now_s)
    for _ in range(10):
        now_s += config.min_dwell_s + 0.1
        state, decision = decide(config, state, at(50.0), now_s)
    assert (decision.level, decision.duty, decision.halt) == (Level.NOMINAL, 1, False)


@PROPERTY
@given(traces, st.floats(30, 149), st.floats(30, 149), st.floats(0.01, 5), st.floats(0.01, 2))
def test_the_pause_never_shrinks_for_a_hotter_board(
    trace: list[tuple[float, Reading]],
    one: float,
    other: float,
    elapsed_s: float,
    round_s: float,
) -> None:
    config = PolicyConfig(mode="guard")
    state, now_s = PolicyState(), 0.0
    for gap_s, reading in trace:
        now_s += gap_s
        state, _ = decide(config, state, reading, now_s)
    pauses = [
        decide(config, state, dataclasses.replace(at(c), round_s=round_s), now_s + elapsed_s)[1]
        for c in sorted((one, other))
    ]
    assert pauses[0].pause_s <= pauses[1].pause_s
    assert pauses[0].duty >= pauses[1].duty


@PROPERTY
@given(absurd_readings | honest_readings, st.floats(), st.sampled_from(Level) | st.none())
def test_off_is_always_disabled(reading: Reading, now_s: float, level: Level | None) -> None:
    override = None if level is Level.DISABLED else level
    config = PolicyConfig(mode="off", override=override, draft_cap=parse_draft_cap(["UNKNOWN=0"]))
    decision = decide(
        config, PolicyState(Standing(Level.CRITICAL, 0.0, Level.CRITICAL)), reading, now_s
    )[1]
    assert (decision.level, decision.draft_cap) == (Level.DISABLED, NO_CAP)
    assert (decision.pause_s, decision.halt) == (0, False)


@PROPERTY
@given(absurd_readings, st.floats())
def test_no_clock_reading_raises(reading: Reading, now_s: float) -> None:
    for config in (AT_ONCE, PolicyConfig(mode="guard")):
        state, _ = decide(config, PolicyState(), at(95), 1.0)
        step(config, state, reading, now_s)
        decide(config, state, reading, now_s)
