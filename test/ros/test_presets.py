# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The presets of config/: what they set exists and is allowed, and the node runs with them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from driver import SUCCEEDED, Driver, running_node
from test_goals import SHORT
from test_launch import launched, wait_active

from gemma_mtp_ros.ros.parameters import BY_NAME, check
from gemma_mtp_ros.telemetry.boards import MODULES

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "config"
BASE = CONFIG / "orin.yaml"
PRESETS = ("orin_nano", "orin_nx", "agx_orin", "thor", "cpu")
LOAD_S = 180.0

HERE = {
    "model": "demo",
    "engine.device": "cpu",
    "engine.memory_reserve_mib": 256,
    "telemetry.source": "none",
}
"""What this machine is not: a Jetson with the memory of one."""


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters by name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def parameters_of(file: Path) -> dict[str, Any]:
    """What a file sets."""
    return flat(yaml.safe_load(file.read_text())["/**"]["ros__parameters"])


def test_each_preset_is_here_and_each_is_some_boards_or_the_cpus() -> None:
    files = {path.stem for path in CONFIG.glob("*.yaml")}
    assert files == {*PRESETS, "orin", "demo"}
    assert {module.preset for module in MODULES} | {"cpu"} == set(PRESETS)
    written = re.search(r"^PRESETS = \((.*)\)$", (ROOT / "launch/node.launch.py").read_text(), re.M)
    assert written is not None
    assert re.findall(r"\w+", written[1]) == list(PRESETS)


@pytest.mark.parametrize("name", ["orin", *PRESETS])
def test_every_parameter_exists_is_in_range_and_is_explained(name: str) -> None:
    file = CONFIG / f"{name}.yaml"
    values = parameters_of(file)
    assert values
    for parameter, value in values.items():
        assert parameter in BY_NAME, parameter
        assert check(BY_NAME[parameter], value) == ""
    for line in file.read_text().splitlines():
        if re.match(r"\s+\w+: *\S", line):
            assert re.search(r"\S +# .{10}", line), f"{line.strip()} is not explained"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_the_planner_knows_the_presets_cache(module: Any) -> None:
    assert parameters_of(CONFIG / f"{module.preset}.yaml")["cache.max_mib"] == module.cache_mib


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PRESETS)
def test_the_node_serves_a_goal_with_each_preset(driver: Driver, tmp_path: Path, name: str) -> None:
    overlay = CONFIG / f"{name}.yaml"
    arguments = [word for file in (BASE, overlay) for word in ("--params-file", str(file))]
    for parameter, value in HERE.items():
        arguments += ["-p", f"{parameter}:={value}"]
    with running_node(tmp_path, driver, {"autostart": False}, *arguments) as node:
        assert driver.change("configure", LOAD_S), node.log
        assert driver.change("activate"), node.log
        status, result = driver.send(**SHORT).result(60.0)
        assert status == SUCCEEDED, result
        assert result.text
        wanted = parameters_of(BASE) | parameters_of(overlay)
        assert driver.get("engine.weights").string_value == wanted["engine.weights"]
        assert driver.get("engine.max_context").integer_value == wanted["engine.max_context"]
        assert driver.get("queue_size").integer_value == wanted["queue_size"]
        assert "did you mean" not in node.log


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", PRESETS)
def test_launch_lays_a_preset_over_the_base(driver: Driver, tmp_path: Path, name: str) -> None:
    """And the file of params_file over that, and arguments over all."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "/**: {ros__parameters: {queue_size: 7, telemetry: {source: none}, engine: {nice: 6}}}\n"
    )
    launch_file = "thor.launch.py" if name == "thor" else "orin.launch.py"
    arguments = [f"preset:={name}", "model:=demo", "device:=cpu", f"params_file:={mine}"]
    arguments += ["max_context:=2048", "memory_reserve_mib:=256"]
    driver.forget()
    with launched(launch_file, tmp_path / "log", *arguments):
        wait_active(driver)
        driver.wait_node()
        wanted = parameters_of(BASE) | parameters_of(CONFIG / f"{name}.yaml")
        assert driver.get("engine.weights").string_value == wanted["engine.weights"]
        assert driver.get("engine.prefill_chunk").integer_value == wanted["engine.prefill_chunk"]
        assert driver.get("goal_timeout_s").double_value == wanted["goal_timeout_s"]
        assert driver.get("queue_size").integer_value == 7
        assert driver.get("engine.nice").integer_value == 6
        assert driver.get("engine.max_context").integer_value == 2048
        assert driver.get("engine.device").string_value == "cpu"
        assert driver.send(**SHORT).result(60.0)[0] == SUCCEEDED


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_board_that_is_not_known_has_the_base_alone(driver: Driver, tmp_path: Path) -> None:
    """Which asks for CUDA: the sentence says what to do where there is none."""
    driver.forget()
    log = tmp_path / "log"
    with launched("orin.launch.py", log, "model:=demo", "device:=cpu"):
        wait_active(driver)
    assert "this board is not known, config/orin.yaml alone holds" in log.read_text()


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_line_that_plan_prints_starts_the_node(driver: Driver, tmp_path: Path) -> None:
    options = ["--module", "orin-nano-8gb", "--device", "cpu", "--model", "demo", "--json"]
    options += ["--weights", "int8", "--kv-dtype", "int8", "--reserve-mib", "300"]
    planned = subprocess.run(
        [sys.executable, "-m", "gemma_mtp_ros", "plan", *options], capture_output=True, text=True
    )
    assert planned.returncode == 0, planned.stderr
    found = json.loads(planned.stdout)
    words = found["launch"].split()
    assert words[:4] == ["ros2", "launch", "gemma_mtp_ros", "orin.launch.py"]
    driver.forget()
    with launched(words[3], tmp_path / "log", *words[4:]):
        wait_active(driver)
        driver.wait_node()
        chosen = found["recommended"]
        assert driver.get("engine.weights").string_value == "int8"
        assert driver.get("engine.kv_dtype").string_value == "int8"
        assert driver.get("engine.memory_reserve_mib").integer_value == 300
        assert driver.get("engine.max_context").integer_value == chosen["max_context"]
        assert driver.get("draft.max_length").integer_value == chosen["draft_max_length"]
        assert driver.send(**SHORT).result(60.0)[0] == SUCCEEDED
