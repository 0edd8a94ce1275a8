# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The demo: the node with the embedded pair, asked from a second process.

``python -m gemma_mtp_ros.ros.demo [--prompt TEXT]``, or ``make demo``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from gemma_mtp_ros.demo.evaluate import extract_plan
from gemma_mtp_ros.ros.client import ClientError, GenerateClient
from gemma_mtp_ros.ros.driver import (
    LOOK_S,
    NODE_NAME,
    DriveError,
    Driver,
    NodeProcess,
    level_name,
    own_namespace,
)
from gemma_mtp_ros.terminal import AnswerPrinter, plan_table, statistics, visible

INSTRUCTIONS = (
    "Bring Anna the red cup from the kitchen.",
    "Could you take the toolbox from the workshop and put it on the shelf in room 12?",
    "Inspect the water meter in the basement, then report to the technician, then go home.",
)

START_S = 60.0
LOAD_S = 600.0
ANSWER_S = 60.0
STEP_S = 15.0
"""Deadlines: for the node to appear, to load, for the next chunk, for everything else."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="demo", description="Runs the node and asks it.")
    parser.add_argument("--prompt", help="ask this instead of the three instructions")
    parser.add_argument(
        "--params-file", type=Path, help="parameters of the node (default: config/demo.yaml)"
    )
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _on_sigterm)
    console = Console(highlight=False)
    try:
        _demo(
            console,
            options.params_file or _default_params(),
            (options.prompt,) if options.prompt else INSTRUCTIONS,
        )
    except (DriveError, ClientError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    return 0


def _on_sigterm(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _default_params() -> Path:
    """The file of the installed package, or of the source tree."""
    from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

    shares = [Path(__file__).resolve().parents[2]]
    with contextlib.suppress(PackageNotFoundError):
        shares.insert(0, Path(get_package_share_directory("gemma_mtp_ros")))
    for share in shares:
        if (share / "config" / "demo.yaml").is_file():
            return share / "config" / "demo.yaml"
    raise DriveError("config/demo.yaml is not installed; build the package again")


def _demo(console: Console, params_file: Path, instructions: Sequence[str]) -> None:
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    with contextlib.ExitStack() as stack:
        driver = Driver(own_namespace())
        stack.callback(driver.close)
        node = NodeProcess(params_file, own_namespace())
        stack.callback(node.stop)
        driver.check = node.check
        try:
            _walk(console, driver, node, instructions)
        except (DriveError, ClientError):
            node.stop()  # what it says on its way out belongs to the explanation
            lines = "\n".join(f"  {visible(line)}" for line in node.last_lines())
            print(f"demo: last lines of the node:\n{lines or '  (none)'}", file=sys.stderr)
            raise


def _walk(console: Console, driver: Driver, node: NodeProcess, instructions: Sequence[str]) -> None:
    with _step(console, "node", f"started, process {node.pid}"):
        driver.wait_for_node(START_S)
    power = driver.wait_for_power(STEP_S)
    _note(console, f"watchdog {level_name(power)}: {power.reason}")
    with _step(console, "configure", "the model is loaded") as show:
        driver.transition("configure", LOAD_S, lambda: show(driver.engine_status))
    with _step(console, "activate", "goals are taken"):
        driver.transition("activate", STEP_S)
    if console.is_terminal:
        _note(console, "tokens of one colour in a row came from one pass of the target")
    with GenerateClient(f"{own_namespace()}/{NODE_NAME}") as client:
        for instruction in instructions:
            _ask(console, driver, client, instruction)
    console.print()
    for name, done in (
        ("deactivate", "no more goals"),
        ("cleanup", "the engine process is gone"),
        ("shutdown", "finalized"),
    ):
        with _step(console, name, done):
            driver.transition(name, STEP_S)
    driver.check = lambda: None
    with _step(console, "node", "ended"):
        code = node.stop()
        if code != 0:
            raise DriveError(f"the node did not end cleanly (exit status {code})")


def _note(console: Console, text: str) -> None:
    console.print(Text("  " + visible(text), "dim"))


@contextlib.contextmanager
def _step(console: Console, name: str, done: str) -> Iterator[Callable[[str], None]]:
    """Show that a step runs, what it yields to, and how long it took."""
    begin_s = time.monotonic()
    with console.status(f"{name} ...") as status:
        yield lambda said: status.update(Text(f"{name}: {visible(said) or '...'}"))
    console.print(f"[green]✓[/] {name}: {done} [dim]({time.monotonic() - begin_s:.1f} s)[/]")


def _ask(console: Console, driver: Driver, client: GenerateClient, instruction: str) -> None:
    """Ask; print the tokens as they arrive, then the plan and the statistics."""
    console.print()
    console.print(Text(f"> {visible(instruction)}", "bold"), soft_wrap=True)
    printer = AnswerPrinter(console)
    with client.ask(instruction) as answer:
        give_up_s = time.monotonic() + ANSWER_S
        while not answer.done():
            if answer.wait(LOOK_S):
                give_up_s = time.monotonic() + ANSWER_S
            driver.check()
            if time.monotonic() > give_up_s:
                raise DriveError(f"no token came on ~/tokens for {ANSWER_S:g} s")
            for piece in answer.take():
                if piece.lost:
                    raise DriveError(f"{piece.lost} chunks before chunk {piece.seq} were lost")
                printer.round(piece.text, piece.channel)
    printer.end()
    result = answer.result()
    plan = extract_plan(result.text)
    if plan is None:
        _note(console, "the answer holds no JSON plan")
    else:
        console.print(plan_table(plan))
    console.print(statistics(result.stats))


if __name__ == "__main__":
    sys.exit(main())
