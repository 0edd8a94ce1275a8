# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/monitoring.md: what the real node said on its topics while a board got hot.

The node runs with the embedded pair, in a process of its own, and replays a trace
(`telemetry.source: replay`) of a simulated Orin Nano whose fan stops and comes back. Goals are sent
all the while; then the engine's process is killed, and at last watchdog.override is set to CRITICAL
and back. ~/power, ~/stats, /diagnostics and the results are recorded as they come, and drawn.

The trace is open loop: the recorded temperature does not answer to what the node does.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rich.console import Console

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.demo.corpus import held_out
from gemma_mtp_ros.models import resolve_pair
from gemma_mtp_ros.msg import EngineStats, PowerState, TokenChunk
from gemma_mtp_ros.ros import qos
from gemma_mtp_ros.ros.driver import NODE_NAME, Driver, Goal, level_name, own_namespace
from gemma_mtp_ros.telemetry.reading import Reading, Throttle, Trips, summarise
from gemma_mtp_ros.telemetry.trace import Header, TraceWriter

from .monitoring_plot import Ask, Run, Said, draw_goals, draw_heat
from .ros_overhead import serving
from .thermal_physics import STEP_S, Plant
from .thermal_plants import BOARDS, Scenario

BOARD = BOARDS[0]
FAN_STOPS_S, FAN_BACK_S = 240.0, 900.0
SHOWN_FROM_S, SHOWN_UNTIL_S = 300.0, 1620.0
FASTER = 6.0
"""The replayed trace plays this many times as fast as the board would live it."""

UNTIL_S = 140.0
"""Of the recording: the board is NOMINAL again; the engine is killed next."""

OVERRIDE_S = 8.0
LAST_S = 6.0
ANSWER_S = 60.0
DUTY = 0.08
"""Of the engine: the embedded pair answers in a twentieth of a second, too short to be seen."""

ERRORS = {
    Generate.Result.NONE: "",
    Generate.Result.THERMAL_LIMIT: "THERMAL_LIMIT",
    Generate.Result.ENGINE_LOST: "ENGINE_LOST",
}


def write_trace(file: Path) -> None:
    """Simulate, and write what the sensors said in the form of gemma-mtp record."""
    scenario = Scenario("fan", None, 7, ambient_c=30.0, fan_stops_s=FAN_STOPS_S)
    plant = Plant(BOARD, scenario)
    trips = {"tj-thermal": Trips(BOARD.throttle_c, BOARD.shutdown_c, BOARD.hysteresis_c)}
    header = Header(
        period_s=STEP_S / FASTER,
        source="simulation",
        board=BOARD.name,
        recorder="benchmarks.monitoring",
    )
    with TraceWriter(file, header) as writer:
        for index in range(round(SHOWN_UNTIL_S / STEP_S)):
            at_s = index * STEP_S
            if at_s >= FAN_BACK_S:
                plant.scenario = dataclasses.replace(scenario, fan_stops_s=math.inf)
            seen = plant.step()
            if at_s < SHOWN_FROM_S:
                continue
            zones = {"tj-thermal": seen.sensor_c}
            writer.write(
                Reading(
                    stamp_s=at_s / FASTER,
                    wall_s=at_s / FASTER,
                    source="simulation",
                    board=BOARD.name,
                    zones=zones,
                    trips=trips,
                    **dataclasses.asdict(summarise(zones, trips)),
                    power_w=seen.joules / STEP_S,
                    gpu_clock_mhz=seen.clock_mhz,
                    throttle=Throttle.YES if seen.throttled else Throttle.NO,
                    power_mode=seen.mode,
                )
            )


class Recorder:
    """Subscribes as any monitoring program would; its own context, node and thread."""

    def __init__(self, name: str) -> None:
        self.begin_s = time.monotonic()
        self.run = Run(BOARD.throttle_c, BOARD.shutdown_c)
        self._name = name.lstrip("/")
        self._engine: dict[str, str] = {}
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        node = rclpy.create_node("recorder", context=self._context, start_parameter_services=False)
        self._node = node
        self._set = node.create_client(SetParameters, f"{name}/set_parameters")
        node.create_subscription(PowerState, f"{name}/power", self._on_power, qos.STATE)
        node.create_subscription(EngineStats, f"{name}/stats", self._on_stats, qos.STATE)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name="recorder")
        self._thread.start()

    @property
    def now_s(self) -> float:
        """Seconds since the recording began."""
        return time.monotonic() - self.begin_s

    def kill_engine(self) -> None:
        """End the engine's process as a crash would."""
        os.kill(int(self._engine["pid"]), signal.SIGKILL)

    def override(self, level: str, driver: Driver) -> None:
        """Set watchdog.override of the node."""
        value = ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=level)
        request = SetParameters.Request(
            parameters=[Parameter(name="watchdog.override", value=value)]
        )
        future = self._set.call_async(request)
        (answer,) = driver.wait(future, ANSWER_S, "the answer to watchdog.override").results
        if not answer.successful:
            raise SystemExit(f"monitoring: watchdog.override was refused: {answer.reason}")

    def close(self) -> None:
        """Leave ROS."""
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def _on_power(self, said: PowerState) -> None:
        run = self.run
        run.levels.append((self.now_s, level_name(said)))
        for name in ("temperature_c", "power_w"):
            run.add(name, self.now_s, getattr(said, name))
        run.add("draft_cap", self.now_s, float(said.draft_cap))
        run.add("throttled", self.now_s, float(said.throttle == PowerState.THROTTLE_YES))

    def _on_stats(self, said: EngineStats) -> None:
        for name in ("tokens_per_second", "draft_length"):
            self.run.add(name, self.now_s, getattr(said, name))
        self.run.add("queue_depth", self.now_s, float(said.queue_depth))

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        for status in array.status:
            node, _, name = status.name.partition(": ")
            if node == self._name:
                if name == "engine":
                    self._engine = {pair.key: pair.value for pair in status.values}
                level = int.from_bytes(status.level, "little")
                self.run.diagnostics.append(Said(self.now_s, name, level, status.message))


def ask(driver: Driver, recorder: Recorder, instruction: str) -> tuple[Ask, Goal]:
    """Send a goal; when it was sent and when it began to answer are noted."""
    asked = Ask(sent_s=recorder.now_s)

    def on_chunk(chunk: TokenChunk) -> None:
        if asked.first_s is None and not chunk.done:
            asked.first_s = recorder.now_s

    goal = driver.send(Generate.Goal(prompt=instruction), on_chunk)
    driver.wait_accepted(goal, ANSWER_S)
    recorder.run.asks.append(asked)
    return asked, goal


def begun(driver: Driver, asked: Ask) -> None:
    """Wait until the answer begins, or has ended."""
    give_up_s = time.monotonic() + ANSWER_S
    while asked.first_s is None and time.monotonic() < give_up_s:
        rest(driver, 0.01)


def finish(driver: Driver, recorder: Recorder, asked: Ask, goal: Goal) -> None:
    """Wait for the result and note how the goal ended."""
    result = driver.wait_result(goal, ANSWER_S)
    asked.ended_s = recorder.now_s
    asked.error = ERRORS.get(result.error_code, result.error_msg)


def send_goals(driver: Driver, recorder: Recorder, until_s: float) -> None:
    """Goals one after another with a rest between, now and then three at once."""
    instructions = itertools.cycle(example.instruction for example in held_out(40))
    for number in itertools.count(1):
        if recorder.now_s >= until_s:
            return
        together = 3 if number % 5 == 0 else 1
        sent = [ask(driver, recorder, next(instructions)) for _ in range(together)]
        for asked, goal in sent:
            finish(driver, recorder, asked, goal)
        rest(driver, 1.5)


def rest(driver: Driver, seconds: float) -> None:
    """Let time pass, and notice a node that is gone."""
    give_up_s = time.monotonic() + seconds
    while (left_s := give_up_s - time.monotonic()) > 0:
        driver.check()
        time.sleep(min(0.1, left_s))


@contextlib.contextmanager
def recording(name: str) -> Iterator[Recorder]:
    """A recorder that is closed in the end."""
    recorder = Recorder(name)
    try:
        yield recorder
    finally:
        recorder.close()


def record() -> Run:
    """Run the node under the trace and record it."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "fan.jsonl"
        write_trace(trace)
        model, drafter = resolve_pair("demo", "")
        parameters: dict[str, Any] = {
            "model": model,
            "drafter": drafter,
            "draft": {"adaptive": False, "max_length": 6},
            "queue_size": 2,
            "engine": {"threads": 1, "max_duty_cycle": DUTY, "reproducible": False},
            "telemetry": {"source": "replay", "trace": str(trace)},
            "watchdog": {"mode": "report", "draft_cap": ["WARM=3", "HOT=1"]},
        }
        name = f"{own_namespace()}/{NODE_NAME}"
        with serving(parameters) as (driver, _), recording(name) as recorder:
            send_goals(driver, recorder, UNTIL_S)
            lose_the_engine(driver, recorder)
            override(driver, recorder)
            send_goals(driver, recorder, recorder.now_s + LAST_S)
            return recorder.run


def lose_the_engine(driver: Driver, recorder: Recorder) -> None:
    """Kill the engine under a goal; the next goal waits for the new one."""
    instructions = [example.instruction for example in held_out(2)]
    asked = ask(driver, recorder, instructions[0])
    begun(driver, asked[0])
    recorder.kill_engine()
    finish(driver, recorder, *asked)
    finish(driver, recorder, *ask(driver, recorder, instructions[1]))


def override(driver: Driver, recorder: Recorder) -> None:
    """Set watchdog.override to CRITICAL under a goal, and back after some seconds."""
    instructions = [example.instruction for example in held_out(3)]
    asked = ask(driver, recorder, instructions[0])
    begun(driver, asked[0])
    recorder.override("CRITICAL", driver)
    finish(driver, recorder, *asked)
    for instruction in instructions[1:]:
        rest(driver, OVERRIDE_S / 3)
        finish(driver, recorder, *ask(driver, recorder, instruction))
    rest(driver, OVERRIDE_S / 3)
    recorder.override("", driver)


def main() -> None:
    """Record and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the pictures go: docs/pictures")
    options = parser.parse_args()
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    console = Console()
    with console.status("recording, about four minutes"):
        run = record()
    options.folder.mkdir(parents=True, exist_ok=True)
    draw_heat(run, options.folder / "monitoring_heat.svg")
    draw_goals(run, options.folder / "monitoring_goals.svg")
    ended = [asked for asked in run.asks if asked.ended_s is not None]
    seen = [level for level, _ in itertools.groupby(level for _, level in run.levels)]
    counts = collections.Counter(asked.error or "answered" for asked in ended)
    console.print(", ".join(f"{count} {ending}" for ending, count in counts.items()))
    console.print(f"levels: {', '.join(seen)}")


if __name__ == "__main__":
    main()
