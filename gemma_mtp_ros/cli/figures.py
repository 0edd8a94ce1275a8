# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of ``gemma-mtp bench`` and of the benchmarks: rows, the machine in words, their file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gemma_mtp_ros

from .. import __version__

CaseT = TypeVar("CaseT", bound=Hashable)

FEWER, MORE = "<=", ">="


class Row(NamedTuple):
    """One figure. `goal` is a bound such as ``("<=", 5.0)``, or None."""

    name: str
    value: float
    unit: str
    goal: tuple[str, float] | None = None

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        bound = self.goal[1]
        return self.value <= bound if self.goal[0] == FEWER else self.value >= bound


def machine(threads: int, gpu: str | None = None) -> dict[str, Any]:
    """The machine and the software, as far as figures depend on them; no names of hosts."""
    return {
        "board": _first("/proc/device-tree/model"),
        "cpu": _cpu_model(),
        "gpu": gpu,
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "rclpy": _version("ros-jazzy-rclpy") or os.environ.get("ROS_DISTRO"),
    }


def _first(file: str) -> str | None:
    """What a file of the kernel says, or None where there is none."""
    path = Path(file)
    return path.read_text(errors="replace").strip("\0\n ") or None if path.is_file() else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str:
    """Commit of this tree, with a plus sign if files were changed; outside git the version."""
    tree = Path(gemma_mtp_ros.__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=tree, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        # An environment may lie within some other project's tree.
        if Path(git("rev-parse", "--show-toplevel")) == tree:
            return git("describe", "--always", "--dirty=+", "--abbrev=12")
    except (OSError, subprocess.CalledProcessError):
        pass  # no git, or no tree of it
    return __version__


def interleaved(
    cases: Mapping[CaseT, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[CaseT, float]:
    """Median seconds of each case over `repeats` turns; in each turn every case runs once.

    So a machine that slows down for a while slows all cases. Each turn begins with another case,
    so that none always follows the same one.
    """
    taken: dict[CaseT, list[float]] = {name: [] for name in cases}
    for turn in range(repeats):
        for name in rotated(list(cases), turn):
            begin = clock()
            cases[name]()
            taken[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in taken.items()}


def rotated(names: Sequence[CaseT], turn: int) -> list[CaseT]:
    """The order of cases in a turn."""
    shift = turn % len(names)
    return [*names[shift:], *names[:shift]]


def write_rows(file: Path, described: dict[str, Any], rows: Sequence[Row]) -> None:
    """Write the file of a benchmark.

    Raises:
        OSError: it cannot be written.
    """
    document = {
        "machine": described,
        "commit": commit(),
        "rows": [{"name": row.name, "value": row.value, "unit": row.unit} for row in rows],
    }
    file.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
