# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Cached prefixes through the node: sessions, the system prompt, memory, and goals cut short."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builtin_interfaces.msg import Duration
from driver import ABORTED, SUCCEEDED, Driver, NodeProcess, running_node

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode
from gemma_mtp_ros.msg import ChatMessage
from gemma_mtp_ros.srv import GetModelInfo, ResetSession

SYSTEM = "You are the voice of a robot that fetches cups. " * 8
HALF_A_SECOND = Duration(nanosec=500_000_000)
WISH: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.0}


@pytest.fixture(scope="module")
def parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    engine = parameters["engine"] | {"reproducible": True, "prefill_chunk": 128}
    return parameters | {"engine": engine, "system_prompt": SYSTEM}


@pytest.fixture
def fresh(driver: Driver, parameters: dict[str, Any], tmp_path: Path) -> Iterator[NodeProcess]:
    with running_node(tmp_path, driver, parameters) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


def test_the_first_goal_finds_the_system_prompt_read(fresh: NodeProcess, driver: Driver) -> None:
    _, result = driver.send("Go.", **WISH).result()
    assert result.stats.cached_tokens > len(SYSTEM) - 64  # the tiny tokenizer has a token a byte
    assert result.stats.cached_tokens < result.stats.prompt_tokens


def test_an_engine_that_replaces_another_reads_the_system_prompt_too(
    fresh: NodeProcess, driver: Driver
) -> None:
    _, before = driver.send("Go.", **WISH).result()
    (engine,) = fresh.children()
    os.kill(engine, signal.SIGKILL)
    _, after = driver.send("Go.", **WISH).result(60.0)
    assert after.text == before.text
    assert after.stats.cached_tokens == before.stats.cached_tokens > 0


def test_a_session_is_cached_until_it_is_reset(active: NodeProcess, driver: Driver) -> None:
    before = driver.call("get_model_info", GetModelInfo.Request()).bytes
    turns = [("system", "Be kind. " * 30), ("user", "Bring me the red cup from the kitchen. " * 4)]

    def ask(session: str = "kitchen") -> Any:
        messages = [ChatMessage(role=role, content=text) for role, text in turns]
        goal = driver.send("", messages=messages, session_id=session, **WISH)
        status, result = goal.result()
        assert status == SUCCEEDED
        return result

    first = ask()
    assert first.stats.cached_tokens == 0
    assert driver.call("get_model_info", GetModelInfo.Request()).bytes > before
    turns += [("assistant", first.text), ("user", "And a spoon.")]
    second = ask()
    assert first.stats.prompt_tokens - 96 < second.stats.cached_tokens
    assert driver.call("reset_session", ResetSession.Request(session_id="kitchen")).found
    assert not driver.call("reset_session", ResetSession.Request(session_id="kitchen")).found
    third = ask("")
    assert third.stats.cached_tokens < second.stats.cached_tokens
    assert third.text == second.text


def test_a_session_can_be_reset_while_a_goal_runs(active: NodeProcess, driver: Driver) -> None:
    driver.send("Go to the dock. " * 10, session_id="dock", **WISH).result()
    goal = driver.send("Hello", **(WISH | {"max_new_tokens": 3000}))
    goal.wait_state(Generate.Feedback.STATE_DECODING)
    assert driver.call("reset_session", ResetSession.Request(session_id="dock")).found
    assert goal.cancel()


def test_a_goal_cut_short_leaves_its_prefix(active: NodeProcess, driver: Driver) -> None:
    prompt = "wait here for the lift " * 40
    goal = driver.send(prompt, **(WISH | {"max_new_tokens": 3000}), timeout=HALF_A_SECOND)
    status, result = goal.result()
    assert status == ABORTED
    assert result.error_code == ErrorCode.TIMEOUT
    _, again = driver.send(prompt, **WISH).result()
    assert again.stats.cached_tokens > len(prompt)
