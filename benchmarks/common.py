# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: the machine in words, rows with goals, interleaved timing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gemma_mtp_ros.cli.figures import (
    FEWER,
    MORE,
    Row,
    commit,
    interleaved,
    machine,
    write_rows,
)

__all__ = [
    "FEWER",
    "MORE",
    "Row",
    "commit",
    "interleaved",
    "machine",
    "parser",
    "quantile",
    "report",
]


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
    gpu: str | None = None,
) -> None:
    """Print rows with their goals, and write them to `json_file`.

    `table` shows the rows `in_table` in a better form; they are written to the file too.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # names and values in full, in a file too
    described = machine(threads, gpu)
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
        write_rows(json_file, described, (*in_table, *rows))
