# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The example that turns a plan into goals, against the mock robot: processes, as a user runs it.

The messages of Nav2 and the arm are built here (a stand-in where Nav2 is not installed).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from driver import REPOSITORY, Driver, running_node

EXAMPLE = REPOSITORY / "examples" / "plan_to_goals"
WAIT_S = 60.0
MISSING = [
    *(name for name in ("rosidl_adapter", "catkin_pkg") if not importlib.util.find_spec(name)),
    *(name for name in ("colcon", "cmake") if not shutil.which(name)),
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
if MISSING and not os.environ.get("GEMMA_MTP_REQUIRE_ROS"):
    pytestmark.append(
        pytest.mark.skip(reason=f"not installed, to build messages: {', '.join(MISSING)}")
    )

DRIVE = {"action": "navigate", "to": "kitchen"}
PICK = {"action": "pick", "object": "red cup"}
GIVE = {"action": "give", "object": "red cup", "to": "Anna"}
BRING = [DRIVE, PICK, GIVE]
FAST = ("--speed", "200", "--phase", "0.01")
SLOW = ("--speed", "0.01", "--phase", "100")


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a shell that has sourced the example's interfaces."""
    workspace = REPOSITORY / ".ws"  # what make example uses
    into = workspace / "example" if workspace.exists() else tmp_path_factory.mktemp("example")
    script = f'. "{EXAMPLE}/interfaces.sh" "{into}" && env -0'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    variables = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    return variables | {"PYTHONPATH": f"{REPOSITORY}:{variables.get('PYTHONPATH', '')}"}


class Robot:
    """The mock robot in its own process, and what it says it did."""

    def __init__(self, environment: dict[str, str], arguments: Sequence[str]) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLE / "mock_robot.py"), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.wait(lambda: bool(self.events))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.events.append(json.loads(line))
                self._changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), self.events

    @property
    def did(self) -> list[str]:
        return [event["event"] for event in self.events[1:]]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._reader.join(5)


@contextlib.contextmanager
def robot(environment: dict[str, str], *arguments: str) -> Iterator[Robot]:
    robot = Robot(environment, arguments)
    try:
        yield robot
    finally:
        robot.close()


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE / "execute_plan.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def execute(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Exit status and what was printed; the last line is the verdict."""
    out, err = (process := start(environment, *arguments)).communicate(timeout=WAIT_S)
    assert err == ""
    return process.returncode, out


def file_of(folder: Path, plan: list[Any]) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps({"plan": plan}))
    return f"--plan={path}"


def verdict(out: str) -> str:
    return out.strip().splitlines()[-1]


def test_a_plan_is_carried_out_step_by_step(environment: dict[str, str], tmp_path: Path) -> None:
    plan = [*BRING, {"action": "wait", "seconds": 0.1}, {"action": "dock"}]
    with robot(environment, *FAST) as mock:
        status, out = execute(environment, file_of(tmp_path, plan))
        mock.wait(lambda: mock.did[-1:] == ["arrived"] and len(mock.did) == 10)
        done = mock.events[1:]
    assert (status, verdict(out)) == (0, "✓ done: all 6 goals were reached")
    assert [event["event"] for event in done] == [
        *("drive", "arrived", "pick", "pick done"),
        *("drive", "arrived", "give", "give done", "drive", "arrived"),
    ]
    assert done[0] == {"event": "drive", "x": 4.0, "y": 1.0, "yaw": 1.57, "frame": "map"}
    assert done[2] == {"event": "pick", "object": "red cup", "target": ""}
    assert done[6] == {"event": "give", "object": "red cup", "target": "Anna"}
    assert len(re.findall(r"^✓ step \d: ", out, flags=re.MULTILINE)) == 6


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ([DRIVE, {"action": "navigate", "to": "moon"}], "moon is no place"),
        ([DRIVE, {"action": "pick", "object": "dragon"}], "dragon is no object"),
        ([DRIVE, GIVE, PICK], "the robot would hold nothing then"),
    ],
)
def test_a_plan_that_cannot_be_done_moves_nothing(
    environment: dict[str, str], tmp_path: Path, plan: list[Any], why: str
) -> None:
    with robot(environment, *FAST) as mock:
        status, out = execute(environment, file_of(tmp_path, plan))
    assert status == 1
    assert verdict(out).startswith("✗ refused: step 2, ")
    assert why in verdict(out)
    assert mock.did == []


def test_a_plan_is_checked_without_a_robot(environment: dict[str, str], tmp_path: Path) -> None:
    status, out = execute(environment, file_of(tmp_path, BRING), "--dry-run")
    assert (status, verdict(out)) == (0, "✓ checked: 4 goals")


def test_no_server_is_refused_before_anything_moves(
    environment: dict[str, str], tmp_path: Path
) -> None:
    status, out = execute(environment, file_of(tmp_path, BRING))
    assert status == 1
    assert re.search("refused: no action server (navigate_to_pose|manipulate) ", verdict(out))


@pytest.mark.parametrize(
    ("fails", "done", "why"),
    [
        ("drive", ["drive", "drive aborted"], "drive to kitchen: the way is blocked (error 9003)"),
        (
            "pick",
            ["drive", "arrived", "pick", "pick aborted"],
            "pick red cup: there is no red cup to be seen (error 1)",
        ),
    ],
)
def test_a_step_that_fails_ends_the_run_and_is_reported(
    environment: dict[str, str], tmp_path: Path, fails: str, done: list[str], why: str
) -> None:
    with robot(environment, *FAST, "--fail", fails) as mock:
        status, out = execute(environment, file_of(tmp_path, BRING))
        mock.wait(lambda: len(mock.did) >= len(done))
    assert (status, verdict(out)) == (1, f"✗ failed: {why}")
    assert mock.did == done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("plan", "begun", "ended"),
    [([DRIVE, PICK], "drive", "drive canceled"), ([PICK, DRIVE], "pick", "pick canceled")],
)
def test_a_stop_cancels_the_step_that_runs(
    environment: dict[str, str],
    tmp_path: Path,
    number: signal.Signals,
    plan: list[Any],
    begun: str,
    ended: str,
) -> None:
    with robot(environment, *SLOW) as mock:
        process = start(environment, file_of(tmp_path, plan))
        mock.wait(lambda: mock.did == [begun])
        process.send_signal(number)
        out, err = process.communicate(timeout=WAIT_S)
        mock.wait(lambda: ended in mock.did)
    assert (process.returncode, err) == (130, "")
    assert verdict(out).startswith("✗ stopped: ")
    assert verdict(out).endswith(", which was canceled")
    assert mock.did == [begun, ended]  # and no step after it


def test_a_stop_ends_a_wait(environment: dict[str, str], tmp_path: Path) -> None:
    with robot(environment, *FAST) as mock:
        plan = [DRIVE, {"action": "wait", "seconds": 3000}, PICK]
        process = start(environment, file_of(tmp_path, plan))
        mock.wait(lambda: mock.did == ["drive", "arrived"])
        assert process.stdout is not None
        said = ""
        while "drive to kitchen (" not in said:  # printed as the wait begins
            said = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert verdict(out) == "✗ stopped: wait 3000 s, which was cut short"
    assert mock.did == ["drive", "arrived"]


def test_a_server_that_dies_fails_the_step(environment: dict[str, str], tmp_path: Path) -> None:
    with robot(environment, *SLOW) as mock:
        process = start(environment, file_of(tmp_path, [DRIVE]))
        mock.wait(lambda: mock.did == ["drive"])
        mock.kill()
        out, err = process.communicate(timeout=WAIT_S)  # DDS notices after its lease
    assert (process.returncode, err) == (1, "")
    assert verdict(out) == "✗ failed: drive to kitchen: navigate_to_pose is gone"


def test_what_the_embedded_pair_plans_is_carried_out(
    environment: dict[str, str], driver: Driver, tmp_path: Path
) -> None:
    parameters: dict[str, Any] = {
        "model": "demo",
        "engine": {"threads": 1},
        "telemetry": {"source": "none"},
        "watchdog": {"mode": "off"},
    }
    with running_node(tmp_path, driver, parameters), robot(environment, *FAST) as mock:
        status, out = execute(environment, "Go to the kitchen.")
        assert status == 1
        assert "refused: /gemma_mtp rejected the goal" in verdict(out)
        assert mock.did == []
        assert driver.change("configure", 180.0)
        assert driver.change("activate")
        status, out = execute(environment, "Bring Anna the red cup from the kitchen.")
        assert (status, verdict(out)) == (0, "✓ done: all 4 goals were reached")
        assert "I will bring Anna the red cup from the kitchen." in out
        done = ["drive", "arrived", "pick", "pick done", "drive", "arrived", "give", "give done"]
        mock.wait(lambda: len(mock.did) >= len(done))
        assert mock.did == done
        status, out = execute(environment, "Take the toolbox from the workshop to the moon.")
        assert status == 1
        assert "moon is no place" in verdict(out)
        assert mock.did == done
