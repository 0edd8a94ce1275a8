# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp doctor --only ros`` in a shell where ROS and the workspace are sourced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gemma_mtp_ros.msg

REPOSITORY = str(Path(__file__).parent.parent.parent)


def find(**environment: str) -> tuple[str, str]:
    """Grade and message of the only finding."""
    process = subprocess.run(
        [sys.executable, "-m", "gemma_mtp_ros", "doctor", "--only", "ros", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stderr == ""
    (found,) = json.loads(process.stdout)["findings"]
    return found["grade"], found["message"]


def test_ros_and_interfaces_are_found() -> None:
    grade, message = find()
    assert grade == "ok"
    assert message.startswith("ROS ")
    assert message.endswith(", interfaces are built")


def test_a_middleware_that_is_not_there() -> None:
    grade, message = find(RMW_IMPLEMENTATION="rmw_none")
    assert grade == "error"
    assert message.startswith("the middleware of ROS cannot be loaded (")
    assert "rmw_none" in message


def test_interfaces_that_are_not_built() -> None:
    built = os.path.dirname(os.path.dirname(os.path.dirname(gemma_mtp_ros.msg.__file__)))
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    left = [place for place in path if os.path.realpath(place) != os.path.realpath(built)]
    if left == path:
        pytest.skip("the interfaces are not found through PYTHONPATH")
    grade, message = find(PYTHONPATH=os.pathsep.join([REPOSITORY, *left]))
    assert grade == "error"
    assert message.startswith("the interfaces of gemma_mtp_ros cannot be loaded (")
