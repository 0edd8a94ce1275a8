# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The physics of the simulated boards; their parameters and sources are in thermal_plants.

`python -m benchmarks.thermal_physics` prints what they give, to hold against published figures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random

from .thermal_plants import ACCEPTANCE, BOARDS, MAX_DRAFT, SCENARIOS, Board, Scenario

STEP_S = 0.5
"""One step of the plant: the watchdog's poll at 2 Hz."""

HOUR_S = 3600.0
KERNEL_POLL_STEPS = 2  # P [kernel]
FAN_POLL_STEPS = 4  # P [nvfan]
LEAKAGE_FROM_C = 60.0


def voltage(board: Board, clock: float) -> float:
    """Voltage at a clock, both relative to the largest."""
    above = max(0.0, clock - board.floor_to) / (1.0 - board.floor_to)
    return board.voltage_floor + (1.0 - board.voltage_floor) * above


@dataclasses.dataclass(frozen=True)
class Round:
    """One round at given clocks: drafted tokens, seconds, tokens, W beyond the pause's power."""

    k: int
    round_s: float
    tokens: float
    extra_w: float


@functools.cache
def round_of(board: Board, clock: float, memory: float, k: int) -> Round:
    """A round of k drafts, at clocks relative to the largest."""
    by_memory = board.pass_s * (1.0 - board.clock_share) / memory
    target_s = by_memory + board.pass_s * (board.clock_share + board.row * k) / clock
    draft_s = k * board.draft_c * board.pass_s * (0.5 / memory + 0.5 / clock)
    largest = 1.0 - board.clock_share  # share of time bound to memory at the largest clocks
    memory_w = board.memory_w * min(1.0, by_memory / target_s / largest) * memory
    gpu_w = board.gpu_w * clock * voltage(board, clock) ** 2
    worked = target_s + board.draft_share * draft_s
    tokens = (1.0 - ACCEPTANCE ** (k + 1)) / (1.0 - ACCEPTANCE)
    round_s = target_s + draft_s
    return Round(k, round_s, tokens, (memory_w + gpu_w) * worked / round_s)


@functools.cache
def best_round(board: Board, clock: float, memory: float, cap: int) -> Round:
    """The round with most tokens a second, of at most `cap` drafts."""
    rounds = [round_of(board, clock, memory, k) for k in range(min(cap, MAX_DRAFT) + 1)]
    return max(rounds, key=lambda made: made.tokens / made.round_s)


def fan_rpm(board: Board, celsius: float) -> float:
    """Speed by the stock curve."""
    (low_c, low), *rest = board.fan
    if celsius <= low_c:
        return low
    for high_c, high in rest:
        if celsius < high_c:
            return low + (high - low) * (celsius - low_c) / (high_c - low_c)
        low_c, low = high_c, high
    return low


def conductance(board: Board, rpm: float) -> float:
    """W/K from the sink to the air. A: the fan's part grows with speed to the power of .7."""
    still = 1.0 / board.rsa_still
    return still + (1.0 / board.rsa_full - still) * (rpm / board.fan[-1][1]) ** 0.7


def perception_load(board: Board, share: float, clock: float) -> tuple[float, float]:
    """Share of the GPU's time (.9 at most) and W that perception takes at a clock."""
    taken = min(0.9, share / clock)
    return taken, taken * board.perception_w * clock * voltage(board, clock) ** 2


def onset_c(board: Board, scenario: Scenario) -> float:
    """Ambient at which the unguarded, unthrottled load just reaches the trip in balance."""
    made = best_round(board, 1.0, 1.0, MAX_DRAFT)
    taken, other_w = perception_load(board, scenario.perception, 1.0)
    power_w = board.pause_w + (1.0 - taken) * made.extra_w + other_w
    power_w += board.leakage_w_per_c * (board.throttle_c - LEAKAGE_FROM_C)
    return board.throttle_c - power_w * (
        board.rds + 1.0 / conductance(board, fan_rpm(board, board.throttle_c))
    )


@functools.lru_cache(maxsize=64)
def _noise(seed: int, steps: int) -> tuple[tuple[float, float, float, float], ...]:
    """Per step: noise of the kernel's and of our sensor (unit variance), phases of the ripple."""
    draw = random.Random(seed)
    return tuple(
        (draw.gauss(0.0, 1.0), draw.gauss(0.0, 1.0), draw.random() - 0.5, draw.random() - 0.5)
        for _ in range(steps)
    )


@functools.lru_cache(maxsize=64)
def _active(scenario: Scenario, steps: int) -> tuple[bool, ...]:
    """Per step, whether a goal runs."""
    if not scenario.bursts:
        return (True,) * steps
    draw = random.Random(scenario.seed + 1)
    made: list[bool] = []
    while len(made) < steps:
        made += [True] * round(draw.uniform(40.0, 120.0) / STEP_S)
        made += [False] * round(draw.uniform(20.0, 60.0) / STEP_S)
    return tuple(made[:steps])


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one step gave.

    tokens, joules: of this step. die_c: largest in it. sensor_c: what the watchdog reads after it.
    throttled: whether clocks were cut in it. clock_mhz: the GPU's.
    """

    active: bool
    tokens: float
    joules: float
    die_c: float
    sensor_c: float
    throttled: bool
    clock_mhz: float
    mode: str
    k: int
    round_s: float
    off: bool


class Plant:
    """A board through a scenario, one `step` each half second. Begins in balance, idle."""

    def __init__(self, board: Board, scenario: Scenario, hours: float = 1.0) -> None:
        self.board = board
        self.scenario = scenario
        self.steps = round(hours * HOUR_S / STEP_S)
        over = scenario.over_onset_c
        self.ambient_c = scenario.ambient_c if over is None else onset_c(board, scenario) + over
        self._noise = _noise(scenario.seed, self.steps)
        self._active = _active(scenario, self.steps)
        self._index = 0
        self._off = False
        self._tripped = False
        self._hardware = False
        self._state = 0
        self._kernel_saw_c = -math.inf
        self._conductance = 0.0
        self._propagator = (1.0, 0.0, 0.0, 1.0)
        self._rpm = fan_rpm(board, self.ambient_c)
        self.die_c = self.sink_c = self.ambient_c
        for _ in range(40):  # the fan's curve makes the balance implicit
            self._rpm = fan_rpm(board, self.die_c)
            self.sink_c = self.ambient_c + board.pause_w / conductance(board, self._rpm)
            self.die_c += 0.5 * (self.sink_c + board.pause_w * board.rds - self.die_c)

    @property
    def mode(self) -> str:
        """Name of the power mode now."""
        dropped = self.scenario.mode_drop_s <= self._index * STEP_S < self.scenario.mode_back_s
        return list(self.board.modes)[1 if dropped else 0]

    def step(self, duty: float = 1.0, cap: int = MAX_DRAFT, halt: bool = False) -> Seen:
        """Half a second in which rounds run `duty` of the time, with at most `cap` drafts."""
        board, index = self.board, self._index
        kernel_noise, our_noise, kernel_phase, our_phase = self._noise[index]
        mode = self.mode
        largest = board.clocks_mhz[-1]
        clock_mhz = min(board.clocks_mhz[-1 - self._state], board.modes[mode].clock_mhz)
        if self._hardware:
            clock_mhz = max(board.clocks_mhz[0], clock_mhz / 2)
        clock = clock_mhz / largest
        made = best_round(board, clock, board.modes[mode].memory, cap)
        active = self._active[index] and not halt and not self._off
        taken, other_w = perception_load(board, self.scenario.perception, clock)
        share = (1.0 - taken) * duty if active else 0.0
        throttled = not self._off and (self._state > 0 or self._hardware)
        idle_w = board.pause_w + board.leakage_w_per_c * (self.die_c - LEAKAGE_FROM_C)
        power_w = 0.0 if self._off else idle_w + other_w + share * made.extra_w
        self._heat(power_w)
        round_s = made.round_s / (1.0 - taken)
        ripple_c = self._ripple(made.extra_w, round_s, duty) if share else 0.0
        peak_c = self.die_c + ripple_c / 2
        if index % KERNEL_POLL_STEPS == 0:
            self._govern(self._sensor(kernel_noise, self.die_c + ripple_c * kernel_phase))
        if index % FAN_POLL_STEPS == 0:
            stopped = index * STEP_S >= self.scenario.fan_stops_s
            self._rpm = 0.0 if stopped else fan_rpm(board, self.die_c)
        self._off = self._off or peak_c >= board.shutdown_c
        self._index += 1
        return Seen(
            active=self._active[index],
            tokens=share * STEP_S * made.tokens / made.round_s,
            joules=power_w * STEP_S,
            die_c=peak_c,
            sensor_c=self._sensor(our_noise, self.die_c + ripple_c * our_phase),
            throttled=throttled,
            clock_mhz=clock_mhz,
            mode=mode,
            k=made.k,
            round_s=round_s,
            off=self._off,
        )

    def _sensor(self, noise: float, celsius: float) -> float:
        step_c = self.scenario.sensor_step_c
        return round((celsius + noise * self.scenario.noise_c) / step_c) * step_c

    def _heat(self, power_w: float) -> None:
        """Solve d/dt (die, sink) for half a second of constant power and fan speed."""
        board = self.board
        to_air = conductance(board, self._rpm)
        if to_air != self._conductance:
            self._conductance = to_air
            a, b, g = 1 / (board.rds * board.cd), 1 / (board.rds * board.cs), to_air / board.cs
            half, root = -(a + b + g) / 2, math.sqrt(((a + b + g) / 2) ** 2 - a * g)
            one, two = half + root, half - root
            first, second = math.exp(one * STEP_S), math.exp(two * STEP_S)
            slope = (first - second) / (one - two)
            rest = (one * second - two * first) / (one - two)
            self._propagator = (rest - a * slope, a * slope, b * slope, rest - (b + g) * slope)
        sink_c = self.ambient_c + power_w / to_air
        die_c = sink_c + power_w * board.rds
        x, y = self.die_c - die_c, self.sink_c - sink_c
        dd, ds, sd, ss = self._propagator
        self.die_c, self.sink_c = die_c + dd * x + ds * y, sink_c + sd * x + ss * y

    def _ripple(self, extra_w: float, round_s: float, duty: float) -> float:
        """Peak to peak of the die's periodic answer to rounds and pauses, in K."""
        if duty >= 1.0:
            return 0.0
        tau = self.board.rds * self.board.cd
        on, off = round_s / tau, round_s * (1.0 / max(duty, 1e-3) - 1.0) / tau
        shape = math.expm1(-on) * math.expm1(-off) / -math.expm1(-on - off)
        return extra_w * self.board.rds * shape

    def _govern(self, celsius: float) -> None:
        """The kernel's step-wise governor, and the hardware's own cut above it."""
        board = self.board
        warming = celsius > self._kernel_saw_c
        self._kernel_saw_c = celsius
        if celsius >= board.throttle_c:
            self._tripped = True
        elif celsius < board.throttle_c - board.hysteresis_c:
            self._tripped = False
        if self._tripped and warming:
            self._state = min(self._state + 1, len(board.clocks_mhz) - 1)
        elif not self._tripped:
            self._state = max(self._state - 1, 0)
        limit_c = board.hardware_c - (board.hysteresis_c if self._hardware else 0.0)
        self._hardware = celsius >= limit_c


def main() -> None:
    """Print what the plants give, to hold against the published figures."""
    print("board              W at k=0/4/8      J/token 0/4/8        tokens/s 0/4/8   onset degC")
    for board in BOARDS:
        rounds = [round_of(board, 1.0, 1.0, k) for k in (0, 4, 8)]
        watts = [board.pause_w + made.extra_w for made in rounds]
        rates = [made.tokens / made.round_s for made in rounds]
        cells = [
            "/".join(f"{value:.1f}" for value in watts),
            "/".join(f"{w / r:.3f}" for w, r in zip(watts, rates, strict=True)),
            "/".join(f"{rate:.1f}" for rate in rates),
            f"{onset_c(board, SCENARIOS[0]):.1f}",
        ]
        print(f"{board.name:18} {cells[0]:17} {cells[1]:20} {cells[2]:16} {cells[3]}")
        for name, mode in board.modes.items():
            made = best_round(board, mode.clock_mhz / board.clocks_mhz[-1], mode.memory, MAX_DRAFT)
            rate = made.tokens / made.round_s
            print(
                f"  {name:12} k={made.k} {rate:6.1f} tokens/s {board.pause_w + made.extra_w:5.1f} W"
            )


if __name__ == "__main__":
    main()
