# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The launch files under the real ros2 launch; skipped, and said so, where it is not installed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from driver import SUCCEEDED, Driver
from jetson_tree import ORIN_NANO, JetsonTree
from test_goals import SHORT

pytestmark = [pytest.mark.launch, pytest.mark.timeout(300)]

LAUNCH = Path(__file__).parent.parent.parent / "launch"
ARGUMENTS = {"namespace", "params_file", "model", "drafter", "autostart", "respawn"}
ARGUMENTS |= {"log_level", "use_sim_time", "preset", "device", "weights", "kv_dtype", "ple"}
ARGUMENTS |= {"max_context", "draft_kind", "draft_length", "cache_mib", "memory_reserve_mib"}
ARGUMENTS |= {"reproducible", "structured_output", "telemetry_root"}
NAMES = ["demo", "node", "orin", "thor"]
LOAD_S = 180.0


@contextlib.contextmanager
def launched(name: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ros2 launch` of a file of this repository; ended by SIGINT, as at a terminal."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["ros2", "launch", str(LAUNCH / name), *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        print(log.read_text(errors="replace"))
        raise
    finally:
        nodes = node_pids(process)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pid in nodes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def node_pids(launch: subprocess.Popen[bytes]) -> list[int]:
    """The node's processes under a launch; the engine is a child of theirs and not meant."""
    with contextlib.suppress(psutil.Error):
        return [
            child.pid
            for child in psutil.Process(launch.pid).children()
            if any("__node:=gemma_mtp" in word for word in child.cmdline())
        ]
    return []


def wait_active(driver: Driver) -> None:
    """Wait until a node says in its log that it took up work."""
    driver.wait_until(lambda: any("takes goals" in log.msg for log in driver.logs), LOAD_S)


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_shown(name: str) -> None:
    command = ["ros2", "launch", str(LAUNCH / f"{name}.launch.py"), "--show-args"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    shown = {line.strip().strip("':") for line in done.stdout.splitlines()}
    assert shown >= ARGUMENTS


@pytest.mark.parametrize("name", ["orin", "thor"])
def test_a_board_needs_a_model(name: str) -> None:
    command = ["ros2", "launch", str(LAUNCH / f"{name}.launch.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "model" in done.stdout + done.stderr


@pytest.mark.parametrize(
    "argument",
    [
        "respawn:=perhaps",
        "max_context:=many",
        "preset:=orin",
        "reproducible:=2",
        "params_file:=/no/such.yaml",
    ],
)
def test_a_bad_argument_is_told(argument: str) -> None:
    command = ["ros2", "launch", str(LAUNCH / "demo.launch.py"), argument]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"{argument} is not" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_killed_node_comes_up_active_again(
    driver: Driver, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    models = [f"model:={pair[0]}", f"drafter:={pair[1]}"]
    driver.forget()
    with launched("demo.launch.py", tmp_path / "log", *models, "respawn:=true") as launch:
        wait_active(driver)
        driver.wait_node()
        assert driver.send(**SHORT).result()[0] == SUCCEEDED
        (pid,) = node_pids(launch)
        driver.forget()
        os.kill(pid, signal.SIGKILL)
        wait_active(driver)
        (again,) = node_pids(launch)
        assert again != pid
        fresh = Driver()
        try:
            fresh.wait_node()
            assert fresh.state() == "active"
            assert fresh.send(**SHORT).result()[0] == SUCCEEDED
        finally:
            fresh.close()
        begun_s = time.monotonic()
        launch.send_signal(signal.SIGINT)
        assert launch.wait(15) == 0
        assert time.monotonic() - begun_s < 5.0  # launch sends SIGTERM after 5 s
        assert not psutil.pid_exists(again)


@pytest.mark.slow
def test_arguments_reach_the_node(driver: Driver, pair: tuple[Path, Path], tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("/**: {ros__parameters: {queue_size: 7, model: elsewhere}}\n")
    arguments: list[Any] = [f"model:={pair[0]}", f"drafter:={pair[1]}", f"params_file:={params}"]
    arguments += ["autostart:=false", "use_sim_time:=true"]
    driver.forget()
    with launched("demo.launch.py", tmp_path / "log", *arguments):
        driver.wait_node(LOAD_S)
        assert driver.state() == "unconfigured"
        assert driver.get("queue_size").integer_value == 7
        assert driver.get("model").string_value == str(pair[0])
        assert driver.get("use_sim_time").bool_value
        # Nobody publishes /clock: what is timed here must run on the steady clock.
        driver.wait_until(lambda: len(driver.diagnostics) >= 2)


@pytest.mark.slow
def test_the_preset_is_that_of_the_board_that_telemetry_reads(
    driver: Driver, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    arguments = [f"model:={pair[0]}", f"telemetry_root:={tmp_path / 'board'}", "autostart:=false"]
    (tmp_path / "board").mkdir()
    driver.forget()
    with (
        JetsonTree(tmp_path / "board", ORIN_NANO),
        launched("orin.launch.py", tmp_path / "log", *arguments),
    ):
        driver.wait_node(LOAD_S)
        assert "preset orin_nano, by the board's model" in (tmp_path / "log").read_text()
        assert driver.get("telemetry.root").string_value == str(tmp_path / "board")
        driver.wait_until(lambda: driver.power[-1].power_mode == "MAXN_SUPER")
