# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""busy_policy, priority and timeout over DDS, with the embedded pair on a slow board."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from builtin_interfaces.msg import Duration
from driver import ABORTED, CANCELED, SUCCEEDED, Driver, Goal, NodeProcess, running_node
from test_goals import DECODING, LOADING, PREFILL, QUEUED

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason

ASK: dict[str, Any] = {"prompt": "go to the kitchen and bring me the red cup", "temperature": 0.0}
LONG_PROMPT = {**ASK, "prompt": "go to the dock and wait, then " * 130}
ENDLESS: dict[str, Any] = {
    "prompt": ASK["prompt"],
    "raw_prompt": True,
    "max_new_tokens": 900,
    "seed": 0,
    "temperature": 100.0,
    "top_k": 0,
    "top_p": 1.0,
}
"""Random tokens: hundreds of rounds, whatever the machine."""
PREEMPTED = (ABORTED, FinishReason.PREEMPTED, ErrorCode.PREEMPTED)


@pytest.fixture(scope="module")
def shared(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The embedded pair, resting most of the time: an answer takes seconds, as on a board."""
    parameters = {
        "model": "demo",
        "draft": {"adaptive": False, "max_length": 2},
        "engine": {"reproducible": False, "max_duty_cycle": 0.5, "prefill_chunk": 8},
        "telemetry": {"source": "none"},
        "watchdog": {"mode": "off"},
    }
    with running_node(tmp_path_factory.mktemp("shared"), driver, parameters) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


@pytest.fixture
def policy(active: NodeProcess, driver: Driver) -> Iterator[Any]:
    """Sets busy_policy and queue_size while the node is active; the defaults come back."""

    def set_policy(name: str, queue_size: int = 4) -> None:
        assert driver.set(busy_policy=name, queue_size=queue_size) == ""
        assert driver.get("busy_policy").string_value == name

    yield set_policy
    driver.end_goals()
    set_policy("queue")


def ended(goal: Goal) -> tuple[int, int, int]:
    status, result = goal.result()
    assert goal.text == result.text
    assert goal.chunks[-1].done
    assert goal.chunks[-1].finish_reason == result.finish_reason
    assert [chunk.seq for chunk in goal.chunks] == list(range(len(goal.chunks)))
    sent = sum(len(chunk.token_ids) for chunk in goal.chunks)
    assert sent == result.stats.completion_tokens
    return status, result.finish_reason, result.error_code


def begun(driver: Driver, **fields: Any) -> Goal:
    """A goal that decodes."""
    goal = driver.send(**{**ENDLESS, "max_new_tokens": 300, **fields})
    goal.wait_text()
    return goal


def test_queue_lets_an_equal_one_wait_and_a_higher_one_through(policy: Any, driver: Driver) -> None:
    policy("queue")
    running = begun(driver)
    equal = driver.send(**ASK)
    equal.wait_state(QUEUED)
    urgent = driver.send(**ASK, priority=1)
    assert ended(running) == PREEMPTED
    _, result = running.result()
    assert result.text != ""
    assert "priority 1" in result.error_msg
    assert ended(urgent)[0] == ended(equal)[0] == SUCCEEDED
    ends = [bytes(chunk.goal_id.uuid) for chunk in driver.chunks if chunk.done]
    assert ends == [running.id, urgent.id, equal.id]
    _, whole = begun(driver).result()
    assert whole.text.startswith(result.text)


def test_refuse_ends_a_goal_at_once_and_says_why(policy: Any, driver: Driver) -> None:
    policy("refuse")
    running = begun(driver)
    for priority in (0, 255):
        late = driver.send(**ASK, priority=priority)
        assert late.accepted
        code, sentence = late.error()
        assert code == ErrorCode.QUEUE_FULL
        assert "busy_policy is refuse" in sentence
    assert not running.done
    assert ended(running)[0] == SUCCEEDED
    assert ended(driver.send(**ASK))[0] == SUCCEEDED


def test_preempt_serves_the_newest_unless_the_running_one_is_higher(
    policy: Any, driver: Driver
) -> None:
    policy("preempt")
    first = begun(driver, priority=3)
    lower = driver.send(**ASK, priority=2)
    lower.wait_state(QUEUED)
    assert not first.done
    second = driver.send(**ASK, priority=3)
    assert ended(first) == ended(lower) == PREEMPTED
    assert "busy_policy is preempt" in first.result()[1].error_msg
    assert first.text != ""
    assert ended(second)[0] == SUCCEEDED


def test_a_goal_in_prefill_gives_way(policy: Any, driver: Driver) -> None:
    policy("preempt", 0)
    first = driver.send(**LONG_PROMPT)
    first.wait_state(PREFILL)
    second = driver.send(**ASK)
    assert ended(first) == PREEMPTED
    assert first.result()[1].stats.completion_tokens == 0
    assert DECODING not in first.states
    assert ended(second)[0] == SUCCEEDED


def test_a_higher_priority_takes_the_last_place_of_a_full_queue(
    policy: Any, driver: Driver
) -> None:
    policy("queue", 2)
    running = begun(driver, priority=5)
    kept, last = driver.send(**ASK, priority=1), driver.send(**ASK)
    last.wait_state(QUEUED)
    assert driver.send(**ASK).error()[0] == ErrorCode.QUEUE_FULL
    new = driver.send(**ASK, priority=2)
    assert ended(last) == PREEMPTED
    assert "priority 2" in last.result()[1].error_msg
    assert not running.done
    running.cancel()
    assert [ended(goal)[0] for goal in (running, new, kept)] == [CANCELED, SUCCEEDED, SUCCEEDED]


def test_preempting_a_goal_that_is_being_canceled(policy: Any, driver: Driver) -> None:
    for name in ("queue", "preempt"):
        policy(name, 0)
        running = begun(driver)
        assert running.cancel().goals_canceling
        new = driver.send(**ASK, max_new_tokens=3, priority=1)
        assert ended(running) == (CANCELED, FinishReason.CANCELED, ErrorCode.CANCELED)
        assert ended(new)[0] == SUCCEEDED


def test_canceling_a_goal_that_is_being_preempted(policy: Any, driver: Driver) -> None:
    policy("preempt")
    running = begun(driver)
    new = driver.send(**ASK, max_new_tokens=3)
    running.cancel()
    assert ended(running) in (PREEMPTED, (CANCELED, FinishReason.CANCELED, ErrorCode.CANCELED))
    assert ended(new)[0] == SUCCEEDED


@pytest.mark.parametrize("rising", [False, True], ids=["equal", "rising"])
def test_a_storm_leaves_the_newest(policy: Any, driver: Driver, rising: bool) -> None:
    policy("preempt", 0)
    begun(driver)
    goals = []
    for number in range(30):
        goal = Generate.Goal(prompt=ASK["prompt"], priority=number if rising else 0)
        goal.sampling.temperature = 0.0
        goals.append(goal)
    results = driver.send_at_once(goals)()
    codes = [result.error_code for result in results]
    assert codes == [ErrorCode.PREEMPTED] * 29 + [ErrorCode.NONE]
    assert results[-1].text != ""
    assert driver.state() == "active"


@pytest.mark.parametrize("where", ["queue", "prefill", "decoding"])
def test_the_timeout_counts_from_acceptance(policy: Any, driver: Driver, where: str) -> None:
    policy("queue")
    before = begun(driver, **ENDLESS) if where == "queue" else None
    ask = LONG_PROMPT if where == "prefill" else ENDLESS
    timeout_s = 1.0 if where == "decoding" else 0.2
    goal = driver.send(
        **ask, timeout=Duration(sec=int(timeout_s), nanosec=int(timeout_s % 1 * 1e9))
    )
    assert ended(goal) == (ABORTED, FinishReason.TIMEOUT, ErrorCode.TIMEOUT)
    _, result = goal.result()
    assert timeout_s <= result.stats.total_s < 5.0
    assert bool(result.text) == (where == "decoding")
    assert goal.states[-1] == {"queue": QUEUED, "prefill": PREFILL, "decoding": DECODING}[where]
    if before is not None:
        assert not before.done


def test_goals_that_come_while_a_new_engine_loads(
    policy: Any, active: NodeProcess, driver: Driver
) -> None:
    """The last test of the module: the engine dies."""
    policy("preempt")
    running = begun(driver)
    (engine,) = active.children()
    os.kill(engine, signal.SIGKILL)
    assert running.result()[1].error_code == ErrorCode.ENGINE_LOST
    late = driver.send(**ASK, timeout=Duration(nanosec=1_000_000))
    assert late.error()[0] == ErrorCode.TIMEOUT
    policy("refuse")
    code, sentence = driver.send(**ASK).error()
    assert code == ErrorCode.QUEUE_FULL
    assert "the engine is coming up" in sentence
    policy("preempt")
    old, new = driver.send(**ASK), driver.send(**ASK)
    assert ended(old) == PREEMPTED
    new.wait_state(LOADING)
    assert new.result(180.0)[0] == SUCCEEDED
