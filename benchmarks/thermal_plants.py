# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Boards and hours that benchmarks.thermal_replay simulates; the physics is in thermal_physics.

Nothing here was measured on a board of ours. Each figure below is marked

- P: published, with its source;
- F: fitted, so that the plant gives a published figure;
- A: assumed.

The parameters were fixed before the policy was tuned on them.

Heat: two nodes. Die (Rds to the sink, Cd) and heat sink (to the air through a fan, Cs), so that
temperature follows power within seconds on the die and within minutes on the sink. A step is solved
exactly for constant power; the ripple that pauses between rounds put on the die is added in closed
form, and is seen by sensors at a random phase.

Speed: a target pass of n rows takes pass_s ((1-g) / m + g/f + s (n-1) / f), f and m the GPU's and
the memory's clock relative to the largest, g the share bound to the GPU's clock, s the cost of one
more row. A draft step takes draft_c pass_s (.5/m + .5/f). A draft stands with ACCEPTANCE. k is the
best in hindsight at the present clocks, as a controller that learns its costs finds it.

Power: pause_w + leakage + memory_w (share of time bound to memory) + gpu_w f V(f)^2, draft steps
draft_share of the two last.

Sources (P):
[nano] A closed enclosure with an Orin Nano 8GB at MAXN_SUPER, clocks and fan pinned, 30 min of
  tensor cores, DRAM and CPU: 20.0 W, 65.9 degC in balance, 45.3 degC at 6.6 W idle, mean 60.4 degC
  from 120 to 558 s; 4.6 W idle with clocks free; 25W mode: GPU at 918 MHz; stock fan profile in
  thermal margin: off at 35 degC, 4000 rpm at 74 to 94, 6000 from 95 ("Fan Curve Tuning on Jetson
  Orin: The Thermal-Margin Encoding Trap", a public repository, August 2026).
[nvfan] NVIDIA, Jetson Linux Developer Guide, nvfancontrol: Orin's profile "cool" (1000 rpm at 45
  degC, 1700 at 60, 2300 at 75, 2900 from 87), polled every 2 s.
[thorfan] Stock profile "cool" of AGX Thor, margins 45/24/15 at 1750/4170/5371 rpm, as quoted by the
  tests of the public program thorfan.
[thor] Thor, a 27B model without pause: 108.9 degC with the stock fan curve, 103.1 with the fan at
  full; from MAXN to 120W products take 12.6 % longer, work bound to memory about 0 %; clocks cut at
  about 109 degC, power off at 114.5; 169 states of the GPU's cooling device.
[orin] Trip points 99 (clocks), 101 to 103 (hardware), 104.5 degC (power off); GPU clocks of AGX
  Orin 306 to 1300.5 MHz, ten states of its cooling device, caps by mode 1300.5 / 828.75 / 624.75 /
  420.75 MHz (NVIDIA, Jetson Linux Developer Guide, supported modes).
[agx] Rail VDD_GPU_SOC of an AGX Orin under a GPU stress, by mode: 40.4 / 18.4 / 7.6 / 5.2 W
  (forums.developer.nvidia.com/t/323456).
[12b] Gemma 4 12B Q4_K_M on Thor, llama.cpp: 18.6 tokens/s
  (multimodalflow.net/en/blog/gemma4-12b-benchmark-thor-vs-3090).
[e2b] Gemma on an Orin Nano's GPU: 25.5 tokens/s
  (julien.cloud/blog/jetson-nano-ollama-edge-inference).
[modes] Orin Nano Super, llama.cpp: 25W gives 36-47 % more tokens/s than 15W (smolhub.com).
[study] An earlier simulation: 22.0/20.9/20.2 W (Nano), 48.2/47.0/46.1 (AGX), 82.7/81.4/80.4 (Thor)
  at k = 0/4/8; joules per token three to four times lower at 8 than at 0.
[kernel] Linux, drivers/thermal/gov_step_wise.c: one state up at each poll while tripped and
  warming, one down while not; nvidia,p3701-0008 polls every 1000 ms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

ACCEPTANCE = 0.88  # F [study]: joules per token fall about threefold from k=0 to k=8
MAX_DRAFT = 7


@dataclasses.dataclass(frozen=True)
class PowerMode:
    """What a power mode caps: the GPU's clock, and the memory's relative to the largest."""

    clock_mhz: float
    memory: float = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class Board:
    """Parameters of one board; temperatures in degC, R in K/W, C in J/K, power in W."""

    name: str
    throttle_c: float
    hardware_c: float
    shutdown_c: float
    states_trip: bool  # whether the kernel names the throttle trip, or the shutdown alone
    clocks_mhz: tuple[float, ...]  # ascending; the cooling device takes one state per clock
    voltage_floor: float  # of the largest, up to floor_to of the largest clock, then linear
    floor_to: float
    modes: Mapping[str, PowerMode]  # first: the default; second: the one a mode drop takes
    rds: float
    cd: float
    cs: float
    rsa_full: float  # sink to air at the largest speed of the fan's stock curve
    rsa_still: float  # with the fan standing
    fan: tuple[tuple[float, float], ...]  # degC, rpm; linear between
    pass_s: float
    clock_share: float
    row: float
    draft_c: float
    pause_w: float
    memory_w: float
    gpu_w: float
    draft_share: float
    leakage_w_per_c: float
    perception_w: float  # of a perception that keeps the GPU busy, at the largest clock
    hysteresis_c: float = 1.5  # F [study]

    @property
    def mode(self) -> str:
        """Name of the default power mode."""
        return next(iter(self.modes))


ORIN_NANO = Board(
    name="Orin Nano Super",
    throttle_c=99.0,  # P [orin], as the next two
    hardware_c=102.0,
    shutdown_c=104.5,
    states_trip=True,
    clocks_mhz=tuple(306.0 + 102.0 * i for i in range(8)),  # A: AGX Orin's steps up to 1020 (P)
    voltage_floor=0.70,  # A: its clock ends where AGX Orin's curve is at .87 of the whole
    floor_to=0.55,
    modes={
        "MAXN_SUPER": PowerMode(1020.0),  # P [nano]
        "25W": PowerMode(918.0),  # P [nano]
        "15W": PowerMode(612.0, 0.667),  # A, near [modes]
    },
    rds=0.35,  # A
    cd=6.0,  # A
    cs=180.0,  # F [nano]: time constant of about 235 s
    rsa_full=1.19,  # F [nano]: (65.9 - 45.3) K / (20.0 - 6.6) W = 1.54 K/W, less rds
    rsa_still=7.5,  # A
    fan=((35.0, 0.0), (74.0, 4000.0), (94.0, 4000.0), (95.0, 6000.0)),  # P [nano]
    pass_s=0.039,  # P [e2b]
    clock_share=0.35,  # A
    row=0.04,  # A
    draft_c=0.10,  # A
    pause_w=5.8,  # A, between 4.6 (clocks free) and 6.6 (pinned), P [nano]
    memory_w=4.5,  # P [nano]: what a stream from DRAM added
    gpu_w=11.7,  # F [study]: 22.0 W at k=0
    draft_share=0.88,  # F [study]: 20.9 W at k=4
    leakage_w_per_c=0.02,  # A
    perception_w=13.0,  # A
)

AGX_ORIN = Board(
    name="AGX Orin",
    throttle_c=99.0,  # P [orin], as the next two
    hardware_c=102.0,
    shutdown_c=104.5,
    states_trip=True,
    clocks_mhz=(306.0, *(408.0 + 102.0 * i for i in range(9)), 1300.5),  # P [orin]
    voltage_floor=0.62,  # F [agx]
    floor_to=0.45,  # F [agx]
    modes={
        "MAXN": PowerMode(1300.5),  # P [orin], as all four
        "MODE_50W": PowerMode(828.75),
        "MODE_30W": PowerMode(624.75),
        "MODE_15W": PowerMode(420.75, 0.667),  # memory: A
    },
    rds=0.20,  # A
    cd=12.0,  # A
    cs=600.0,  # A
    rsa_full=0.55,  # A: 60 W of the module would give 45 K over the air
    rsa_still=3.6,  # A
    fan=((45.0, 1000.0), (60.0, 1700.0), (75.0, 2300.0), (87.0, 2900.0)),  # P [nvfan]
    pass_s=0.065,  # A: [12b] by the bandwidth of the two boards, 204.8 and 273 GB/s, in part
    clock_share=0.30,  # A
    row=0.02,  # A
    draft_c=0.08,  # A
    pause_w=14.0,  # A: about what a capture of an idle board's rails adds up to
    memory_w=9.0,  # A
    gpu_w=25.2,  # F [study]: 48.2 W at k=0
    draft_share=0.93,  # F [study]: 47.0 W at k=4
    leakage_w_per_c=0.05,  # A
    perception_w=28.0,  # A
)

THOR = Board(
    name="Thor",
    throttle_c=109.0,  # P [thor]
    hardware_c=112.0,  # A
    shutdown_c=114.5,  # P [thor]
    states_trip=False,
    clocks_mhz=tuple(307.5 + 7.5 * i for i in range(170)),  # P: 1575 MHz, 169 states [thor]
    voltage_floor=0.65,  # A
    floor_to=0.45,  # A
    modes={
        "MAXN": PowerMode(1575.0),
        "120W": PowerMode(1399.0),  # F [thor]: products take 12.6 % longer
        "90W": PowerMode(1050.0),  # A
        "70W": PowerMode(750.0),  # A
    },
    rds=0.22,  # A
    cd=15.0,  # A
    cs=700.0,  # A
    rsa_full=0.80,  # F [thor]: 108.9 degC at 25 degC and about 82 W, less rds
    rsa_still=1.75,  # A
    fan=((70.0, 1750.0), (91.0, 4170.0), (100.0, 5371.0)),  # P [thorfan], from 115 degC: A
    pass_s=0.125,  # F [12b]: a 31B target at the same rate of weights
    clock_share=0.25,  # A, near [thor]'s "about 0 %"
    row=0.025,  # A
    draft_c=0.06,  # A
    pause_w=30.0,  # A
    memory_w=15.0,  # A
    gpu_w=37.7,  # F [study]: 82.7 W at k=0
    draft_share=1.01,  # F [study]: 81.4 W at k=4
    leakage_w_per_c=0.08,  # A
    perception_w=42.0,  # A
)

BOARDS = (ORIN_NANO, AGX_ORIN, THOR)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """An hour on a board. All is A; nothing depends on the policy.

    over_onset_c: ambient relative to the one at which the unguarded load of the whole scenario
        just reaches the trip in balance; None: ambient_c is taken.
    fan_stops_s: from then on the fan stands. perception: share of the GPU's time, for another
    process, at the largest clock. bursts: goals of 40-120 s with gaps of 20-60 s, ambient as for
    goals without gaps. mode_drop_s, mode_back_s: the second mode of the board in between.
    noise_c: standard deviation of the sensor. sensor_step_c: its resolution (Orin shows 1/32 degC).
    """

    name: str
    over_onset_c: float | None
    seed: int
    ambient_c: float = 35.0
    fan_stops_s: float = math.inf
    perception: float = 0.0
    bursts: bool = False
    mode_drop_s: float = math.inf
    mode_back_s: float = math.inf
    noise_c: float = 0.1
    sensor_step_c: float = 1 / 32


SCENARIOS = (
    Scenario("+1", 1.0, 101),
    Scenario("+3", 3.0, 103),
    Scenario("+5", 5.0, 105),
    Scenario("+10", 10.0, 110),
    Scenario("below", -4.0, 96),
    Scenario("blocked fan", None, 201, fan_stops_s=600.0),
    Scenario("perception", 3.0, 202, perception=0.3),
    Scenario("bursty", 5.0, 203, bursts=True),
    Scenario("mode drop", 3.0, 204, mode_drop_s=1200.0, mode_back_s=2400.0),
    Scenario("coarse sensor", 3.0, 205, noise_c=0.3, sensor_step_c=0.5),
)
