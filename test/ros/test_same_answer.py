# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Heat, power mode and draft length change the speed of an answer, never its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from driver import SUCCEEDED, Driver, Goal, NodeProcess, running_node
from jetson_tree import ORIN_NANO, JetsonTree

from gemma_mtp_ros.msg import PowerState

CPU = "sys/class/thermal/thermal_zone0/temp"
MODE = "var/lib/nvpmodel/status"
TOKENS = 600
CAPS = {"NOMINAL": 7, "WARM": 4, "HOT": 1, "UNKNOWN": 0}

pytestmark = pytest.mark.parametrize("temperature", [0.0, 1.0])


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
    mine = {
        **parameters,
        "engine": {**parameters["engine"], "reproducible": True},
        "draft": {"max_length": 7, "adaptive": False},
        "telemetry": {"root": str(tree.root), "source": "sysfs"},
        "watchdog": {
            "mode": "guard",
            "period_s": 0.1,
            "min_dwell_s": 0,
            "draft_cap": [f"{level}={cap}" for level, cap in CAPS.items()] + ["NOMINAL@15W=2"],
        },
    }
    with running_node(tmp_path_factory.mktemp("shared"), driver, mine) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


def ask(driver: Driver, temperature: float, seed: int) -> Goal:
    """The penalty keeps a random model from saying one token for ever."""
    sampling = {"temperature": temperature, "seed": seed, "frequency_penalty": 1.0}
    return driver.send("Hello robot", max_new_tokens=TOKENS, **sampling)


def tokens(goal: Goal) -> list[int]:
    status, _ = goal.result()
    assert status == SUCCEEDED
    return [token for chunk in goal.chunks for token in chunk.token_ids]


def long_answer(driver: Driver, temperature: float) -> tuple[int, list[int]]:
    """A seed and its answer; a random model may end one early."""
    for seed in range(20):
        found = tokens(ask(driver, temperature, seed))
        if len(found) > 200:
            return seed, found
    raise AssertionError("no seed gives a long answer")


def force(driver: Driver, level: str) -> None:
    """Force a level, and wait until the watchdog decided by it."""
    assert driver.set(watchdog__override=level) == ""
    if level:
        wanted = getattr(PowerState, level)
        driver.wait_until(lambda: bool(driver.power) and driver.power[-1].level == wanted)


def lengths(goal: Goal) -> set[int]:
    """Draft lengths that the goal was told of while it decoded."""
    return {m.draft_length for m in goal.feedback if m.completion_tokens > 1}


def test_at_forced_levels(active: NodeProcess, driver: Driver, temperature: float) -> None:
    try:
        seed, expected = long_answer(driver, temperature)
        assert len(set(expected)) > 20, "an answer that repeats itself would hide a difference"
        for level, cap in CAPS.items():
            force(driver, level)
            goal = ask(driver, temperature, seed)
            assert tokens(goal) == expected, level
            assert max(lengths(goal)) == cap
    finally:
        force(driver, "")


def test_when_heat_and_power_mode_change_in_mid_answer(
    active: NodeProcess, driver: Driver, tree: JetsonTree, temperature: float
) -> None:
    """The board really heats up, paces, changes its mode and cools down while the answer runs."""
    seed, expected = long_answer(driver, temperature)
    try:
        goal = ask(driver, temperature, seed)
        goal.wait_text()
        tree.write(CPU, "96900")  # HOT: paces, drafts one token
        driver.wait_until(lambda: driver.power[-1].level == PowerState.HOT)
        driver.wait_until(lambda: goal.done or goal.feedback[-1].draft_length == 1)
        tree.write(MODE, "pmode:0000")
        driver.wait_until(lambda: driver.power[-1].power_mode == "15W")
        assert not goal.done
        tree.write(CPU, "51687")
        driver.wait_until(lambda: driver.power[-1].level == PowerState.NOMINAL)
        driver.wait_until(lambda: goal.done or goal.feedback[-1].draft_length == 2)
        tree.write(MODE, "pmode:0002")
        assert tokens(goal) == expected
        assert {1, 2, 7} <= lengths(goal)
    finally:
        tree.write(CPU, "51687")
        tree.write(MODE, "pmode:0002")
