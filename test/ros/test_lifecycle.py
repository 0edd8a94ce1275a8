# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The lifecycle: all transitions, refused and failed ones, and each way out with goals on board."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from driver import (
    ABORTED,
    ERROR,
    SUCCEEDED,
    TRANSITIONS,
    WARN,
    Driver,
    assert_sentence,
    running_node,
    state_of,
)
from lifecycle_msgs.msg import Transition
from test_goals import LONG, SHORT

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.host import STOP_S
from gemma_mtp_ros.ros.lifecycle_node import FLUSH_S, SETTLE_S
from gemma_mtp_ros.ros.node import EXIT_S
from gemma_mtp_ros.srv import CountTokens, GetModelInfo
from gemma_mtp_ros.supervisor import REAP_S

LOAD_S = 180.0
LEAVE_S = 4.0


def test_all_that_leaving_waits_for_ends_in_time() -> None:
    """An engine that neither stops nor dies, results that never go out."""
    assert STOP_S + REAP_S + FLUSH_S + SETTLE_S < EXIT_S - 0.5


def refuse_all_but(driver: Driver, allowed: set[str]) -> None:
    """All other transitions are answered with false and change nothing, the node's own too."""
    before = driver.state()
    for name in TRANSITIONS.keys() - allowed:
        assert not driver.change(name), name
    internal = (
        Transition.TRANSITION_ON_CONFIGURE_SUCCESS,
        Transition.TRANSITION_ON_ACTIVATE_SUCCESS,
        Transition.TRANSITION_ON_ERROR_SUCCESS,
        Transition.TRANSITION_CREATE,
        255,
    )
    for number in internal:
        assert not driver.wait_for(driver.change_by_id(number)).success
    for label in ("nonsense", "transition_success"):
        assert not driver.wait_for(driver.change_by_id(0, label)).success
    assert driver.state() == before


def test_a_life_with_refused_and_failed_transitions(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    with running_node(tmp_path, driver, parameters) as node:
        assert driver.state() == "unconfigured"
        refuse_all_but(driver, {"configure", "unconfigured_shutdown"})
        assert not driver.send(**SHORT).accepted
        for name, kind in (("get_model_info", GetModelInfo), ("count_tokens", CountTokens)):
            answer = driver.call(name, kind.Request())
            assert not answer.success
            assert_sentence(answer.message)

        # A configure that fails leaves the node UNCONFIGURED and says why.
        good = driver.get("model").string_value
        assert driver.set(model=str(tmp_path / "nowhere")) == ""
        assert not driver.change("configure", LOAD_S)
        assert driver.state() == "unconfigured"
        driver.wait_until(lambda: any("nowhere" in log.msg for log in driver.logs))
        assert "nowhere" in driver.wait_health("engine", ERROR).message
        assert node.children() == []
        assert driver.set(model=good) == ""

        # While it loads, state, parameters and services are answered; nothing else may begin.
        loading = driver.change_async("configure")
        driver.wait_until(lambda: bool(node.children()), LOAD_S)
        waited_ms = []
        while not driver.soon(loading.done, 0.02):
            begun_s = time.monotonic()
            state = driver.state()
            waited_ms.append(1e3 * (time.monotonic() - begun_s))
            if state == "configuring" and len(waited_ms) == 5:
                refuse_all_but(driver, set())
                assert "unconfigured" in driver.set(engine__threads=2)
                assert driver.set(draft__max_length=3) == ""
                driver.wait_health("engine", WARN)
        assert loading.result().success
        assert len(waited_ms) > 20
        assert sorted(waited_ms)[int(0.99 * len(waited_ms))] < 50.0

        assert driver.state() == "inactive"
        refuse_all_but(driver, {"activate", "cleanup", "inactive_shutdown"})
        assert not driver.send(**SHORT).accepted
        assert driver.call("get_model_info", GetModelInfo.Request()).success
        assert driver.change("activate")
        refuse_all_but(driver, {"deactivate", "active_shutdown"})
        assert driver.send(**SHORT).result()[0] == SUCCEEDED

        running = driver.send(**LONG)
        running.wait_text()
        (engine,) = node.children()
        assert driver.change("deactivate")
        assert driver.change("cleanup")
        assert running.error()[0] == ErrorCode.NOT_ACTIVE
        assert state_of(engine) == ""
        assert driver.state() == "unconfigured"
        assert driver.change("unconfigured_shutdown")
        assert driver.state() == "finalized"
        refuse_all_but(driver, set())
        node.signal(signal.SIGINT)
        assert node.wait_exit(LEAVE_S) == 0


def ways_out() -> list[Any]:
    slow = pytest.mark.slow
    return [
        pytest.param("shutdown", marks=slow),
        pytest.param(signal.SIGINT),
        pytest.param(signal.SIGTERM, marks=slow),
    ]


@pytest.mark.parametrize("way", ways_out())
def test_leaving_with_goals_on_board(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path, way: str | int
) -> None:
    with running_node(tmp_path, driver, parameters) as node:
        assert driver.change("configure", LOAD_S)
        assert driver.change("activate")
        running = driver.send(**LONG)
        waiting = [driver.send(**LONG) for _ in range(2)]
        running.wait_text()
        (engine,) = node.children()
        if isinstance(way, int):
            node.signal(way)
            node.signal(way)  # a second one changes nothing
        else:
            assert driver.change("active_shutdown", LEAVE_S)
            assert driver.state() == "finalized"
        for goal in (running, *waiting):
            status, result = goal.result(LEAVE_S)
            assert (status, result.error_code) == (ABORTED, ErrorCode.NOT_ACTIVE)
            assert_sentence(result.error_msg)
            assert result.text == goal.text
        assert running.text != ""
        if not isinstance(way, int):
            node.signal(signal.SIGTERM)
        assert node.wait_exit(LEAVE_S) == 0
        assert state_of(engine) == ""


def test_sigint_while_it_loads(driver: Driver, parameters: dict[str, Any], tmp_path: Path) -> None:
    with running_node(tmp_path, driver, parameters) as node:
        driver.change_async("configure")
        driver.wait_until(lambda: bool(node.children()), LOAD_S)
        (engine,) = node.children()
        node.signal(signal.SIGINT)
        assert node.wait_exit(LEAVE_S) == 0
        assert state_of(engine) == ""


def test_the_node_starts_itself_and_the_engine_is_given_up_and_restored(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    mine = {**parameters, "autostart": True}
    mine["engine"] = {**parameters["engine"], "max_restarts": 0}
    with running_node(tmp_path, driver, mine) as node:
        driver.wait_until(lambda: any("active" in log.msg for log in driver.logs), LOAD_S)
        assert driver.state() == "active"
        assert "start" in driver.set(autostart=False)
        running = driver.send(**LONG)
        running.wait_text()
        (engine,) = node.children()
        os.kill(engine, signal.SIGKILL)
        assert running.error(5.0)[0] == ErrorCode.ENGINE_LOST
        deadline = time.monotonic() + LOAD_S
        while driver.state() != "unconfigured":
            assert time.monotonic() < deadline
            driver.soon(lambda: False, 0.02)
        assert not driver.send(**SHORT).accepted
        driver.forget()
        driver.wait_health("engine", ERROR)
        assert driver.change("configure", LOAD_S)
        assert driver.change("activate")
        assert driver.send(**SHORT).result()[0] == SUCCEEDED


@pytest.mark.parametrize("way", ["deactivate", signal.SIGINT])
def test_goals_that_come_while_the_node_leaves_end(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path, way: str | int
) -> None:
    """Those that were accepted get their terminal state; the rest is rejected or not answered."""
    goal = Generate.Goal(prompt=LONG["prompt"])
    goal.sampling.max_new_tokens = 3000
    with running_node(tmp_path, driver, parameters) as node:
        assert driver.change("configure", LOAD_S)
        assert driver.change("activate")
        running = driver.send(**LONG)
        running.wait_text()
        before = driver.pour([goal] * 20)
        driver.wait_until(lambda: len(before) > 0, what="a goal that was accepted")
        if isinstance(way, int):
            node.signal(way)
        else:
            left = driver.change_async(way)
        after = driver.pour([goal] * 20)
        if isinstance(way, int):
            assert node.wait_exit(LEAVE_S) == 0
        else:
            assert driver.wait_for(left).success
        results = [running._result, *before, *after]
        driver.wait_until(lambda: all(each.done() for each in [*before, *after]), LEAVE_S)
        codes = {each.result().result.error_code for each in results}
        assert ErrorCode.NOT_ACTIVE in codes
        assert codes <= {ErrorCode.NOT_ACTIVE, ErrorCode.QUEUE_FULL}


def test_the_model_parameter_is_obeyed_and_nothing_is_substituted(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "gemma-4-of-another-name")
    with running_node(tmp_path, driver, {**parameters, "model": nowhere}) as node:
        assert not driver.change("configure", LOAD_S)
        assert driver.state() == "unconfigured"
        assert node.children() == []
        assert not driver.call("get_model_info", GetModelInfo.Request()).success
        assert not driver.send(**SHORT).accepted
        driver.wait_until(lambda: any(nowhere in log.msg for log in driver.logs))
        # A drafter of another target is no reason to take another model either.
        assert driver.set(model="demo") == ""
        assert not driver.change("configure", LOAD_S)
        for model, drafter in ((parameters["model"], parameters["drafter"]), ("demo", "none")):
            assert driver.set(model=model, drafter=drafter) == ""
            assert driver.change("configure", LOAD_S)
            assert driver.change("activate")
            info = driver.call("get_model_info", GetModelInfo.Request())
            _, result = driver.send(**SHORT).result()
            expected = str(TARGET_DIR) if model == "demo" else model
            assert info.model == result.model == expected
            assert info.drafter == ("" if drafter == "none" else drafter)
            assert driver.change("deactivate")
            assert driver.change("cleanup")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_lives_leave_nothing_behind(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    shm_before = {name for name in os.listdir("/dev/shm") if "gemma" in name}
    with running_node(tmp_path, driver, parameters) as node:
        descriptors = threads = 0
        for cycle in range(20):
            assert driver.change("configure", LOAD_S)
            assert driver.change("activate")
            assert driver.send(**SHORT).result()[0] == SUCCEEDED
            assert driver.change("deactivate")
            assert driver.change("cleanup")
            assert node.children() == []
            if cycle == 1:
                descriptors, threads = node.descriptors(), node.threads()
        # The thread of the last transition may still be about to end.
        driver.wait_until(
            lambda: node.descriptors() <= descriptors and node.threads() <= threads,
            what=f"at most {descriptors} descriptors and {threads} threads",
        )
    assert {name for name in os.listdir("/dev/shm") if "gemma" in name} == shm_before
