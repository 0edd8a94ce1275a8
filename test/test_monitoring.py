# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The rqt perspective names what there is, in the form that rqt imports."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PERSPECTIVE = ROOT / "config" / "gemma_mtp.perspective"
TOPICS = {"power": "PowerState", "stats": "EngineStats"}
NUMBERS = re.compile(r"^(float32|float64|u?int\d+) (\w+)\s*(#|$)", re.MULTILINE)


def value(entry: dict[str, str]) -> Any:
    """What rqt makes of a key; a QByteArray as its hexadecimal digits."""
    if entry["type"] == "repr":
        return ast.literal_eval(entry["repr"])
    assert entry["type"] == "repr(QByteArray.hex)"
    digits = re.fullmatch(r"QtCore\.QByteArray\((b'[0-9a-f]*')\)", entry["repr(QByteArray.hex)"])
    assert digits is not None
    return bytes.fromhex(ast.literal_eval(digits[1]).decode())


def keys(group: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    assert set(group) == {"keys", "groups"}
    for name, entry in group["keys"].items():
        yield f"{path}{name}", value(entry)
    for name, inner in group["groups"].items():
        yield from keys(inner, f"{path}{name}/")


def settings() -> dict[str, Any]:
    return dict(keys(json.loads(PERSPECTIVE.read_text())))


def test_the_plugins_that_run_have_settings() -> None:
    found = settings()
    running = found["pluginmanager/running-plugins"]
    assert running == {"rqt_plot/Plot": [1, 2, 3, 4], "rqt_runtime_monitor/RuntimeMonitor": [1]}
    for plugin, numbers in running.items():
        for number in numbers:
            name = f"pluginmanager/plugin__{plugin.replace('/', '__')}__{number}/"
            assert any(key.startswith(name) for key in found), name
    assert found["mainwindow/geometry"]
    assert found["mainwindow/state"]


def test_every_curve_is_a_number_of_a_message() -> None:
    plotted = [
        curve
        for key, topics in settings().items()
        if key.endswith("/plugin/topics")
        for curve in ([topics] if isinstance(topics, str) else topics)
    ]
    assert len(plotted) == len(set(plotted)) == 7
    for curve in plotted:
        node, topic, field = curve.strip("/").split("/")
        assert node == "gemma_mtp"
        text = (ROOT / "msg" / f"{TOPICS[topic]}.msg").read_text()
        assert field in {name for _, name, _ in NUMBERS.findall(text)}, curve


def test_it_is_installed_with_the_configuration() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.search(r"foreach\(folder [^)]*\bconfig\b", cmake)
    assert (
        "share/gemma_mtp_ros/config/gemma_mtp.perspective"
        in (ROOT / "docs" / "monitoring.md").read_text()
    )
