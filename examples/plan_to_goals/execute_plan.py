# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Asks the model for a plan, checks it, and carries it out; Ctrl-C stops the robot.

    python3 examples/plan_to_goals/execute_plan.py "Bring Anna the red cup from the kitchen."

Exit status: 0 all was done, 1 refused or failed, 130 stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import rclpy
from executor import Outcome, PlanExecutor
from plan import Goal, PlanRefusedError, World, goals_of, load_world
from rclpy.signals import SignalHandlerOptions
from rich.console import Console
from rich.status import Status
from rich.text import Text

from gemma_mtp_ros.api import Channel, FinishReason, GemmaMtpError
from gemma_mtp_ros.demo.evaluate import extract_plan
from gemma_mtp_ros.ros.client import GenerateClient
from gemma_mtp_ros.terminal import AnswerPrinter, plan_table, visible

HERE = Path(__file__).resolve().parent
ANSWER_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("instruction", nargs="?", help="what the robot is to do")
    parser.add_argument("--plan", type=Path, help="carry this JSON out and ask no model")
    parser.add_argument("--world", type=Path, default=HERE / "world.yaml")
    parser.add_argument("--node", default="/gemma_mtp", help="the node that is asked")
    parser.add_argument("--dry-run", action="store_true", help="check the plan, move nothing")
    options, ros_arguments = parser.parse_known_args(argv)
    if (options.instruction is None) == (options.plan is None):
        parser.error("give an instruction, or a plan with --plan")
    console = Console(highlight=False)
    # A signal must cancel a goal before ROS is left.
    rclpy.init(args=ros_arguments, signal_handler_options=SignalHandlerOptions.NO)
    try:
        return _work(console, options)
    except (PlanRefusedError, GemmaMtpError, OSError, ValueError) as error:
        console.print(Text(f"✗ refused: {error}", "red"), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("✗ stopped before anything moved")
        return 130
    finally:
        rclpy.try_shutdown()


def _work(console: Console, options: argparse.Namespace) -> int:
    world = load_world(options.world)
    if options.plan is None:
        text = _ask(console, options.instruction, options.node)
    else:
        text = options.plan.read_text()
    plan = extract_plan(text)
    if plan is None:
        raise PlanRefusedError("there is no JSON plan in it")
    console.print(plan_table(plan))
    goals = goals_of(plan, world)
    console.print(f"✓ checked: {len(goals)} goals")
    if options.dry_run:
        return 0
    outcome = _carry_out(console, goals, world)
    sign = "✓" if outcome.state == "done" else "✗"
    console.print(Text(f"{sign} {outcome.state}: {outcome.said}"), soft_wrap=True)
    return {"done": 0, "failed": 1, "stopped": 130}[outcome.state]


def _ask(console: Console, instruction: str, node: str) -> str:
    """The model's answer, printed as it comes."""
    console.print(Text(f"> {visible(instruction)}", "bold"), soft_wrap=True)
    printer = AnswerPrinter(console)
    with (
        GenerateClient(node) as client,
        client.ask(instruction, temperature=0.0, timeout_s=ANSWER_S) as answer,
    ):
        for piece in answer:
            printer.round(piece.text if piece.channel is Channel.TEXT else "")
        printer.end()
        result = answer.result()
    if result.finish_reason is not FinishReason.STOP:
        raise PlanRefusedError(f"the answer ended {result.finish_reason.name}, not by itself")
    return result.text


def _carry_out(console: Console, goals: Sequence[Goal], world: World) -> Outcome:
    node = rclpy.create_node("plan_executor")
    executor = PlanExecutor(node, world.frame)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: executor.stop())
    if missing := executor.missing(goals):
        raise PlanRefusedError(missing)
    with console.status("") as status:
        show = _Show(console, status, len(goals))
        outcome = executor.run(goals, show)
        show.close(outcome)
    return outcome


class _Show:
    """One line for the goal that runs; it stays once the goal is reached."""

    def __init__(self, console: Console, status: Status, total: int) -> None:
        self._console, self._status, self._total = console, status, total
        self._goal: Goal | None = None
        self._done = 0
        self._begin_s = time.monotonic()

    def __call__(self, goal: Goal, said: str) -> None:
        if goal is not self._goal:
            self._keep()
            self._goal, self._begin_s = goal, time.monotonic()
        self._status.update(Text(f"{goal}: {visible(said)}"))

    def close(self, outcome: Outcome) -> None:
        if outcome.state == "done":
            self._keep()

    def _keep(self) -> None:
        if self._goal is None:
            return
        self._done += 1
        took_s = time.monotonic() - self._begin_s
        step = f"step {self._goal.step}"
        self._console.print(Text(f"✓ {step}: {self._goal} ({took_s:.1f} s)"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
