# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Goal messages to requests, ends to results, readings to messages: the rules, one by one."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from builtin_interfaces.msg import Duration, Time
from rclpy.clock import Clock, ClockType

from gemma_mtp_ros import api
from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, Finish, FinishReason, MemoryUse, RequestError, Stats
from gemma_mtp_ros.msg import ChatMessage, PowerState, SamplingParams, ToolCall
from gemma_mtp_ros.ros import health
from gemma_mtp_ros.ros.convert import (
    FALLS_BACK,
    LITERAL,
    Outcome,
    conversation,
    generation_stats,
    outcome,
    power_state,
    request_from_goal,
    result_from_finish,
    set_stamp,
)
from gemma_mtp_ros.ros.health import EngineView, Health
from gemma_mtp_ros.ros.meter import Meter
from gemma_mtp_ros.ros.parameters import TABLE
from gemma_mtp_ros.telemetry.policy import Decision, Level
from gemma_mtp_ros.telemetry.reading import Reading, Throttle

DEFAULTS = {spec.name: spec.default for spec in TABLE}


def request(now_s: float = 100.0, parameters: Any = None, **fields: Any) -> api.Request:
    goal = Generate.Goal(prompt=fields.pop("prompt", "hello"), **fields)
    return request_from_goal(goal, "id", {**DEFAULTS, **(parameters or {})}, now_s)


def test_constants_are_those_of_the_interfaces() -> None:
    for reason in FinishReason:
        assert getattr(Generate.Result, f"FINISH_{reason.name}") == reason
    for code in ErrorCode:
        assert getattr(Generate.Result, code.name) == code
    for level in Level:
        assert getattr(PowerState, level.name) == level
    for throttle in Throttle:
        assert getattr(PowerState, f"THROTTLE_{throttle.name}") == throttle
    assert set(SamplingParams.get_fields_and_field_types()) == {*FALLS_BACK, *LITERAL, "stop"}
    assert {f"sampling.{name}" for name in FALLS_BACK} == {
        name for name in DEFAULTS if name.startswith("sampling.")
    }


def test_sampling_falls_back_to_parameter_then_checkpoint() -> None:
    assert request().sampling == api.SamplingParams()
    parameters = {"sampling.temperature": 0.5, "sampling.seed": 7, "sampling.max_new_tokens": 9}
    sampling = request(parameters=parameters).sampling
    assert (sampling.temperature, sampling.seed, sampling.max_new_tokens) == (0.5, 7, 9)
    own = SamplingParams(temperature=0.25, seed=0, max_new_tokens=3, stop=["a"], top_k=0)
    sampling = request(parameters=parameters, sampling=own).sampling
    assert (sampling.temperature, sampling.seed, sampling.max_new_tokens) == (0.25, 0, 3)
    assert (sampling.stop, sampling.top_k, sampling.top_p) == (("a",), 0, None)


def test_timeout_counts_from_acceptance_on_the_steady_clock() -> None:
    assert request(100.0, timeout=Duration(sec=2, nanosec=500_000_000)).deadline_s == 102.5
    assert request(100.0).deadline_s == 100.0 + DEFAULTS["goal_timeout_s"]
    assert request(100.0, {"goal_timeout_s": 0.0}).deadline_s is None


def test_system_prompt_goes_before_what_has_no_system_turn() -> None:
    system = {"system_prompt": "Be brief."}
    roles = [turn.role for turn in request(parameters=system).messages]
    assert roles == ["system", "user"]
    own = [ChatMessage(role="system", content="x"), ChatMessage(role="user", content="y")]
    assert [turn.content for turn in request(parameters=system, messages=own).messages] == [
        "x",
        "y",
    ]
    raw = request(parameters=system, raw_prompt=True)
    assert (raw.raw_prompt, raw.messages) == ("hello", ())


def test_tool_calls_of_the_history_are_kept() -> None:
    call = ToolCall(id="1", name="go", arguments='{"to": "dock"}')
    turns = [ChatMessage(role="assistant", tool_calls=[call])]
    turns.append(ChatMessage(role="tool", tool_call_id="1", content="ok"))
    messages, raw = conversation(turns, "", "")
    assert raw is None
    assert messages[0].tool_calls[0].arguments == call.arguments
    assert messages[1].tool_call_id == "1"


def test_what_the_answer_has_to_be_is_passed_on() -> None:
    asked = request(response_schema='{"type": "null"}', tools="[]", tool_choice="none")
    assert asked.response_schema == '{"type": "null"}'
    assert (asked.tools, asked.tool_choice) == ("[]", "none")
    assert request().response_schema == ""


def test_prompt_is_ignored_where_messages_are_given() -> None:
    turns = [ChatMessage(role="user", content="from messages")]
    assert [turn.content for turn in request(messages=turns).messages] == ["from messages"]


def test_an_error_names_the_turn() -> None:
    turns = [ChatMessage(role="user", content="x"), ChatMessage(role="robot", content="y")]
    with pytest.raises(RequestError, match=r"messages\.1\.role"):
        request(messages=turns)


@pytest.mark.parametrize("reason", FinishReason)
@pytest.mark.parametrize("asked", [True, False])
def test_terminal_state(reason: FinishReason, asked: bool) -> None:
    ended = outcome(Finish(request_id="id", finish_reason=reason), asked)
    if reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS):
        assert ended is Outcome.SUCCEEDED
    elif reason is FinishReason.CANCELED and asked:
        assert ended is Outcome.CANCELED
    else:
        assert ended is Outcome.ABORTED


def test_what_is_unknown_is_nan_and_a_nul_is_no_end() -> None:
    stats = generation_stats(Stats())
    assert math.isnan(stats.energy_j)
    assert math.isnan(stats.ttft_s)
    finish = Finish(request_id="id", finish_reason=FinishReason.STOP, text="a\0b", seed=2**63 - 1)
    result = result_from_finish(finish, "model")
    assert (result.text, result.seed, result.model) == ("a\ufffdb", 2**63 - 1, "model")
    power = power_state(Reading(stamp_s=0.0, wall_s=0.0), Decision())
    assert (power.level, power.source) == (PowerState.UNKNOWN, "")
    unknown = (power.temperature_c, power.margin_c, power.power_w, power.gpu_clock_mhz)
    assert all(math.isnan(value) for value in (*unknown, power.gpu_load))


def test_a_stamp_is_the_clock_less_the_age_and_never_below_zero() -> None:
    clock, stamp = Clock(clock_type=ClockType.SYSTEM_TIME), Time()
    set_stamp(stamp, clock, time.monotonic() - 3.0)
    age_ns = clock.now().nanoseconds - (stamp.sec * 10**9 + stamp.nanosec)
    assert 2.999e9 < age_ns < 60e9
    set_stamp(stamp, Clock(clock_type=ClockType.STEADY_TIME), -1e12)
    assert (stamp.sec, stamp.nanosec) == (0, 0)


def test_meter_follows_the_running_goal_and_keeps_the_latest() -> None:
    meter = Meter()
    assert math.isnan(meter.figures.tokens_per_second)
    meter.started("a", time.monotonic())
    first = api.Piece(
        request_id="a",
        text="x",
        token_ids=(1,),
        completion_tokens=1,
        tokens_per_second=0.0,
        draft_length=0,
    )
    meter.piece(first)
    assert meter.figures.ttft_s >= 0
    meter.piece(first.model_copy(update={"token_ids": (1, 2, 3), "draft_length": 4}))
    assert meter.figures.tokens_per_pass == 3
    assert meter.figures.acceptance_rate == 0.5
    assert meter.figures.draft_length == 4
    assert meter.recent(time.monotonic()).tokens_per_s is None  # its rate is not known yet
    now_s = time.monotonic()
    meter.piece(
        first.model_copy(update={"draft_length": 2, "tokens_per_second": 40.0, "decided_s": now_s})
    )
    recent = meter.recent(now_s + 0.5)
    assert recent.round_s == pytest.approx((3 + 1) / 2 / 40.0)
    assert (recent.draft_length, recent.tokens_per_s) == (2.0, 1.0)
    late = meter.recent(now_s + 2.0)
    assert (late.round_s, late.draft_length) == (recent.round_s, None)
    meter.started("a", time.monotonic())
    meter.piece(first)
    meter.piece(first.model_copy(update={"token_ids": (1, 2, 3), "draft_length": 4}))
    meter.piece(first.model_copy(update={"request_id": "b"}))  # of no running goal
    assert meter.figures.tokens_per_pass == 3
    stats = Stats(completion_tokens=8, rounds=2, drafted_at=(2, 2), accepted_at=(2, 1))
    meter.finished(
        Finish(request_id="a", finish_reason=FinishReason.STOP, stats=stats), Outcome.SUCCEEDED
    )
    assert meter.figures.tokens_per_pass == stats.tokens_per_pass == 3.5
    assert meter.figures.acceptance_rate == 0.75
    refused = Finish(request_id="c", finish_reason=FinishReason.ERROR)
    meter.finished(refused, Outcome.ABORTED)
    assert meter.figures.tokens_per_pass == 3.5
    assert meter.counts[Outcome.SUCCEEDED] == meter.counts[Outcome.ABORTED] == 1


def test_health_of_the_engine() -> None:
    assert health.engine(EngineView("unconfigured")).health is Health.OK
    assert health.engine(EngineView("unconfigured", error="no folder")).health is Health.ERROR
    loading = EngineView("configuring", "LOADING", progress="weights 40 %")
    assert health.engine(loading).health is Health.WARN
    assert "40 %" in health.engine(loading).message
    lost = EngineView("active", "LOADING", "the engine was killed", restarts=1)
    assert health.engine(lost).health is Health.ERROR
    assert "killed" in health.engine(lost).message
    assert health.engine(EngineView("active", "READY")).health is Health.OK
    assert health.engine(EngineView("active", "FAILED", "too often")).health is Health.ERROR


def test_a_sensor_that_is_missing_is_never_healthy() -> None:
    nothing = Reading(stamp_s=0.0, wall_s=0.0)
    known = Reading(stamp_s=0.0, wall_s=0.0, temperature_c=50.0, hottest_zone="cpu")
    off = Decision(Level.DISABLED, reason="watchdog.mode is off.")

    def seen(reading: Reading, decision: Decision, silent_s: float = 0.0) -> Health:
        watch = health.Watch((reading, decision), 5.0, 5.0 + silent_s)
        return health.watchdog(watch, 2.0).health

    assert health.watchdog(health.Watch(None, 0.0, 0.0), 2.0).health is Health.STALE
    assert seen(nothing, Decision()) is Health.WARN
    assert seen(nothing, off) is Health.WARN
    assert seen(known, off) is Health.OK
    assert seen(known, Decision(Level.NOMINAL)) is Health.OK
    assert seen(known, Decision(Level.NOMINAL), 2.1) is Health.STALE
    for level in (Level.WARM, Level.HOT):
        assert seen(known, Decision(level)) is Health.WARN
    assert seen(known, Decision(Level.CRITICAL)) is Health.ERROR


def test_the_watchdogs_status_says_what_it_goes_by() -> None:
    reading = Reading(
        stamp_s=4.0,
        wall_s=0.0,
        source="sysfs",
        temperature_c=97.0,
        margin_c=2.0,
        power_w=9.25,
        power_mode="15W",
        hottest_zone="cpu",
    )
    decision = Decision(
        Level.HOT, draft_cap=2, pause_s=0.1, duty=0.5, reason="Hot.", advice="Try 7W."
    )
    status = health.watchdog(health.Watch((reading, decision), 5.0, 5.5, 0.75), 2.0)
    assert status.message == "Hot. Try 7W."
    wanted = {
        "temperature_c": "97.0",
        "margin_c": "2.0",
        "power_w": "9.25",
        "power_mode": "15W",
        "throttle": "UNKNOWN",
        "draft_cap": "2",
        "duty": "0.500",
        "pause_s": "0.100",
        "acceptance": "0.750",
        "source": "sysfs",
        "age_s": "1.5",
        "advice": "Try 7W.",
    }
    assert wanted.items() <= dict(status.values).items()
    assert power_state(reading, decision).reason == "Hot. Try 7W."


def test_health_of_memory_and_queue() -> None:
    assert health.memory(None, None, 256).health is Health.STALE
    assert health.memory(100.0, 50.0, 256).health is Health.WARN
    assert health.memory(1000.0, 50.0, 256).health is Health.OK
    held = health.memory(1000.0, 50.0, 256, MemoryUse(weights=3 * 2**20)).values
    assert held["weights_mib"] == "3.0"
    assert held["drafter_mib"] == "0.0"
    assert health.queue(4, 4, "queue", True, {}).health is Health.WARN
    assert health.queue(0, 0, "refuse", True, {}).health is Health.OK
