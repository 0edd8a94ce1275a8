# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Node, mock robot and executor together: make example PROMPT="..." runs it."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemma_mtp_ros.ros.driver import DriveError, Driver, NodeProcess, own_namespace

HERE = Path(__file__).resolve().parent
PARAMS = HERE.parent.parent / "config" / "demo.yaml"
INSTRUCTIONS = (
    "Bring Anna the red cup from the kitchen.",
    "Take the toolbox from the workshop to the moon.",
)
START_S, LOAD_S, STOP_S = 60.0, 600.0, 10.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", help="do this instead of the two instructions")
    parser.add_argument("--params-file", type=Path, default=PARAMS)
    options = parser.parse_args(argv)
    os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with _robot(), _active_node(options.params_file) as node:
            for instruction in [options.prompt] if options.prompt else INSTRUCTIONS:
                print(flush=True)
                status = _execute(instruction, node)
                if options.prompt or status == 130:
                    return status
    except DriveError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _execute(instruction: str, node: str) -> int:
    """Run the executor; Ctrl-C at the terminal reaches it too, and it stops the robot."""
    remap = ["--ros-args", "-r", f"__ns:={own_namespace()}"]
    command = [sys.executable, str(HERE / "execute_plan.py"), "--node", node, instruction, *remap]
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise


@contextlib.contextmanager
def _robot() -> Iterator[None]:
    """The mock robot, in a process group of its own: it outlives a Ctrl-C until it is stopped."""
    remap = ["--ros-args", "-r", f"__ns:={own_namespace()}"]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "mock_robot.py"), *remap],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _active_node(params_file: Path) -> Iterator[str]:
    """The name of a node that takes goals."""
    print("starting the node and loading the model ...", flush=True)
    driver = Driver(own_namespace())
    node = NodeProcess(params_file, own_namespace())
    driver.check = node.check
    try:
        driver.wait_for_node(START_S)
        driver.transition("configure", LOAD_S)
        driver.transition("activate", START_S)
        yield f"{own_namespace()}/gemma_mtp"
    except DriveError:
        print("\n".join(node.last_lines()), file=sys.stderr)
        raise
    finally:
        driver.close()
        node.stop()


if __name__ == "__main__":
    sys.exit(main())
