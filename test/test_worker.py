# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine process: its bounds, what it imports, and that it ends with its host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from host_tools import PATIENCE_S, Life, Told, endless_pair, running, submit

from gemma_mtp_ros.api import CheckpointError, EngineConfig, ErrorCode, FinishReason, RequestError
from gemma_mtp_ros.engine.bounds import DutyCycle
from gemma_mtp_ros.engine.worker import classify, device_lost, explain

ROOT = str(Path(__file__).parent.parent)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    target, drafter = endless_pair(tmp_path_factory.mktemp("pair"))
    return EngineConfig(
        model=str(target), drafter=str(drafter), reproducible=False, max_context=4096
    )


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def niceness(path: Path) -> int:
    return int((path / "stat").read_text().rpartition(")")[2].split()[16])


def test_bounds_take_effect_and_a_load_shows_signs_of_life(config: EngineConfig) -> None:
    cpu = max(os.sched_getaffinity(0))
    bounds = {"threads": 1, "nice": 7, "cpu_affinity": (cpu,), "oom_score_adj": 917}
    told = Told()
    with running(config.model_copy(update=bounds), on_progress=told) as host:
        stages = [message.stage for message in told.all]
        assert stages[0] == "importing torch"
        assert len(set(stages)) > 2
        assert all(0.0 <= message.fraction <= 1.0 for message in told.all)
        assert submit(host, "a", tokens=20).finish().finish_reason is FinishReason.LENGTH
        pid = host.pid
        assert pid is not None
        proc = Path(f"/proc/{pid}")
        assert status(pid)["Cpus_allowed_list"].strip() == str(cpu)
        assert (proc / "oom_score_adj").read_text().strip() == "917"
        tasks = list((proc / "task").iterdir())
        assert {niceness(task) for task in tasks} == {7}
        assert len(tasks) == 1
        assert os.getsid(pid) == os.getpgid(pid) == pid
        maps = (proc / "maps").read_text()
        assert "libtorch" in maps
        for unwanted in ("librcl", "rclpy", "/dev/shm/"):
            assert unwanted not in maps


@pytest.mark.slow
def test_more_threads_where_they_are_asked_for(config: EngineConfig) -> None:
    with running(config.model_copy(update={"threads": 3, "drafter": ""})) as host:
        submit(host, "a", prompt="Go " * 400, tokens=20).finish()
        assert int(status(host.pid or 0)["Threads"]) >= 3


def test_the_module_loads_neither_torch_nor_ros() -> None:
    code = "import sys, gemma_mtp_ros.engine.worker; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"torch", "transformers", "rclpy", "numpy"} == set()


PARENT = """
import os, sys, threading
from gemma_mtp_ros.api import EngineConfig, Piece, Request, SamplingParams
from gemma_mtp_ros.host import EngineHost

def progress(message):
    if sys.argv[1] == "load":
        print(host.pid, flush=True)

def sink(event):
    if isinstance(event, Piece):
        print(host.pid, flush=True)

host = EngineHost(EngineConfig.model_validate_json(sys.argv[2]), on_progress=progress)
host.start()
sampling = SamplingParams(max_new_tokens=3000)
host.submit(Request(id="a", raw_prompt="Go", sampling=sampling), sink)
threading.Event().wait()
"""


@pytest.mark.parametrize("phase", ["load", "answer"])
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_it_dies_with_its_parent(config: EngineConfig, phase: str, end: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, phase, config.model_dump_json()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    engine = Life(int(parent.stdout.readline()))
    parent.send_signal(end)
    parent.wait()
    engine.wait_end(5.0)
    parent.stdout.close()


@pytest.mark.slow
def test_it_dies_with_its_parent_even_when_it_is_stopped(config: EngineConfig) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "answer", config.model_dump_json()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    engine = Life(int(parent.stdout.readline()))
    os.kill(engine.pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    engine.wait_end(5.0)
    parent.stdout.close()


def test_it_does_not_start_without_its_parent(config: EngineConfig) -> None:
    """The parent that is named has ended before the process could tie itself to it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gemma_mtp_ros.engine.worker",
            f"--parent={ended.pid}",
            "--socket=0",
            "--control=0",
            "--directory=/",
        ],
        cwd=ROOT,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0


def test_the_duty_cycle_owes_rest_for_work() -> None:
    duty = DutyCycle()
    duty.worked(3.0, 0.75)
    assert duty.owed_s(0.75) == 1.0
    duty.rested(0.4, 0.75)
    duty.worked(0.4, 1.0)
    assert duty.owed_s(0.75) == pytest.approx(0.6)
    duty.rested(100.0, 0.75)
    duty.worked(1.0, 0.5)
    assert duty.owed_s(0.5) == 1.0


def test_a_share_that_changes_in_a_pause_counts_at_once() -> None:
    duty = DutyCycle()
    duty.worked(100.0, 1.0)
    assert duty.owed_s(0.1) == 0.0
    duty.worked(1.0, 0.05)
    assert duty.owed_s(0.05) == pytest.approx(19.0)
    assert duty.owed_s(0.5) == pytest.approx(1.0)
    duty.rested(0.5, 0.5)
    assert duty.owed_s(0.5) == pytest.approx(0.5)
    assert duty.owed_s(1.0) == 0.0


def test_a_pause_is_bounded_and_the_rest_let_off() -> None:
    duty = DutyCycle()
    duty.worked(5.0, 0.02)
    duty.let_off(2.0, 0.02)
    assert duty.owed_s(0.02) == pytest.approx(2.0)
    duty.rested(2.0, 0.02)
    assert duty.owed_s(0.02) == pytest.approx(0.0)


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


class AcceleratorError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    ("error", "code", "lost"),
    [
        (RequestError("x"), ErrorCode.INVALID_GOAL, False),
        (RequestError("x", ErrorCode.PROMPT_TOO_LONG), ErrorCode.PROMPT_TOO_LONG, False),
        (CheckpointError("x"), ErrorCode.BACKEND_UNAVAILABLE, False),
        (MemoryError(), ErrorCode.OUT_OF_MEMORY, False),
        (OutOfMemoryError("CUDA error: out of memory"), ErrorCode.OUT_OF_MEMORY, False),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            ErrorCode.OUT_OF_MEMORY,
            False,
        ),
        (RuntimeError("CUDA error: device-side assert triggered"), ErrorCode.UNKNOWN, True),
        (AcceleratorError("anything"), ErrorCode.UNKNOWN, True),
        (KeyError("x"), ErrorCode.UNKNOWN, False),
    ],
)
def test_exceptions_have_codes(error: Exception, code: ErrorCode, lost: bool) -> None:
    assert classify(error) is code
    assert device_lost(error) is lost


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (CheckpointError("the folder is empty; fill it"), "the folder is empty; fill it"),
        (ModuleNotFoundError("No module named 'torch'"), "install its requirements there"),
        (MemoryError(), "take a smaller one"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_failed_load_is_explained(error: Exception, sentence: str) -> None:
    assert sentence in explain(error)
