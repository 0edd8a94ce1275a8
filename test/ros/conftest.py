# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The client side of the tests, a tiny random pair, and a node that several tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from driver import Driver, NodeProcess, running_node  # noqa: E402


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a tiny random target and its drafter."""
    from tiny import make_pair

    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def parameters(pair: tuple[Path, Path]) -> dict[str, Any]:
    """Parameters for a node with the tiny pair.

    Plain widths, as the engine's tests do the bits, and drafts of a fixed length, whatever this
    machine says of their cost.
    """
    target, drafter = pair
    return {
        "model": str(target),
        "drafter": str(drafter),
        "draft": {"adaptive": False},
        "engine": {"reproducible": False, "threads": 1, "prefill_chunk": 8},
        "telemetry": {"source": "none"},
        "watchdog": {"mode": "off"},
    }


@pytest.fixture(scope="session")
def embedded() -> dict[str, Any]:
    """Parameters for a node with the embedded pair, slow enough to be interrupted.

    It takes about ten times as long as it computes; all of a burst may wait.
    """
    return {
        "model": "demo",
        "queue_size": 40,
        "draft": {"adaptive": False},
        "engine": {"threads": 1, "max_duty_cycle": 0.1},
        "telemetry": {"source": "none"},
        "watchdog": {"mode": "off"},
    }


@pytest.fixture(scope="module")
def shared(
    driver: Driver, parameters: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeProcess]:
    """A node that was configured and activated, for the tests of one module."""
    with running_node(tmp_path_factory.mktemp("shared"), driver, parameters) as node:
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        yield node


@pytest.fixture
def active(shared: NodeProcess, driver: Driver) -> Iterator[NodeProcess]:
    """The shared node, ACTIVE and without goals; what was received before is forgotten."""
    if driver.state() == "inactive":
        assert driver.change("activate")
    assert driver.state() == "active"
    driver.forget()
    yield shared
    driver.end_goals()
