# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Goals of the generate action, over DDS, with a real engine."""

from __future__ import annotations

import json
import math
import os
import signal
from typing import Any

import pytest
from builtin_interfaces.msg import Duration
from driver import ABORTED, CANCELED, ERROR, OK, SUCCEEDED, Driver, NodeProcess, assert_sentence
from sensor_msgs.msg import CompressedImage

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason
from gemma_mtp_ros.msg import ChatMessage
from gemma_mtp_ros.srv import CountTokens, GetModelInfo, ResetSession

QUEUED, LOADING, PREFILL, DECODING = (
    Generate.Feedback.STATE_QUEUED,
    Generate.Feedback.STATE_LOADING,
    Generate.Feedback.STATE_PREFILL,
    Generate.Feedback.STATE_DECODING,
)
LONG: dict[str, Any] = {"prompt": "Hello robot", "max_new_tokens": 3000, "temperature": 0.0}
SHORT: dict[str, Any] = {"prompt": "Hello robot", "max_new_tokens": 8, "temperature": 0.0}
LONG_PROMPT = "go to the dock and wait " * 150  # hundreds of prefill chunks


def test_chunks_are_whole_and_equal_to_the_result(active: NodeProcess, driver: Driver) -> None:
    goal = driver.send("Hello robot", max_new_tokens=40, temperature=0.0)
    status, result = goal.result()
    assert status == SUCCEEDED
    assert result.finish_reason == FinishReason.LENGTH
    assert (result.error_code, result.error_msg) == (ErrorCode.NONE, "")
    assert [chunk.seq for chunk in goal.chunks] == list(range(len(goal.chunks)))
    assert [chunk.done for chunk in goal.chunks] == [False] * (len(goal.chunks) - 1) + [True]
    assert goal.chunks[-1].finish_reason == FinishReason.LENGTH
    assert goal.text == result.text != ""
    assert sum(len(chunk.token_ids) for chunk in goal.chunks) == 40
    assert goal.states == [QUEUED, PREFILL, DECODING]
    # Clients drop feedback that comes after the result, so the last of it may be missing.
    assert result.text.startswith("".join(message.text_delta for message in goal.feedback))
    assert 0 < goal.feedback[-1].completion_tokens <= 40
    stats = result.stats
    assert stats.completion_tokens == 40
    assert stats.prompt_tokens > 0
    assert 0 < stats.ttft_s < stats.total_s
    assert len(stats.drafted_at) == len(stats.accepted_at)
    assert math.isnan(stats.energy_j)
    assert result.model


def test_characters_of_several_bytes_are_never_split(active: NodeProcess, driver: Driver) -> None:
    wish: dict[str, Any] = {"prompt": "x", "max_new_tokens": 150, "temperature": 100.0}
    several = 0
    for seed in range(5):  # random bytes: broken characters, whole ones, and NULs
        goal = driver.send(**wish, top_k=0, top_p=1.0, seed=seed)
        status, result = goal.result()
        assert status == SUCCEEDED
        assert goal.text == result.text
        assert result.text.startswith("".join(message.text_delta for message in goal.feedback))
        several += sum(len(char.encode()) > 1 for char in result.text if char != "\ufffd")
    assert several > 3


def test_a_seed_gives_the_same_text_again(active: NodeProcess, driver: Driver) -> None:
    wish: dict[str, Any] = {"prompt": "x", "max_new_tokens": 30, "temperature": 2.0}
    _, first = driver.send(**wish).result()
    assert first.seed >= 0
    _, again = driver.send(**wish, seed=first.seed).result()
    assert again.text == first.text
    assert again.seed == first.seed


def test_nothing_of_a_goal_reaches_the_next(active: NodeProcess, driver: Driver) -> None:
    _, before = driver.send(**SHORT).result()
    stop = before.text[2:4]
    wish: dict[str, Any] = {**SHORT, "temperature": 5.0, "repetition_penalty": 2.0, "seed": 7}
    wish |= {"presence_penalty": 3.0, "frequency_penalty": 3.0, "stop": [stop], "top_k": 3}
    _, other = driver.send(**wish).result()
    goal = driver.send(**LONG)
    goal.wait_text()
    goal.cancel()
    goal.result()
    _, after = driver.send(**SHORT).result()
    assert after.text == before.text
    assert after.seed != other.seed or after.seed == before.seed


def test_a_stop_string_ends_the_answer_before_it(active: NodeProcess, driver: Driver) -> None:
    _, whole = driver.send(**SHORT).result()
    stop = whole.text[3:5]
    goal = driver.send(**SHORT, stop=[stop])
    status, result = goal.result()
    assert (status, result.finish_reason) == (SUCCEEDED, FinishReason.STOP)
    assert result.text == whole.text[: whole.text.index(stop)]
    assert goal.text == result.text


@pytest.mark.parametrize("state", [PREFILL, DECODING])
def test_cancel_while_it_runs(active: NodeProcess, driver: Driver, state: int) -> None:
    prompt = LONG_PROMPT if state == PREFILL else LONG["prompt"]
    goal = driver.send(**{**LONG, "prompt": prompt, "max_new_tokens": 400})
    goal.wait_state(PREFILL)
    if state == DECODING:
        goal.wait_text()
    assert goal.cancel().goals_canceling
    status, result = goal.result()
    assert status == CANCELED
    assert result.finish_reason == FinishReason.CANCELED
    assert result.error_code == ErrorCode.CANCELED
    assert goal.text == result.text
    assert goal.chunks[-1].finish_reason == FinishReason.CANCELED
    assert bool(result.text) == (state == DECODING)
    assert result.stats.completion_tokens < 400


def test_cancel_while_it_waits(active: NodeProcess, driver: Driver) -> None:
    running, waiting = driver.send(**LONG), driver.send(**SHORT)
    waiting.wait_state(QUEUED)
    assert waiting.cancel().goals_canceling
    status, result = waiting.result()
    assert (status, result.finish_reason) == (CANCELED, FinishReason.CANCELED)
    assert result.text == ""
    assert not running.done
    running.cancel()
    assert running.result()[0] == CANCELED


def test_a_full_queue_says_so_and_the_rest_is_served_in_order(
    active: NodeProcess, driver: Driver
) -> None:
    running = driver.send(**LONG)
    running.wait_state(PREFILL)
    waiting = [driver.send(**SHORT) for _ in range(4)]
    code, sentence = driver.send(**SHORT).error()
    assert code == ErrorCode.QUEUE_FULL
    assert "queue_size" in sentence
    running.cancel()
    assert all(goal.result()[0] == SUCCEEDED for goal in waiting)
    ends = [bytes(chunk.goal_id.uuid) for chunk in driver.chunks if chunk.done]
    served = [end for end in ends if end in {goal.id for goal in waiting}]
    assert served == [goal.id for goal in waiting]


def test_no_goal_of_a_burst_is_lost_while_the_node_is_busy(
    active: NodeProcess, driver: Driver
) -> None:
    goal = Generate.Goal(prompt="Hello robot")
    goal.sampling.max_new_tokens = 1
    active.signal(signal.SIGSTOP)
    try:
        results = driver.send_at_once([goal] * 20)
    finally:
        active.signal(signal.SIGCONT)
    codes = [result.error_code for result in results()]
    assert set(codes) <= {ErrorCode.NONE, ErrorCode.QUEUE_FULL}
    assert codes.count(ErrorCode.NONE) >= 5  # one runs, four wait


def test_a_goal_of_higher_priority_leaves_the_queue_first(
    active: NodeProcess, driver: Driver
) -> None:
    running = driver.send(**LONG, priority=9)
    running.wait_state(PREFILL)
    low, high = driver.send(**SHORT), driver.send(**SHORT, priority=9)
    running.cancel()
    assert low.result()[0] == high.result()[0] == SUCCEEDED
    ends = [bytes(chunk.goal_id.uuid) for chunk in driver.chunks if chunk.done]
    assert ends.index(high.id) < ends.index(low.id)


def test_timeout_while_running_and_while_waiting(active: NodeProcess, driver: Driver) -> None:
    running = driver.send(**LONG, timeout=Duration(nanosec=700_000_000))
    running.wait_text()
    waiting = driver.send(**SHORT, timeout=Duration(nanosec=1_000_000))
    for goal in (waiting, running):
        code, _ = goal.error()
        assert code == ErrorCode.TIMEOUT
        assert goal.chunks[-1].finish_reason == FinishReason.TIMEOUT
    assert running.text != ""


NUL = "\0"
IMAGE = ChatMessage(role="user", content="look", images=[CompressedImage(format="png")])
HOSTILE = {
    "nothing": ({}, ErrorCode.INVALID_GOAL, "prompt"),
    "a NUL alone": ({"prompt": NUL}, ErrorCode.INVALID_GOAL, "prompt"),
    "NaN": ({"prompt": "x", "temperature": math.nan}, ErrorCode.INVALID_GOAL, "temperature"),
    "infinity": ({"prompt": "x", "temperature": math.inf}, ErrorCode.INVALID_GOAL, "temperature"),
    "negative": ({"prompt": "x", "temperature": -2.0}, ErrorCode.INVALID_GOAL, "temperature"),
    "huge": ({"prompt": "x", "max_new_tokens": 2**31 - 1}, ErrorCode.INVALID_GOAL, "max_new"),
    "no tokens": ({"prompt": "x", "max_new_tokens": 0}, ErrorCode.INVALID_GOAL, "max_new"),
    "top_p of 0": ({"prompt": "x", "top_p": 0.0}, ErrorCode.INVALID_GOAL, "top_p"),
    "seed": ({"prompt": "x", "seed": -7}, ErrorCode.INVALID_GOAL, "seed"),
    "penalty": ({"prompt": "x", "presence_penalty": 1e9}, ErrorCode.INVALID_GOAL, "presence"),
    "10,000 stops": ({"prompt": "x", "stop": ["s"] * 10_000}, ErrorCode.INVALID_GOAL, "10000 stop"),
    "empty stop": ({"prompt": "x", "stop": [""]}, ErrorCode.INVALID_GOAL, "stop"),
    "1 MB": ({"prompt": "ab" * 500_000}, ErrorCode.PROMPT_TOO_LONG, ""),
    "5 MB": ({"prompt": "ab" * 2_500_000}, ErrorCode.PROMPT_TOO_LONG, "bytes"),
    "a role": (
        {"messages": [ChatMessage(role="robot", content="x")]},
        ErrorCode.INVALID_GOAL,
        "messages.0.role",
    ),
    "an image": ({"messages": [IMAGE]}, ErrorCode.INVALID_GOAL, "images"),
    "raw and messages": (
        {"raw_prompt": True, "messages": [ChatMessage(role="user", content="x")]},
        ErrorCode.INVALID_GOAL,
        "raw_prompt",
    ),
    "timeout": ({"prompt": "x", "timeout": Duration(sec=-5)}, ErrorCode.INVALID_GOAL, "timeout"),
    "schema": (
        {"prompt": "x", "response_schema": '{"not": {}}'},
        ErrorCode.SCHEMA_UNSUPPORTED,
        '"not"',
    ),
    "a schema of no JSON": (
        {"prompt": "x", "response_schema": "{"},
        ErrorCode.SCHEMA_UNSUPPORTED,
        "not JSON",
    ),
    "tools": ({"prompt": "x", "tools": "[3]"}, ErrorCode.INVALID_GOAL, "tools.0"),
    "tools without a template": (
        {"prompt": "x", "tools": '[{"name": "stop"}]'},
        ErrorCode.INVALID_GOAL,
        "cannot declare tools",
    ),
    "tool_choice": ({"prompt": "x", "tool_choice": "go"}, ErrorCode.INVALID_GOAL, "tool_choice"),
    "thinking": ({"prompt": "x", "enable_thinking": True}, ErrorCode.INVALID_GOAL, "thinking"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_goal_ends_with_a_sentence(
    active: NodeProcess, driver: Driver, case: str
) -> None:
    fields, code, word = HOSTILE[case]
    goal = driver.send(**fields)
    assert goal.accepted
    said_code, sentence = goal.error()
    assert said_code == code
    assert word in sentence
    assert [(chunk.seq, chunk.done, chunk.text) for chunk in goal.chunks] == [(0, True, "")]
    assert goal.chunks[0].finish_reason == FinishReason.ERROR
    assert driver.send(**SHORT).result()[0] == SUCCEEDED


def test_messages_carry_a_conversation(active: NodeProcess, driver: Driver) -> None:
    turns = [ChatMessage(role="user", content="Hello robot")]
    _, alone = driver.send(messages=turns, max_new_tokens=8, temperature=0.0).result()
    _, same = driver.send(**SHORT).result()
    assert alone.text == same.text
    turns = [ChatMessage(role="system", content="Be kind."), *turns]
    _, more = driver.send(messages=turns, max_new_tokens=8, temperature=0.0).result()
    assert more.stats.prompt_tokens > alone.stats.prompt_tokens
    _, raw = driver.send("Hello robot", raw_prompt=True, max_new_tokens=8).result()
    assert raw.stats.prompt_tokens < alone.stats.prompt_tokens


def test_deactivate_ends_running_and_waiting_goals(active: NodeProcess, driver: Driver) -> None:
    running, waiting = driver.send(**LONG), driver.send(**LONG)
    running.wait_text()
    assert driver.change("deactivate")
    for goal in (running, waiting):
        code, sentence = goal.error()
        assert code == ErrorCode.NOT_ACTIVE
        assert "activate" in sentence
    _, result = running.result()
    assert result.text == running.text != ""
    assert not driver.send(**SHORT).accepted
    assert driver.change("activate")
    assert driver.send(**SHORT).result()[0] == SUCCEEDED


def test_a_goal_sent_while_it_deactivates_ends_or_is_rejected(
    active: NodeProcess, driver: Driver
) -> None:
    for _ in range(5):
        assert driver.state() == "active"
        change = driver.change_async("deactivate")
        goals = [driver.send(**LONG) for _ in range(3)]
        assert driver.wait_for(change).success
        for goal in goals:
            if goal.accepted:
                assert goal.error()[0] == ErrorCode.NOT_ACTIVE
        assert driver.change("activate")


def test_services(active: NodeProcess, driver: Driver) -> None:
    info = driver.call("get_model_info", GetModelInfo.Request())
    assert info.success
    assert info.model.endswith("target")
    assert info.drafter.endswith("drafter")
    assert info.context == 4096
    assert info.bytes > 0
    counted = driver.call("count_tokens", CountTokens.Request(prompt="Hello robot"))
    assert counted.success
    assert counted.max_context == info.context
    _, result = driver.send(**SHORT).result()
    assert result.stats.prompt_tokens == counted.tokens
    nothing = driver.call("count_tokens", CountTokens.Request())
    assert not nothing.success
    assert_sentence(nothing.message)
    assert not driver.call("reset_session", ResetSession.Request(session_id="x")).found


def test_a_system_prompt_holds_for_new_goals(active: NodeProcess, driver: Driver) -> None:
    _, before = driver.send(**SHORT).result()
    assert driver.set(system_prompt="Be brief.") == ""
    try:
        _, result = driver.send(**SHORT).result()
        counted = driver.call("count_tokens", CountTokens.Request(prompt="Hello robot"))
        assert result.stats.prompt_tokens == counted.tokens > before.stats.prompt_tokens
        assert driver.change("deactivate")
        assert driver.change("activate")  # prefills it
        assert driver.set(system_prompt="far too long " * 2000) == ""
        assert driver.change("deactivate")
        assert not driver.change("activate")
        assert driver.state() == "inactive"
        driver.wait_until(lambda: any("system_prompt takes" in log.msg for log in driver.logs))
    finally:
        assert driver.set(system_prompt="") == ""
    assert driver.change("activate")
    _, after = driver.send(**SHORT).result()
    assert after.stats.prompt_tokens == before.stats.prompt_tokens


def test_statistics_follow_each_goal(active: NodeProcess, driver: Driver) -> None:
    driver.wait_until(lambda: bool(driver.stats))
    before = driver.stats[-1]
    driver.send(**SHORT).result()
    driver.send("").error()
    goal = driver.send(**LONG)
    goal.wait_text()
    goal.cancel()
    goal.result()

    def counted() -> bool:
        now = driver.stats[-1]
        return (
            now.goals_succeeded == before.goals_succeeded + 1
            and now.goals_aborted == before.goals_aborted + 1
            and now.goals_canceled == before.goals_canceled + 1
        )

    driver.wait_until(counted)
    latest = driver.stats[-1]
    assert latest.tokens_per_second > 0
    assert latest.tokens_per_pass >= 1
    assert latest.engine_memory_mib > 0
    assert latest.model
    assert latest.reproducible == "off"


def test_a_lost_engine_is_told_and_replaced(active: NodeProcess, driver: Driver) -> None:
    (engine,) = active.children()
    running = driver.send(**LONG)
    running.wait_text()
    waiting = driver.send(**SHORT)
    os.kill(engine, signal.SIGKILL)
    status, result = running.result(5.0)
    assert (status, result.error_code) == (ABORTED, ErrorCode.ENGINE_LOST)
    assert_sentence(result.error_msg)
    assert result.text == running.text != ""
    waiting.wait_state(LOADING)
    driver.wait_health("engine", ERROR)
    assert waiting.result(180.0)[0] == SUCCEEDED
    assert driver.send(**SHORT).result()[0] == SUCCEEDED
    driver.wait_until(lambda: bool(driver.stats) and driver.stats[-1].engine_restarts == 1)
    driver.wait_health("engine", OK)
    assert active.children() != [engine]


def test_an_answer_follows_its_schema(active: NodeProcess, driver: Driver) -> None:
    steps = {"type": "array", "items": {"enum": ["goto", "pick"]}, "minItems": 1, "maxItems": 3}
    schema = {"type": "object", "properties": {"steps": steps}, "required": ["steps"]}
    schema["additionalProperties"] = False
    goal = driver.send("Fetch the cup.", response_schema=json.dumps(schema), max_new_tokens=80)
    status, result = goal.result()
    assert status == SUCCEEDED
    assert result.finish_reason == Generate.Result.FINISH_STOP
    plan = json.loads(result.text)
    assert plan.keys() == {"steps"}
    assert set(plan["steps"]) <= {"goto", "pick"}
    assert 1 <= len(plan["steps"]) <= 3
