# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A trace recorded on a board, replayed by the node."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from driver import Driver, running_node
from jetson_tree import ORIN_NANO, JetsonTree

from gemma_mtp_ros.msg import PowerState
from gemma_mtp_ros.telemetry.sysfs import SysfsSource
from gemma_mtp_ros.telemetry.trace import Header, TraceWriter

CPU = "sys/class/thermal/thermal_zone0/temp"
STEPS = (51000, 90000, 98000)
"""Millidegrees, each held for three seconds."""


def record(path: Path, folder: Path) -> None:
    """As gemma-mtp record would on a board that heats up."""
    with JetsonTree(folder, ORIN_NANO) as board:
        source = SysfsSource(board.root)
        reading = source.read()
        begin_s = reading.stamp_s
        header = Header(period_s=0.2, source=reading.source, board=reading.board)
        with TraceWriter(path, header) as writer:
            for i in range(15 * len(STEPS)):
                if i % 15 == 0:
                    board.write(CPU, str(STEPS[i // 15]))
                    reading = source.read()
                writer.write(dataclasses.replace(reading, stamp_s=begin_s + 0.2 * i))


def test_a_trace_is_replayed_to_the_topic(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    trace = tmp_path / "board.jsonl"
    record(trace, tmp_path / "board")
    mine = {
        **parameters,
        "telemetry": {"source": "replay", "trace": str(trace)},
        "watchdog": {"mode": "report", "period_s": 0.1, "min_dwell_s": 0, "stale_after_s": 1.0},
    }
    driver.forget()
    with running_node(tmp_path, driver, mine):
        for level in (PowerState.NOMINAL, PowerState.WARM, PowerState.HOT, PowerState.UNKNOWN):
            driver.wait_until(
                lambda level=level: any(power.level == level for power in driver.power)
            )
        levels = [power.level for power in driver.power]
        assert levels == sorted(levels, key=[1, 2, 3, 0].index), "not in the order recorded"
        hottest = max(p.temperature_c for p in driver.power if not math.isnan(p.temperature_c))
        assert abs(hottest - 98.0) < 0.01
        assert driver.power[-1].power_mode == ""


def test_a_trace_that_comes_late_is_taken_at_the_next_configure(
    driver: Driver, parameters: dict[str, Any], tmp_path: Path
) -> None:
    trace = tmp_path / "late.jsonl"
    mine = {
        **parameters,
        "telemetry": {"source": "replay", "trace": str(trace), "loop": True},
        "watchdog": {"mode": "report", "period_s": 0.1},
    }
    driver.forget()
    with running_node(tmp_path, driver, mine):
        assert not driver.change("configure", 60.0)
        assert any("late.jsonl" in entry.msg for entry in driver.logs)
        assert driver.state() == "unconfigured"
        record(trace, tmp_path / "board")
        assert driver.change("configure", 180.0)
        driver.wait_until(lambda: driver.power[-1].source == "replay")
        assert driver.change("cleanup")
        assert driver.set(telemetry__source="replay", telemetry__trace=str(tmp_path / "no")) == ""
        assert not driver.change("configure", 60.0)
        assert driver.set(telemetry__source="none") == ""
        assert driver.change("configure", 180.0)
