# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What ROS adds to the engine: latency, reaction to goals and cancels, CPU of the node.

Three real processes: engine, node, and this one as action client and subscriber. The node stamps a
chunk of ~/tokens with the moment at which the engine decided the tokens; the latency is from there
to the subscriber's callback, on this machine's clock. Nothing is drafted, so each token is a
message of its own. engine.max_duty_cycle, chosen by trial, slows the engine to about 100 tokens/s.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml
from rich.console import Console

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.demo.corpus import held_out
from gemma_mtp_ros.models import resolve_pair
from gemma_mtp_ros.msg import TokenChunk
from gemma_mtp_ros.ros.driver import DriveError, Driver, Goal, NodeProcess, own_namespace

from .common import FEWER, Row, parser, quantile, report

RATE = 100.0
"""Tokens per second of the paced run."""
ATTEMPTS, CALIBRATION_CHUNKS = 4, 400
LOAD_S, STEP_S, ANSWER_S = 600.0, 15.0, 120.0


class Paced(NamedTuple):
    """The paced run: s from engine to subscriber, cores, tokens/s."""

    latencies: list[float]
    cpu_share: float
    rate: float


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--model", default="demo")
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--chunks", type=int, default=2000, help="of the paced run")
    options_parser.add_argument("--goals", type=int, default=100, help="sent, and canceled")
    options_parser.set_defaults(threads=1)
    options = options_parser.parse_args()
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    model, drafter = resolve_pair(options.model, options.drafter)
    engine: dict[str, Any] = {
        "threads": options.threads,
        "reproducible": False,
        "max_context": 1024,
    }
    parameters: dict[str, Any] = {
        "model": model,
        "drafter": drafter,
        "engine": engine,
        "draft": {"max_length": 0},
        "watchdog": {"mode": "off"},
    }
    instructions = [example.instruction for example in held_out(options.goals)]
    with Console(stderr=True).status("") as status:
        status.update("full speed: goals and cancels")
        with serving(parameters) as (driver, _):
            rate = full_rate(driver, instructions[:10])
            to_feedback = goal_to_feedback(driver, instructions)
            to_result = cancel_to_result(driver, instructions)
        status.update(f"{RATE:g} tokens/s: latency and CPU")
        paced = paced_run(parameters, rate, instructions, options.chunks)
    round_s = 1.0 / rate
    beyond = [max(0.0, taken - round_s) for taken in to_result]
    report(
        "What ROS adds",
        [
            Row("ros.chunk_latency_p50_ms", 1e3 * quantile(paced.latencies, 0.50), "ms"),
            Row(
                "ros.chunk_latency_p99_ms",
                1e3 * quantile(paced.latencies, 0.99),
                "ms",
                (FEWER, 5.0),
            ),
            Row(
                "ros.goal_to_feedback_p50_ms",
                1e3 * quantile(to_feedback, 0.50),
                "ms",
                (FEWER, 5.0),
            ),
            Row("ros.cancel_to_result_p50_ms", 1e3 * quantile(beyond, 0.50), "ms"),
            Row("ros.cancel_to_result_p99_ms", 1e3 * quantile(beyond, 0.99), "ms", (FEWER, 20.0)),
            Row("ros.round_ms", 1e3 * round_s, "ms"),
            Row("ros.node_cpu_share", paced.cpu_share, "cores", (FEWER, 0.08)),
            Row("ros.paced_rate", paced.rate, "tokens/s"),
        ],
        options.threads,
        options.json,
        notes=[
            f"Latency: {len(paced.latencies)} chunks of one token each, engine to subscriber.",
            f"Goal to feedback, cancel to result: {options.goals} goals each, engine at full "
            f"speed ({rate:.0f} tokens/s); of the latter one round is taken off.",
            "CPU share: of the node's process alone, in the paced run, goals included.",
        ],
    )


@contextlib.contextmanager
def serving(parameters: dict[str, Any]) -> Iterator[tuple[Driver, NodeProcess]]:
    """An active node with these parameters, in a process of its own.

    Raises:
        SystemExit: a step failed; says which, with the node's last lines.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        file = Path(folder) / "params.yaml"
        file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}))
        driver = Driver(own_namespace())
        stack.callback(driver.close)
        node = NodeProcess(file, own_namespace())
        stack.callback(node.stop)
        driver.check = node.check
        try:
            driver.wait_for_node(STEP_S)
            driver.transition("configure", LOAD_S)
            driver.transition("activate", LOAD_S)
            yield driver, node
        except DriveError as error:
            node.stop()
            raise SystemExit("\n".join([*node.last_lines(), f"ros_overhead: {error}"])) from error


class Client:
    """Takes what one goal sends; its methods are called on the driver's thread."""

    def __init__(self, started_after: int = 3) -> None:
        self.latencies: list[float] = []
        self.started = threading.Event()
        self.fed_back_s: float | None = None
        self._started_after = started_after

    def on_chunk(self, chunk: TokenChunk) -> None:
        """Note how old a chunk is."""
        now_ns = time.time_ns()
        if chunk.done:
            return
        stamp = chunk.header.stamp
        self.latencies.append((now_ns - stamp.sec * 10**9 - stamp.nanosec) * 1e-9)
        if len(self.latencies) == self._started_after:
            self.started.set()

    def on_feedback(self, _feedback: Any) -> None:
        """Note when the first feedback came."""
        if self.fed_back_s is None:
            self.fed_back_s = time.monotonic()


def ask(driver: Driver, instruction: str, client: Client, max_new_tokens: int = -1) -> Goal:
    """Send a goal, greedy, and wait until it is accepted."""
    goal = Generate.Goal(prompt=instruction)
    goal.sampling.temperature = 0.0
    goal.sampling.max_new_tokens = max_new_tokens
    sent = driver.send(goal, client.on_chunk, client.on_feedback)
    driver.wait_accepted(sent, STEP_S)
    return sent


def full_rate(driver: Driver, instructions: Sequence[str]) -> float:
    """Tokens per second while decoding, pauses aside."""
    rates = []
    for instruction in instructions:
        goal = ask(driver, instruction, Client())
        rates.append(driver.wait_result(goal, ANSWER_S).stats.tokens_per_second)
    return statistics.median(rates)


def goal_to_feedback(driver: Driver, instructions: Sequence[str]) -> list[float]:
    """Seconds from sending each goal to its first feedback."""
    taken = []
    for instruction in instructions:
        client = Client()
        begin_s = time.monotonic()
        driver.wait_result(ask(driver, instruction, client, max_new_tokens=1), ANSWER_S)
        if client.fed_back_s is None:
            raise DriveError("a goal ended without any feedback")
        taken.append(client.fed_back_s - begin_s)
    return taken


def cancel_to_result(driver: Driver, instructions: Sequence[str]) -> list[float]:
    """Seconds from canceling each goal, while it streams, to its result."""
    taken = []
    for instruction in instructions:
        client = Client()
        goal = ask(driver, instruction, client)
        came: list[float] = []
        assert goal.result is not None
        goal.result.add_done_callback(lambda _, came=came: came.append(time.monotonic()))
        if not client.started.wait(ANSWER_S):
            raise DriveError(f"no tokens came within {ANSWER_S:g} s")
        begin_s = time.monotonic()
        driver.wait(goal.handle.cancel_goal_async(), STEP_S, "the answer to cancel")
        ended = driver.wait_result(goal, STEP_S)
        # An answer that was over before the cancel came says nothing.
        if ended.finish_reason == Generate.Result.FINISH_CANCELED:
            taken.append(came[0] - begin_s)
    if len(taken) < len(instructions) / 2:
        raise DriveError(f"only {len(taken)} goals were still running when they were canceled")
    return taken


def paced_run(
    parameters: dict[str, Any], rate: float, instructions: Sequence[str], chunks: int
) -> Paced:
    """Run at about :data:`RATE`; `rate` is that of full speed. Tries again where it is far off."""
    duty, questions = RATE / rate, itertools.cycle(instructions)
    for attempt in range(1, ATTEMPTS + 1):
        engine = parameters["engine"] | {"max_duty_cycle": min(1.0, duty)}
        with serving(parameters | {"engine": engine}) as (driver, node):
            found = pace(driver, node.pid, questions, CALIBRATION_CHUNKS).rate
            if abs(found / RATE - 1.0) < 0.05 or attempt == ATTEMPTS:
                return pace(driver, node.pid, questions, chunks)
        duty *= RATE / found
    raise AssertionError("the last attempt returns")


def pace(driver: Driver, pid: int, instructions: Iterable[str], chunks: int) -> Paced:
    """Ask one after another until so many chunks came."""
    latencies: list[float] = []
    node = psutil.Process(pid)
    cpu_before, begin_s = node.cpu_times(), time.monotonic()
    for instruction in instructions:
        client = Client()
        driver.wait_result(ask(driver, instruction, client), ANSWER_S)
        latencies += client.latencies
        if len(latencies) >= chunks:
            break
    cpu, wall_s = node.cpu_times(), time.monotonic() - begin_s
    spent_s = cpu.user + cpu.system - cpu_before.user - cpu_before.system
    return Paced(latencies, spent_s / wall_s, len(latencies) / wall_s)


if __name__ == "__main__":
    main()
