# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps ROS traffic of the tests on this machine, and leaves out what is not installed, aloud."""

import importlib.util
import os
import shutil
import signal
from pathlib import Path

import hypothesis
import pytest

# The same examples in every run: GEMMA_MTP_EXPLORE=1 looks for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True)
if not os.environ.get("GEMMA_MTP_EXPLORE"):
    hypothesis.settings.load_profile("fixed")

# A shell's background job ignores SIGINT, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Idle OpenMP threads spin: more of them than free cores make tiny models ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A domain of their own, whatever the shell's is: a robot's node must not hear the tests.
os.environ["ROS_DOMAIN_ID"] = os.environ.get("GEMMA_MTP_TEST_DOMAIN", str(1 + os.getpid() % 100))
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
if os.environ.get("ROS_DISTRO") == "humble":
    os.environ.setdefault("ROS_LOCALHOST_ONLY", "1")

HAVE_ROS = all(importlib.util.find_spec(name) for name in ("rclpy", "gemma_mtp_ros.msg"))
HAVE_LAUNCH = bool(HAVE_ROS and importlib.util.find_spec("launch_ros") and shutil.which("ros2"))

ROS_FOLDER = Path(__file__).parent / "ros"
if not HAVE_ROS:
    if os.environ.get("GEMMA_MTP_REQUIRE_ROS"):
        raise pytest.UsageError("rclpy or the built interfaces are missing: run make build")
    collect_ignore = ["ros"]


def pytest_report_header() -> list[str]:
    said = [f"ROS domain {os.environ['ROS_DOMAIN_ID']}"]
    if not HAVE_ROS:
        said.append("rclpy or the built interfaces are not installed: test/ros is left out")
    if not HAVE_LAUNCH:
        said.append("launch_ros or ros2 is not installed: tests marked launch are skipped")
    return said


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if ROS_FOLDER in Path(item.path).parents:
            item.add_marker(pytest.mark.ros)
        if item.get_closest_marker("launch") and not HAVE_LAUNCH:
            item.add_marker(pytest.mark.skip(reason="launch_ros or ros2 is not installed"))
        if item.get_closest_marker("ros") and not HAVE_ROS:
            item.add_marker(pytest.mark.skip(reason="rclpy or the built interfaces are missing"))
