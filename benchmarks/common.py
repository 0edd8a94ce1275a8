# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: the machine in words, rows with goals, interleaved timing."""

from __future__ import annotations

import argparse
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

from rich.console import Console
from rich.table import Table

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


def machine(threads: int) -> dict[str, Any]:
    """The machine and the software, as far as figures depend on them; no names of hosts."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "rclpy": _version("ros-jazzy-rclpy") or os.environ.get("ROS_DISTRO"),
    }


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
    """Commit of this tree, with a plus sign if files were changed; ``unknown`` outside git."""
    folder = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip()


def interleaved(
    cases: Mapping[CaseT, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[CaseT, float]:
    """Median seconds of each case over `repeats` turns; in each turn every case runs once.

    So a machine that slows down for a while slows all cases. Each turn begins with another case,
    so that none always follows the same one.
    """
    names = list(cases)
    taken: dict[CaseT, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            begin = clock()
            cases[name]()
            taken[name].append(clock() - begin)
    return {name: statistics.median(times) for name, times in taken.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that `share` of them do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def parser(description: str) -> argparse.ArgumentParser:
    """The options of every benchmark."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file too")
    made.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    return made


def report(
    title: str,
    rows: Sequence[Row],
    threads: int,
    json_file: Path | None,
    *,
    table: Table | None = None,
    in_table: Sequence[Row] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print rows with their goals, and write them to `json_file`.

    `table` shows the rows `in_table` in a better form; they are written to the file too.
    """
    console = Console()
    described = machine(threads)
    if table is not None:
        console.print(table)
    figures = Table(title=title, title_justify="left", title_style="bold")
    for name in ("figure", "value", "unit", "goal", ""):
        figures.add_column(name, justify="right" if name == "value" else "left", no_wrap=True)
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal[0]} {row.goal[1]:g}"
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row.met]
        figures.add_row(row.name, f"{row.value:.4g}", row.unit, goal, met)
    console.print(figures)
    for note in notes:
        console.print(note, style="dim", highlight=False, soft_wrap=True)
    said = ", ".join(f"{key} {value}" for key, value in described.items() if value)
    console.print(said, style="dim", highlight=False, soft_wrap=True)
    if json_file is not None:
        document = {
            "machine": described,
            "commit": commit(),
            "rows": [
                {"name": row.name, "value": row.value, "unit": row.unit}
                for row in (*in_table, *rows)
            ],
        }
        json_file.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
