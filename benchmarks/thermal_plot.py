# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of benchmarks.thermal_replay; imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from gemma_mtp_ros.telemetry.pacing import mean_pause_s
from gemma_mtp_ros.telemetry.policy import Decision

from .thermal_physics import STEP_S, Seen
from .thermal_plants import Board

if TYPE_CHECKING:
    from .thermal_replay import Hour

SHOWN = {"unguarded": "#b2182b", "cap only": "#999999", "guard": "#2166ac"}
BIN = 40
"""Steps that one point of a curve shows: twenty seconds."""

VALUES: Mapping[str, Callable[[Seen, Decision], float]] = {
    "die, degC": lambda seen, decision: seen.die_c,
    "drafts k": lambda seen, decision: float(seen.k),
    "pause, ms": lambda seen, decision: 1000.0 * mean_pause_s(decision.duty, seen.round_s),
    "tokens/s": lambda seen, decision: seen.tokens / STEP_S,
}


def draw(board: Board, shown: Mapping[str, Mapping[str, Hour]], file: Path) -> None:
    """One column for each scenario in `shown`: temperature, k, pause and tokens/s over time."""
    # The same bytes for the same data.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": board.name})
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    axes: Any = figure.subplots(len(VALUES), len(shown), sharex=True, squeeze=False)
    figure.suptitle(f"{board.name}, simulated")
    for column, (scenario, hours) in enumerate(shown.items()):
        title = f"{scenario} degC over onset" if scenario.startswith("+") else scenario
        axes[0][column].set_title(title)
        for row, (name, value) in enumerate(VALUES.items()):
            axis = axes[row][column]
            for policy, color in SHOWN.items():
                hour = hours[policy]
                points = [value(*pair) for pair in zip(hour.seen, hour.decisions, strict=True)]
                means = [
                    sum(points[begin : begin + BIN]) / BIN for begin in range(0, len(points), BIN)
                ]
                minutes = [(index + 0.5) * BIN * STEP_S / 60.0 for index in range(len(means))]
                axis.plot(minutes, means, color=color, linewidth=1.0, label=policy)
            axis.set_ylabel(name)
            axis.grid(alpha=0.3)
        axes[0][column].axhline(board.throttle_c, color="black", linewidth=0.8, linestyle="--")
        axes[0][column].axhline(board.shutdown_c, color="black", linewidth=0.8, linestyle=":")
        axes[0][column].set_ylim(board.throttle_c - 30.0, board.shutdown_c + 2.0)
        axes[-1][column].set_xlabel("minutes")
    axes[0][0].legend(loc="lower right", fontsize="small")
    figure.savefig(file, format="svg", metadata={"Date": None})
