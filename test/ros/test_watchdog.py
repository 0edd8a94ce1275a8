# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From a file of the board's tree to the draft length of the engine's next round, and to topics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from driver import ABORTED, ERROR, OK, SUCCEEDED, WARN, Driver, NodeProcess, running_node
from jetson_tree import ORIN_NANO, JetsonTree
from rclpy.action import ActionClient
from rclpy.parameter import Parameter
from test_goals import LONG, SHORT

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason
from gemma_mtp_ros.msg import PowerState
from gemma_mtp_ros.ros.lifecycle_node import GemmaMtpNode
from gemma_mtp_ros.ros.node import Spinner

CPU = "sys/class/thermal/thermal_zone0/temp"
MODE = "var/lib/nvpmodel/status"


def watched(parameters: dict[str, Any], root: Path) -> dict[str, Any]:
    return {
        **parameters,
        "draft": {"max_length": 7, "adaptive": False},
        "telemetry": {"root": str(root), "source": "sysfs"},
        "watchdog": {
            "mode": "report",
            "period_s": 0.1,
            "min_dwell_s": 0,
            "draft_cap": ["NOMINAL=3", "HOT=1", "HOT@15W=0"],
        },
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JetsonTree]:
    with JetsonTree(tmp_path_factory.mktemp("board"), ORIN_NANO) as tree:
        yield tree


@pytest.fixture(scope="module")
def shared(
    driver: Driver,
    parameters: dict[str, Any],
    tree: JetsonTree,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NodeProcess]:
    mine = watched(parameters, tree.root)
    with running_node(tmp_path_factory.mktemp("shared"), driver, mine) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


def wait_level(driver: Driver, level: int) -> PowerState:
    driver.wait_until(lambda: bool(driver.power) and driver.power[-1].level == level, 30.0, "level")
    return driver.power[-1]


def deepest(result: Any) -> int:
    """The largest number of tokens that was drafted in one round."""
    return max((i + 1 for i, count in enumerate(result.stats.drafted_at) if count), default=0)


@pytest.fixture
def cool(active: NodeProcess, driver: Driver, tree: JetsonTree) -> Iterator[JetsonTree]:
    """The tree as it was found, and the node NOMINAL."""
    wait_level(driver, PowerState.NOMINAL)
    yield tree
    tree.write(CPU, "51687")
    tree.write(MODE, "pmode:0002")
    assert driver.set(watchdog__override="") == ""


def test_power_says_what_the_board_does(cool: JetsonTree, driver: Driver) -> None:
    power = driver.power[-1]
    assert power.header.stamp.sec > 0
    assert power.temperature_c == pytest.approx(51.687, abs=0.1)
    assert power.power_w == pytest.approx(9.25, abs=0.01)
    assert power.power_mode == "MAXN_SUPER"
    assert power.throttle == PowerState.THROTTLE_NO
    assert power.gpu_clock_mhz == pytest.approx(306)
    assert power.gpu_load == pytest.approx(0.5)
    assert power.margin_c > 40
    assert (power.draft_cap, power.pause_s) == (3, 0.0)
    assert power.source
    driver.wait_health("watchdog", OK)


def test_a_goal_says_what_the_board_drew_for_it(cool: JetsonTree, driver: Driver) -> None:
    _, result = driver.send("Hello robot", max_new_tokens=100, temperature=0.0).result()
    stats = result.stats
    assert 9.2 * stats.decode_s < stats.energy_j < 9.3 * (stats.total_s + 0.5)


def test_the_draft_length_follows_a_file(cool: JetsonTree, driver: Driver) -> None:
    _, result = driver.send("Hello robot", max_new_tokens=30, temperature=0.0).result()
    assert deepest(result) == 3
    text = result.text
    goal = driver.send(**LONG)
    driver.wait_until(lambda: any(f.draft_length == 3 for f in goal.feedback))
    cool.write(CPU, "96000")
    driver.wait_until(lambda: goal.feedback[-1].draft_length == 1)
    assert wait_level(driver, PowerState.HOT).draft_cap == 1
    driver.wait_health("watchdog", WARN)
    cool.write(MODE, "pmode:0000")
    driver.wait_until(lambda: goal.feedback[-1].draft_length == 0)
    goal.cancel()
    goal.result()
    driver.wait_until(lambda: driver.power[-1].power_mode == "15W")
    assert driver.power[-1].draft_cap == 0
    _, result = driver.send("Hello robot", max_new_tokens=30, temperature=0.0).result()
    assert deepest(result) == 0
    assert result.text == text


def test_draft_length_can_be_set_while_it_runs(cool: JetsonTree, driver: Driver) -> None:
    goal = driver.send(**LONG)
    driver.wait_until(lambda: any(f.draft_length == 3 for f in goal.feedback))
    try:
        assert driver.set(draft__max_length=2) == ""
        driver.wait_until(lambda: goal.feedback[-1].draft_length == 2)
        assert driver.set(draft__max_length=7, watchdog__draft_cap=["NOMINAL=5"]) == ""
        driver.wait_until(lambda: goal.feedback[-1].draft_length == 5)
        assert driver.set(watchdog__mode="off") == ""
        wait_level(driver, PowerState.DISABLED)
        driver.wait_until(lambda: goal.feedback[-1].draft_length == 7)
    finally:
        driver.set(draft__max_length=7, watchdog__mode="report")
        driver.set(watchdog__draft_cap=["NOMINAL=3", "HOT=1", "HOT@15W=0"])
        goal.cancel()
        goal.result()


def test_a_mode_change_counts_within_two_polls(cool: JetsonTree, driver: Driver) -> None:
    assert driver.set(watchdog__draft_cap=["NOMINAL=3", "NOMINAL@15W=1"]) == ""
    try:
        goal = driver.send(**LONG)
        driver.wait_until(lambda: any(f.draft_length == 3 for f in goal.feedback))
        driver.wait_until(lambda: driver.power[-1].draft_cap == 3)
        cool.write(MODE, "pmode:0000")
        polls = len(driver.power)
        driver.wait_until(lambda: goal.feedback[-1].draft_length == 1)
        first = next(i for i, p in enumerate(driver.power) if p.power_mode == "15W")
        assert first <= polls + 1
        assert driver.power[first].draft_cap == 1
        goal.cancel()
        goal.result()
    finally:
        driver.set(watchdog__draft_cap=["NOMINAL=3", "HOT=1", "HOT@15W=0"])


def test_guard_paces_a_hot_board_and_report_does_not(cool: JetsonTree, driver: Driver) -> None:
    goal = driver.send(**LONG)
    goal.wait_text()
    cool.write(CPU, "98500")  # clocks are cut at 99
    try:
        wait_level(driver, PowerState.HOT)
        assert driver.power[-1].pause_s == 0.0
        assert driver.set(watchdog__mode="guard") == ""
        driver.wait_until(lambda: driver.power[-1].pause_s > 0.0)
        assert "of the time" in driver.power[-1].reason
        status = driver.wait_health("watchdog", WARN)
        values = {pair.key: pair.value for pair in status.values}
        assert {"duty", "pause_s", "acceptance", "age_s", "advice", "margin_c"} <= values.keys()
        goal.cancel()
        _, result = goal.result()
        assert result.stats.paused_s > 0.0
    finally:
        driver.set(watchdog__mode="report")


def test_a_critical_board_ends_goals_and_refuses_them(cool: JetsonTree, driver: Driver) -> None:
    running = driver.send(**LONG)
    running.wait_text()
    cool.write(CPU, "103000")
    status, result = running.result()
    assert (status, result.error_code) == (ABORTED, ErrorCode.THERMAL_LIMIT)
    assert result.finish_reason == FinishReason.THERMAL
    assert result.text == running.text != ""
    assert "shutdown" in result.error_msg
    refused = driver.send(**SHORT)
    assert refused.error()[0] == ErrorCode.THERMAL_LIMIT
    driver.wait_health("watchdog", ERROR)
    assert driver.state() == "active"
    cool.write(CPU, "60000")
    wait_level(driver, PowerState.NOMINAL)
    assert driver.send(**SHORT).result()[0] == SUCCEEDED


def test_a_board_that_says_nothing_is_unknown_not_healthy(
    cool: JetsonTree, driver: Driver, active: NodeProcess
) -> None:
    zones = sorted((cool.root / "sys/class/thermal").glob("thermal_zone*/temp"))
    texts = {}
    for zone in zones:
        path = str(zone.relative_to(cool.root))
        texts[path] = zone.read_bytes() if zone.is_file() else None
        cool.never_ready(path)
    power = wait_level(driver, PowerState.UNKNOWN)
    assert math.isnan(power.temperature_c)
    driver.wait_health("watchdog", WARN)
    for path, text in texts.items():
        if text is not None:
            cool.write(path, text)
    wait_level(driver, PowerState.NOMINAL)


def test_a_silent_watchdog_leaves_the_stale_cap(
    driver: Driver, parameters: dict[str, Any], tree: JetsonTree, tmp_path: Path
) -> None:
    """The node is in this process here, so that its watchdog can be stopped."""
    del tmp_path
    context = rclpy.Context()
    rclpy.init(context=context)
    flat = {
        "model": parameters["model"],
        "drafter": parameters["drafter"],
        "engine.reproducible": False,
        "draft.max_length": 5,
        "draft.adaptive": False,
        "telemetry.root": str(tree.root),
        "watchdog.stale_after_s": 1.0,
        "watchdog.stale_draft_cap": 1,
    }
    overrides = [Parameter(name, value=value) for name, value in flat.items()]
    node = GemmaMtpNode(
        context=context,
        parameter_overrides=overrides,
        namespace="silent",
        use_global_arguments=False,
    )
    spinner = Spinner(node, on_failure=lambda: None)
    spinner.start()
    try:
        node.trigger_configure()
        node.trigger_activate()
        client = _client(driver, "/silent/gemma_mtp/generate")
        seen: list[int] = []
        goal = _long_goal()
        handle = driver.wait_for(
            driver.on_executor(
                lambda: client.send_goal_async(
                    goal, feedback_callback=lambda m: seen.append(m.feedback.draft_length)
                )
            )
        )
        driver.wait_until(lambda: 5 in seen)
        node._watchdog.stop()
        driver.wait_until(lambda: seen[-1] == 1)
        driver.wait_for(driver.on_executor(handle.cancel_goal_async))
        driver.wait_for(driver.on_executor(handle.get_result_async))
        client.destroy()
    finally:
        node.leave()
        spinner.stop()
        node.destroy()
        rclpy.shutdown(context=context)


def _client(driver: Driver, name: str) -> Any:
    client = ActionClient(driver.node, Generate, name)
    assert client.wait_for_server(30.0)
    return client


def _long_goal() -> Any:
    goal = Generate.Goal(prompt=LONG["prompt"])
    goal.sampling.max_new_tokens = 3000
    goal.sampling.temperature = 0.0
    return goal
