# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The pictures of benchmarks.monitoring; imports matplotlib."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

LEVEL_COLORS = {
    "UNKNOWN": "#dddddd",
    "NOMINAL": "#ffffff",
    "WARM": "#fff3c4",
    "HOT": "#fdd0b1",
    "CRITICAL": "#f4a6a6",
    "DISABLED": "#eeeeee",
}
HEALTH_COLORS = ("#7fbf7b", "#f6c342", "#d6604d", "#999999")
HEALTH_NAMES = ("OK", "WARN", "ERROR", "STALE")
STATUSES = ("engine", "watchdog", "memory", "queue")
MARKERS = {"THERMAL_LIMIT": "x", "ENGINE_LOST": "v"}
DARK, LIGHT, RED = "#2166ac", "#a6c8e4", "#b2182b"


@dataclasses.dataclass(frozen=True)
class Said:
    """One status of /diagnostics. level: of DiagnosticStatus."""

    at_s: float
    name: str
    level: int
    message: str


@dataclasses.dataclass
class Ask:
    """One goal, in seconds of the recording; None: not yet, or never."""

    sent_s: float
    first_s: float | None = None
    ended_s: float | None = None
    error: str = ""


@dataclasses.dataclass
class Run:
    """What was recorded. values: by field of a message, (s, value)."""

    throttle_c: float
    shutdown_c: float
    values: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    levels: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    diagnostics: list[Said] = dataclasses.field(default_factory=list)
    asks: list[Ask] = dataclasses.field(default_factory=list)

    def add(self, name: str, at_s: float, value: float) -> None:
        """Note a value."""
        self.values.setdefault(name, []).append((at_s, value))

    @property
    def ended_s(self) -> float:
        """When the last message came."""
        return self.levels[-1][0]


def spans(points: Sequence[tuple[float, Any]], end_s: float) -> Iterator[tuple[float, float, Any]]:
    """(from, until, value) of runs of equal values; each holds until the next begins."""
    groups = [
        (next(group)[0], value) for value, group in itertools.groupby(points, key=lambda p: p[1])
    ]
    begins = [begin for begin, _ in groups[1:]] + [end_s]
    for (begin, value), end in zip(groups, begins, strict=True):
        yield begin, end, value


def draw_heat(run: Run, file: Path) -> None:
    """Temperature over the level, draft length and cap, tokens/s, power."""
    figure, axes = _figure(file, (3, 2, 2, 2), 7.5)
    heat, drafts, speed, power = axes
    for axis in axes:
        _shade(axis, run)
        axis.grid(alpha=0.3)
    _line(heat, run, "temperature_c", DARK)
    heat.axhline(run.throttle_c, color="black", linewidth=0.8, linestyle="--")
    heat.axhline(run.shutdown_c, color="black", linewidth=0.8, linestyle=":")
    heat.set_ylabel("hottest zone, degC")
    throttled = [
        (begin, end)
        for begin, end, cut in spans(run.values["throttled"], run.ended_s)
        if cut == 1.0
    ]
    for begin, end in throttled:
        heat.axvspan(begin, end, ymin=0.0, ymax=0.04, color=RED, linewidth=0)
    seen = [level for level in LEVEL_COLORS if any(level == named for _, named in run.levels)]
    handles = [
        Patch(facecolor=LEVEL_COLORS[level], edgecolor="grey", label=level) for level in seen
    ]
    if throttled:
        handles.append(Patch(color=RED, label="clocks cut"))
    heat.legend(handles=handles, loc="upper left", ncols=len(handles), fontsize="small")
    heat.set_ylim(top=run.shutdown_c + 12.0)
    _line(drafts, run, "draft_cap", "grey", step=True, label="cap of the watchdog")
    _line(drafts, run, "draft_length", DARK, step=True, label="mean draft length")
    drafts.legend(loc="lower left", fontsize="small")
    drafts.set_ylabel("drafted tokens")
    drafts.set_ylim(0.0, 7.5)
    _line(speed, run, "tokens_per_second", DARK, step=True)
    speed.set_ylabel("tokens/s")
    speed.set_ylim(bottom=0.0)
    _line(power, run, "power_w", DARK)
    power.set_ylabel("board, W")
    power.set_ylim(bottom=0.0)
    _finish(figure, axes, run, file)


def draw_goals(run: Run, file: Path) -> None:
    """Each goal from being sent to its end, the queue, and the four statuses of /diagnostics."""
    figure, axes = _figure(file, (4, 1, 2), 6.5)
    goals, queue, health = axes
    for axis in (goals, queue):
        _shade(axis, run)
    for number, asked in enumerate(run.asks, 1):
        end_s = run.ended_s if asked.ended_s is None else asked.ended_s
        first_s = end_s if asked.first_s is None else asked.first_s
        goals.barh(number, first_s - asked.sent_s, left=asked.sent_s, color=LIGHT)
        goals.barh(number, end_s - first_s, left=first_s, color=DARK)
        if asked.error:
            goals.plot(end_s, number, marker=MARKERS.get(asked.error, "o"), color=RED)
    goals.set_ylabel("goal")
    goals.invert_yaxis()
    handles = [
        Patch(color=LIGHT, label="waits, reads its prompt"),
        Patch(color=DARK, label="answers"),
        *(
            Line2D([], [], marker=marker, color=RED, linestyle="", label=error)
            for error, marker in MARKERS.items()
        ),
    ]
    goals.legend(handles=handles, loc="upper right", fontsize="small")
    _line(queue, run, "queue_depth", DARK, step=True)
    queue.set_ylabel("queue")
    for row, name in enumerate(STATUSES):
        points = [(said.at_s, said.level) for said in run.diagnostics if said.name == name]
        for begin, end, level in spans(points, run.ended_s):
            health.barh(row, end - begin, left=begin, height=0.8, color=HEALTH_COLORS[level])
    health.set_yticks(range(len(STATUSES)), STATUSES)
    health.set_ylabel("/diagnostics")
    shown = [
        Patch(color=color, label=name)
        for color, name in zip(HEALTH_COLORS, HEALTH_NAMES, strict=True)
    ]
    health.set_ylim(len(STATUSES) + 0.4, -0.6)
    health.legend(handles=shown, loc="lower right", ncols=4, fontsize="small")
    _finish(figure, axes, run, file)


def _figure(file: Path, heights: Sequence[int], inches: float) -> tuple[Figure, Any]:
    # The same bytes for the same data.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": file.stem})
    figure = Figure(figsize=(9.0, inches), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=list(heights))
    return figure, axes


def _shade(axis: Any, run: Run) -> None:
    for begin, end, level in spans(run.levels, run.ended_s):
        axis.axvspan(begin, end, color=LEVEL_COLORS[level], linewidth=0)


def _line(
    axis: Any, run: Run, name: str, color: str, *, step: bool = False, label: str | None = None
) -> None:
    times, values = zip(*run.values[name], strict=True)
    drawstyle = "steps-post" if step else "default"
    axis.plot(times, values, color=color, linewidth=1.2, drawstyle=drawstyle, label=label)


def _finish(figure: Figure, axes: Any, run: Run, file: Path) -> None:
    axes[-1].set_xlabel("seconds of the run")
    axes[-1].set_xlim(0.0, run.ended_s)
    figure.savefig(file, metadata={"Date": None})
