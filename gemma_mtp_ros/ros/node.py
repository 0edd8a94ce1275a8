# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The process of the node: executor, signals, and a way out that always ends.

One SingleThreadedExecutor spins in a thread of its own and never waits for the model: goals await
futures, transitions run on a worker thread, tokens are published by the host's thread and ~/power
by the watchdog's. A MultiThreadedExecutor of four threads was measured beside it and answered no
sooner, as nothing here blocks; with one thread, callbacks need no locks against each other.

The main thread waits for a signal, as Python runs signal handlers there, and not while the thread
sits in a wait set. rclpy's own handlers would shut the context down at once, and with it the way
to tell clients how their goals ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from gemma_mtp_ros.ros.lifecycle_node import GemmaMtpNode

SIGNALS = (signal.SIGINT, signal.SIGTERM)

EXIT_S = 3.8
"""The process is gone this long after a signal, whatever hangs, and says where it hung (launch
escalates after 5 s)."""

BAD_ARGUMENTS = 2
"""Exit status where ROS does not take the arguments."""

FAILURES = 20
"""So many failures of the executor in a row are no accident of one callback."""


class Spinner:
    """Spins an executor in a thread; a callback that raises is logged and ends nothing."""

    def __init__(self, node: GemmaMtpNode, on_failure: Callable[[], None]) -> None:
        self._node = node
        self._on_failure = on_failure
        self._done = threading.Event()
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name="executor")

    def start(self) -> None:
        """Begin to spin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop spinning; the executor is gone afterwards."""
        self._done.set()
        self._executor.create_task(lambda: None)  # a wake alone does not end spin_once
        self._thread.join()
        self._executor.shutdown()

    def _spin(self) -> None:
        failures = 0
        while not self._done.is_set():
            try:
                self._executor.spin_once()
                failures = 0
            except ExternalShutdownException:
                break
            except Exception:
                failures += 1
                if failures == 1:
                    self._node.get_logger().error(f"a callback failed:\n{traceback.format_exc()}")
                if failures == FAILURES:
                    break
        if not self._done.is_set():
            self._node.get_logger().fatal("the executor ended; the process ends too")
            self._on_failure()


class Alarm:
    """Lets the main thread wait until SIGINT, SIGTERM or another thread says that it is time.

    The kernel may give a signal to any thread, and that wakes no lock of the main thread. So the
    C-level handler writes into a pipe that the main thread reads.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, lambda _number, _frame: None)

    def ring(self) -> None:
        """It is time; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"\0")

    def wait(self) -> None:
        """Wait until it is time."""
        os.read(self._read, 1)

    def silence(self) -> None:
        """Ignore further signals: leaving has begun, and a second one would only break it off."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def main(args: list[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; return the exit status."""
    alarm = Alarm()
    status = 0

    def on_failure() -> None:
        nonlocal status
        status = 1
        alarm.ring()

    try:
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # of rcl and of rclpy
        said = " ".join(str(error).partition(", at /")[0].split())
        print(
            f"the node cannot start: {said}; correct the arguments after --ros-args, or the "
            "parameter file that they name",
            file=sys.stderr,
        )
        return BAD_ARGUMENTS
    node = GemmaMtpNode()
    spinner = Spinner(node, on_failure)
    spinner.start()
    alarm.wait()
    alarm.silence()
    faulthandler.dump_traceback_later(EXIT_S, exit=True)
    node.get_logger().info("leaving: ends goals and engine")
    node.leave()
    spinner.stop()
    node.destroy()
    rclpy.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main())
