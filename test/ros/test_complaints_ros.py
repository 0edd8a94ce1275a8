# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What users of other language-model nodes complain about; ../test_complaints.py lists them all."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from builtin_interfaces.msg import Duration
from driver import (
    ABORTED,
    CANCELED,
    SUCCEEDED,
    Driver,
    Goal,
    NodeProcess,
    assert_sentence,
)
from test_goals import DECODING, LONG, LONG_PROMPT, PREFILL, QUEUED, SHORT

from gemma_mtp_ros.api import ErrorCode, FinishReason
from gemma_mtp_ros.srv import CountTokens


def running_says(driver: Driver, value: str) -> None:
    """Wait until /diagnostics says whether a goal runs."""

    def met() -> bool:
        status = driver.status("queue")
        return status is not None and {v.key: v.value for v in status.values}["running"] == value

    driver.wait_until(met, what=f"running is {value} in /diagnostics")


def test_a_cancel_stops_the_engine_and_ends_canceled(active: NodeProcess, driver: Driver) -> None:
    goal = driver.send(**LONG)
    goal.wait_text()
    assert goal.cancel().goals_canceling
    status, result = goal.result()
    assert (status, result.finish_reason) == (CANCELED, FinishReason.CANCELED)
    assert 0 < result.stats.completion_tokens < LONG["max_new_tokens"]
    said = len(goal.chunks)
    assert driver.send(**SHORT).result()[0] == SUCCEEDED
    driver.diagnostics.clear()
    running_says(driver, "false")
    assert len(goal.chunks) == said
    assert [chunk.done for chunk in goal.chunks] == [False] * (said - 1) + [True]


def test_goals_that_wait_never_freeze_the_node(active: NodeProcess, driver: Driver) -> None:
    """All that the node offers is answered while they wait, and it says that they do."""
    running = driver.send(**LONG)
    running.wait_text()
    waiting = [driver.send(**SHORT) for _ in range(4)]
    for goal in waiting:
        goal.wait_state(QUEUED)
    for _ in range(20):
        assert driver.state() == "active"
    assert driver.call("count_tokens", CountTokens.Request(prompt="Hello robot")).success
    assert waiting.pop().cancel().goals_canceling
    assert not running.done
    driver.wait_until(lambda: any(each.queue_depth == 3 for each in driver.stats))
    running.cancel()
    assert running.result()[0] == CANCELED
    assert [goal.result()[0] for goal in waiting] == [SUCCEEDED] * 3


def test_a_goal_behind_a_hung_engine_ends(active: NodeProcess, driver: Driver) -> None:
    """And the node goes on saying how it is."""
    running = driver.send(**LONG)
    running.wait_text()
    (engine,) = active.children()
    os.kill(engine, signal.SIGSTOP)
    try:
        late = driver.send(**SHORT, timeout=Duration(nanosec=300_000_000))
        assert late.states[:1] in ([], [QUEUED])
        assert late.error()[0] == ErrorCode.TIMEOUT
        assert QUEUED in late.states
        assert driver.state() == "active"
        driver.diagnostics.clear()
        driver.stats.clear()
        driver.wait_until(lambda: len(driver.stats) > 1 and len(driver.diagnostics) > 1)
        assert not running.done
        running.cancel()
        status, result = running.result(10.0)
        assert (status, result.text) == (CANCELED, running.text)
        waiting = driver.send(**SHORT)
        waiting.wait_state(QUEUED)
    finally:
        os.kill(engine, signal.SIGCONT)
    assert waiting.result()[0] == SUCCEEDED
    assert active.children() == [engine]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9])
def test_the_token_limit_reaches_the_engine(
    active: NodeProcess, driver: Driver, limit: int
) -> None:
    """Of the goal, and of the parameter where the goal has none."""
    ask: dict[str, Any] = {"prompt": "Hello robot", "temperature": 0.0}
    goals = [driver.send(**ask, max_new_tokens=limit)]
    goals[0].result()
    assert driver.set(sampling__max_new_tokens=limit) == ""
    try:
        goals.append(driver.send(**ask))
        goals.append(driver.send(**ask, max_new_tokens=limit + 1))
        for goal, count in zip(goals, (limit, limit, limit + 1), strict=True):
            status, result = goal.result()
            assert (status, result.finish_reason) == (SUCCEEDED, FinishReason.LENGTH)
            assert result.stats.completion_tokens == count
            assert sum(len(chunk.token_ids) for chunk in goal.chunks) == count
    finally:
        assert driver.set(sampling__max_new_tokens=-1) == ""


def test_a_preempted_prompt_is_cached_while_drafting(active: NodeProcess, driver: Driver) -> None:
    ask = {**LONG, "prompt": "wait at the dock " * 20}
    first = driver.send(**ask)
    first.wait_text()
    urgent = driver.send(**SHORT, priority=1)
    status, cut = first.result()
    assert (status, cut.error_code) == (ABORTED, ErrorCode.PREEMPTED)
    assert cut.text == first.text != ""
    assert urgent.result()[0] == SUCCEEDED
    again = driver.send(**{**ask, "max_new_tokens": 3000})
    again.wait_text()
    driver.wait_until(lambda: again.done or len(again.text) >= len(cut.text), 60.0)
    again.cancel()
    _, result = again.result()
    assert result.text.startswith(cut.text)
    assert 0 < result.stats.cached_tokens < result.stats.prompt_tokens
    assert sum(result.stats.drafted_at) > 0


BAD_PROMPTS = {
    "empty": ({"prompt": ""}, ErrorCode.INVALID_GOAL, "prompt and messages are both empty"),
    "blank": ({"prompt": " \n"}, ErrorCode.INVALID_GOAL, "empty"),
    "empty and raw": ({"raw_prompt": True}, ErrorCode.INVALID_GOAL, "prompt is empty"),
    "too many tokens": (
        {"prompt": "ab " * 2000},
        ErrorCode.PROMPT_TOO_LONG,
        "room for 4096 tokens",
    ),
    "too many bytes": ({"prompt": "ab" * 500_000}, ErrorCode.PROMPT_TOO_LONG, "shorten"),
}


@pytest.mark.parametrize("case", BAD_PROMPTS)
def test_empty_and_over_long_prompts_get_a_code_and_a_sentence(
    active: NodeProcess, driver: Driver, case: str
) -> None:
    fields, code, words = BAD_PROMPTS[case]
    said, sentence = driver.send(**fields).error()
    assert said == code
    assert words in sentence


def test_there_are_diagnostics_and_acceptance_figures(active: NodeProcess, driver: Driver) -> None:
    _, result = driver.send("Hello robot", max_new_tokens=40, temperature=0.0).result()
    drafted, accepted = sum(result.stats.drafted_at), sum(result.stats.accepted_at)
    assert drafted > 0
    rate = accepted / drafted
    driver.wait_until(
        lambda: bool(driver.stats) and driver.stats[-1].acceptance_rate == pytest.approx(rate)
    )
    driver.diagnostics.clear()
    driver.wait_until(lambda: bool(driver.diagnostics))
    names = {status.name.rpartition(": ")[2]: status for status in driver.diagnostics[-1].status}
    assert set(names) == {"engine", "watchdog", "memory", "queue"}
    assert all(status.message and status.values for status in names.values())
    values = {value.key: value.value for value in names["queue"].values}
    assert values["busy_policy"] == "queue"


def assert_no_answer(goal: Goal) -> str:
    """No text anywhere but in error_msg, which is returned."""
    status, result = goal.result()
    assert (status, result.text, result.reasoning) == (ABORTED, "", "")
    assert_sentence(result.error_msg)
    assert [(chunk.text, chunk.done) for chunk in goal.chunks] == [("", True)]
    assert all(message.text_delta == "" for message in goal.feedback)
    return str(result.error_msg)


def test_no_error_is_published_as_an_answer(active: NodeProcess, driver: Driver) -> None:
    _, whole = driver.send(**{**LONG, "max_new_tokens": 400}).result(60.0)
    running = driver.send(**LONG)
    running.wait_text()
    waiting = [driver.send(**SHORT) for _ in range(3)]
    late = driver.send(**SHORT, timeout=Duration(nanosec=50_000_000))
    full = driver.send(**SHORT)
    bad = driver.send("", temperature=-3.0)
    sentences = [assert_no_answer(goal) for goal in (late, bad)]
    if full.result()[1].error_code == ErrorCode.QUEUE_FULL:
        sentences.append(assert_no_answer(full))
    assert driver.change("deactivate")
    sentences += [assert_no_answer(goal) for goal in waiting]
    _, part = running.result()
    sentences.append(part.error_msg)
    assert part.text == running.text != ""
    shorter, longer = sorted((part.text, whole.text), key=len)
    assert longer.startswith(shorter)
    for chunk in driver.chunks:
        assert all(sentence not in chunk.text for sentence in sentences)


def test_there_is_a_sign_of_life_before_the_first_token(
    active: NodeProcess, driver: Driver
) -> None:
    """QUEUED at once, PREFILL while the prompt is read, DECODING with the first token."""
    goal = driver.send(**{**SHORT, "prompt": LONG_PROMPT})
    goal.wait_state(PREFILL)
    assert not goal.chunks
    second = driver.send(**SHORT)
    second.wait_state(QUEUED)
    assert goal.result()[0] == second.result()[0] == SUCCEEDED
    assert goal.states == second.states == [QUEUED, PREFILL, DECODING]


def test_no_topic_carries_a_string(active: NodeProcess, driver: Driver) -> None:
    offered = driver.node.get_publisher_names_and_types_by_node("gemma_mtp", "/")
    types = {kind for _, kinds in offered for kind in kinds}
    assert {"gemma_mtp_ros/msg/TokenChunk", "gemma_mtp_ros/msg/PowerState"} <= types
    assert "std_msgs/msg/String" not in types
