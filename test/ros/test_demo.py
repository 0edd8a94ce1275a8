# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The demo as `make demo` runs it, on a tiny random pair."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from driver import Driver

REPOSITORY = Path(__file__).parent.parent.parent


def start(folder: Path, parameters: dict[str, Any], *arguments: str) -> subprocess.Popen[str]:
    file = folder / "params.yaml"
    file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}))
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-m", "gemma_mtp_ros.ros.demo", "--params-file", str(file), *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def limited(parameters: dict[str, Any], tokens: int) -> dict[str, Any]:
    return parameters | {"sampling": {"max_new_tokens": tokens, "temperature": 0.0}}


def test_three_instructions_are_answered_and_the_node_ends(
    tmp_path: Path,
    parameters: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ROS_DOMAIN_ID", raising=False)
    process = start(tmp_path, limited(parameters, 12))
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    steps = re.findall(r"^✓ (\w+): ", out, flags=re.MULTILINE)
    ended = ["deactivate", "cleanup", "shutdown", "node"]
    assert steps == ["node", "configure", "activate", *ended]
    assert "DISABLED" in out
    assert len(re.findall(r"^> ", out, flags=re.MULTILINE)) == 3
    for name in ("tokens/s", "time to first token", "acceptance", "tokens per target pass"):
        assert out.count(name) == 3
    node = int(re.findall(r"process (\d+)", out)[0])
    assert not psutil.pid_exists(node)


@pytest.mark.usefixtures("active")
def test_another_node_of_that_name_is_left_alone(
    tmp_path: Path, parameters: dict[str, Any], driver: Driver
) -> None:
    process = start(tmp_path, limited(parameters, 4), "--prompt", "hello")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.count("tokens/s") == 1
    assert driver.state() == "active"


def test_a_node_that_cannot_load_is_explained(tmp_path: Path, parameters: dict[str, Any]) -> None:
    process = start(tmp_path, parameters | {"model": "/no/such/folder"}, "--prompt", "hello")
    out, err = process.communicate()
    assert process.returncode == 1
    assert "activate" not in out
    *lines, sentence = err.strip().splitlines()
    assert sentence == "demo: the transition configure failed"
    assert any("/no/such/folder" in line for line in lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_node_too(
    tmp_path: Path, parameters: dict[str, Any], number: signal.Signals
) -> None:
    slow = limited(parameters, 4000)
    slow["engine"] = slow["engine"] | {"max_duty_cycle": 0.1}
    process = start(tmp_path, slow, "--prompt", "hello")
    assert process.stdout is not None
    said = ""
    while "\n> hello" not in said:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        said += line
    node = psutil.Process(int(re.findall(r"process (\d+)", said)[0]))
    family = [node, *node.children(recursive=True)]
    assert len(family) == 2  # the node and its engine
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number, (out, err)
    assert not any(member.is_running() for member in family)
