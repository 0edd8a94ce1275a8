# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated hour on three boards that get too hot: the watchdog's policy against doing nothing.

The policy is the real one, polled at 2 Hz; the boards are those of thermal_plants, simulated.

- unguarded: no watchdog.
- cap only: mode report with draft_cap HOT=0.
- constant: the largest constant duty with no second throttled, found by search. It knows the hour.
- guard: mode guard, all parameters at their defaults.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gemma_mtp_ros.telemetry.policy import (
    Decision,
    Mode,
    PolicyConfig,
    PolicyState,
    parse_draft_cap,
    step,
)
from gemma_mtp_ros.telemetry.reading import Reading, Throttle, Trips, summarise

from .common import FEWER, MORE, Row, parser, report
from .thermal_physics import HOUR_S, STEP_S, Plant, Seen, onset_c
from .thermal_plants import BOARDS, SCENARIOS, Board, Scenario

SEARCH_STEPS = 10
VARIATIONS = 8
"""Boards with other parameters, for each board."""

POLICIES = ("unguarded", "cap only", "constant", "guard")
CAP_ONLY = PolicyConfig(mode=Mode.REPORT, draft_cap=parse_draft_cap(["HOT=0"]))
GUARD = PolicyConfig(mode=Mode.GUARD)

Controller = Callable[[Seen, float], Decision]


@dataclasses.dataclass(frozen=True)
class Hour:
    """What a board did in an hour, step by step."""

    seen: tuple[Seen, ...]
    decisions: tuple[Decision, ...]
    """Those that the steps ran under."""

    @property
    def tokens_per_s(self) -> float:
        """Mean over the hour."""
        return sum(step.tokens for step in self.seen) / (len(self.seen) * STEP_S)

    @property
    def worst_minute(self) -> float:
        """Fewest tokens/s of goal time, over the minutes of which goals took at least half."""
        length = round(60.0 / STEP_S)
        rates = []
        for begin in range(0, len(self.seen), length):
            minute = self.seen[begin : begin + length]
            goal_s = sum(step.active for step in minute) * STEP_S
            if goal_s >= 30.0:
                rates.append(sum(step.tokens for step in minute) / goal_s)
        return min(rates)

    @property
    def throttled_s(self) -> float:
        """Seconds in which clocks were cut."""
        return sum(step.throttled for step in self.seen) * STEP_S

    @property
    def peak_c(self) -> float:
        """Largest temperature of the die."""
        return max(step.die_c for step in self.seen)

    @property
    def joules_per_token(self) -> float:
        """Of the whole board."""
        return sum(step.joules for step in self.seen) / sum(step.tokens for step in self.seen)

    @property
    def shut_down(self) -> bool:
        """Whether the board cut its power."""
        return self.seen[-1].off


def simulate(board: Board, scenario: Scenario, control: Controller) -> Hour:
    """An hour under `control`, which is told after each step what happened, and the time."""
    plant = Plant(board, scenario)
    decision = Decision()
    seen, decisions = [], []
    for index in range(plant.steps):
        seen.append(plant.step(decision.duty, decision.draft_cap, decision.halt))
        decisions.append(decision)
        decision = control(seen[-1], (index + 1) * STEP_S)
    return Hour(tuple(seen), tuple(decisions))


def constant(duty: float) -> Controller:
    """Always the same duty."""
    decision = Decision(duty=duty)
    return lambda seen, now_s: decision


def watchdog(board: Board, config: PolicyConfig) -> Controller:
    """The policy, on readings such as the board gives."""
    throttle_c = board.throttle_c if board.states_trip else None
    hysteresis_c = board.hysteresis_c if board.states_trip else None
    trips = {"tj-thermal": Trips(throttle_c, board.shutdown_c, hysteresis_c)}
    state = PolicyState()

    def control(seen: Seen, now_s: float) -> Decision:
        nonlocal state
        zones = {"tj-thermal": seen.sensor_c}
        heat = summarise(zones, trips)
        reading = Reading(
            stamp_s=now_s,
            wall_s=now_s,
            source="simulation",
            board=board.name,
            zones=zones,
            trips=trips,
            **dataclasses.asdict(heat),
            power_w=seen.joules / STEP_S,
            gpu_clock_mhz=seen.clock_mhz,
            throttle=Throttle.YES if seen.throttled else Throttle.NO,
            power_mode=seen.mode,
            round_s=seen.round_s,
        )
        state, decision = step(config, state, reading, now_s)
        return decision

    return control


def best_constant(board: Board, scenario: Scenario) -> float:
    """The largest constant duty with no second throttled, within 1 / 2^SEARCH_STEPS."""
    if not throttles(board, scenario, 1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if throttles(board, scenario, middle) else (middle, high)
    return low


def throttles(board: Board, scenario: Scenario, duty: float) -> bool:
    """Whether clocks are cut within the hour at a constant duty."""
    plant = Plant(board, scenario)
    return any(plant.step(duty).throttled for _ in range(plant.steps))


def hours(board: Board, scenario: Scenario) -> dict[str, Hour]:
    """One hour under each policy."""
    return {
        "unguarded": simulate(board, scenario, constant(1.0)),
        "cap only": simulate(board, scenario, watchdog(board, CAP_ONLY)),
        "constant": simulate(board, scenario, constant(best_constant(board, scenario))),
        "guard": simulate(board, scenario, watchdog(board, GUARD)),
    }


def in_lower_mode(board: Board, scenario: Scenario) -> Hour:
    """The same ambient under guard, in the board's next lower power mode."""
    lower = dataclasses.replace(board, modes=dict(list(board.modes.items())[1:]))
    ambient_c = onset_c(board, scenario) + (scenario.over_onset_c or 0.0)
    there = dataclasses.replace(scenario, over_onset_c=None, ambient_c=ambient_c)
    return simulate(lower, there, watchdog(lower, GUARD))


def variations(seed: int = 7) -> list[tuple[Board, Scenario]]:
    """Boards that the policy was not tried on: other heat, power, sensors and ambients."""
    draw = random.Random(seed)

    def times(value: float, factor: float) -> float:
        return value * factor ** draw.uniform(-1.0, 1.0)

    made = []
    for board in BOARDS:
        for index in range(VARIATIONS):
            varied = dataclasses.replace(
                board,
                rds=times(board.rds, 2.0),
                cd=times(board.cd, 2.0),
                cs=times(board.cs, 2.0),
                rsa_full=times(board.rsa_full, 1.5),
                gpu_w=times(board.gpu_w, 1.3),
                pass_s=times(board.pass_s, 2.0),
            )
            scenario = Scenario(
                f"variation {index}",
                over_onset_c=draw.uniform(1.0, 10.0),
                seed=1000 + index,
                bursts=index % 2 == 1,
                noise_c=draw.choice((0.05, 0.1, 0.3)),
                sensor_step_c=draw.choice((1 / 32, 0.5)),
            )
            made.append((varied, scenario))
    return made


def without_fan(scenario: Scenario) -> Scenario:
    """The same hour in 30 degC, with a fan that stops after a quarter of it."""
    return dataclasses.replace(scenario, over_onset_c=None, ambient_c=30.0, fan_stops_s=900.0)


Results = dict[tuple[str, str], dict[str, Hour]]
"""By board and scenario."""


@dataclasses.dataclass(frozen=True)
class Beside:
    """What was simulated beside the scenarios.

    lower: by board, tokens/s in the next lower power mode to those in the default one, both
        guarded, at +10.
    varied: guarded hours of `variations`.
    fanless: distances of the same boards from their shutdown, degC, in an ambient of 30 degC, with
        fans that stop after a quarter of an hour.
    just_below: by board, guarded to unguarded tokens/s 1 degC below where throttling begins.
    """

    lower: Sequence[float]
    varied: Sequence[Hour]
    fanless: Sequence[float]
    just_below: Sequence[float]


def beside(results: Results) -> Beside:
    """Simulate that."""
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    hottest, below = by_name["+10"], dataclasses.replace(by_name["below"], over_onset_c=-1.0)
    return Beside(
        lower=[
            in_lower_mode(board, hottest).tokens_per_s
            / results[board.name, hottest.name]["guard"].tokens_per_s
            for board in BOARDS
        ],
        varied=[simulate(board, hour, watchdog(board, GUARD)) for board, hour in variations()],
        fanless=[
            board.shutdown_c - simulate(board, without_fan(hour), watchdog(board, GUARD)).peak_c
            for board, hour in variations()
        ],
        just_below=[
            simulate(board, below, watchdog(board, GUARD)).tokens_per_s
            / simulate(board, below, constant(1.0)).tokens_per_s
            for board in BOARDS
        ],
    )


def summary(results: Results, other: Beside) -> list[Row]:
    """The figures, of the worst board each."""
    hot = ("+1", "+3", "+5", "+10")

    def worst(scenarios: Sequence[str], policy: str) -> float:
        return min(
            made["guard"].tokens_per_s / made[policy].tokens_per_s
            for (_, scenario), made in results.items()
            if scenario in scenarios
        )

    def throttled_s(scenarios: Sequence[str]) -> float:
        return max(
            made["guard"].throttled_s
            for (_, scenario), made in results.items()
            if scenario in scenarios
        )

    others = [s.name for s in SCENARIOS if s.name not in hot]
    margin_c = min(
        board.shutdown_c - results[board.name, "blocked fan"]["guard"].peak_c for board in BOARDS
    )
    rows = [Row("thermal.throttled_s", throttled_s(hot), "s", (FEWER, 0.0))]
    for over, goal in (("1", 0.85), ("3", 0.78), ("5", 0.70), ("10", 0.50)):
        ratio = worst([f"+{over}"], "unguarded")
        rows.append(Row(f"thermal.mean_vs_unguarded_p{over}", ratio, "ratio", (MORE, goal)))
    return [
        *rows,
        Row("thermal.vs_oracle_p5", worst(hot[:3], "constant"), "ratio", (MORE, 0.90)),
        Row("thermal.vs_oracle_p10", worst(["+10"], "constant"), "ratio", (MORE, 0.85)),
        Row("thermal.below_onset", worst(["below"], "unguarded"), "ratio", (MORE, 1.0)),
        Row("thermal.blocked_fan_margin_c", margin_c, "degC", (MORE, 0.1)),
        Row("thermal.other_scenarios_throttled_s", throttled_s(others), "s"),
        Row("thermal.varied_boards_throttled_s", max(h.throttled_s for h in other.varied), "s"),
        Row("thermal.varied_boards_fan_lost_margin_c", min(other.fanless), "degC"),
        Row("thermal.just_below_onset", min(other.just_below), "ratio"),
        Row("thermal.lower_mode_vs_guard_p10", min(other.lower), "ratio"),
    ]


def detailed(results: Results) -> tuple[Table, list[Row]]:
    """Every hour, as a table and as rows."""
    table = Table(title="Simulated hours", title_justify="left", title_style="bold")
    for name in ("board", "ambient", "policy"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens/s", "worst min", "throttled s", "peak degC", "J/token", "of unguarded"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = []
    for (board, scenario), made in results.items():
        for policy in POLICIES:
            hour = made[policy]
            first = policy == POLICIES[0]
            ratio = hour.tokens_per_s / made["unguarded"].tokens_per_s
            peak = "off" if hour.shut_down else f"{hour.peak_c:.1f}"
            table.add_row(
                board if first else "", scenario if first else "", policy,
                f"{hour.tokens_per_s:.1f}", f"{hour.worst_minute:.1f}", f"{hour.throttled_s:.0f}",
                peak, f"{hour.joules_per_token:.2f}", f"{ratio:.3f}",
            )  # fmt: skip
            stem = f"thermal.{board}.{scenario}.{policy}".lower().replace(" ", "_")
            rows += [
                Row(f"{stem}.tokens_per_s", hour.tokens_per_s, "tokens/s"),
                Row(f"{stem}.worst_minute", hour.worst_minute, "tokens/s"),
                Row(f"{stem}.throttled_s", hour.throttled_s, "s"),
                Row(f"{stem}.peak_c", hour.peak_c, "degC"),
                Row(f"{stem}.joules_per_token", hour.joules_per_token, "J"),
            ]
        table.add_section()
    return table, rows


def main() -> None:
    """Simulate and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="draw one picture for each board there"
    )
    options_parser.set_defaults(threads=1)
    options = options_parser.parse_args()
    results: Results = {}
    with Console(stderr=True).status("simulating") as status:
        for board in BOARDS:
            for scenario in SCENARIOS:
                status.update(f"simulating {board.name}, {scenario.name}")
                results[board.name, scenario.name] = hours(board, scenario)
        status.update("simulating lower power modes and other boards")
        other = beside(results)
    if options.plot is not None:
        from .thermal_plot import draw

        options.plot.mkdir(parents=True, exist_ok=True)
        for board in BOARDS:
            name = board.name.lower().replace(" ", "_")
            shown = {s: results[board.name, s] for s in ("+5", "blocked fan")}
            draw(board, shown, options.plot / f"thermal_{name}.svg")
    table, rows = detailed(results)
    report(
        f"The watchdog on {len(BOARDS)} simulated boards, worst board",
        summary(results, other),
        options.threads,
        options.json,
        table=table,
        in_table=rows,
        notes=[
            f"An hour is {HOUR_S:.0f} s; ambients are relative to where throttling begins, 'below' "
            "is 4 degC under it. Nothing here was measured on a board."
        ],
    )


if __name__ == "__main__":
    main()
