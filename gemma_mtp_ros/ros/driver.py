# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Drives a node from another process: starts it, walks its lifecycle, sends goals, reads tokens.

For the demo and the benchmarks. Every wait has a deadline and notices when the node is gone.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.action import ActionClient
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from unique_identifier_msgs.msg import UUID

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.msg import PowerState, TokenChunk
from gemma_mtp_ros.ros import qos

NODE_NAME = "gemma_mtp"


def own_namespace() -> str:
    """A namespace for a node of this process, so that it meets no other node of the same name."""
    return f"/driven_by_{os.getpid()}"


TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "cleanup": Transition.TRANSITION_CLEANUP,
    "shutdown": Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
}

LOOK_S = 0.1
"""How often a wait looks whether the node is still there."""

REQUEST_S = 5.0
"""Longest time until the executor's thread sends a request."""


class DriveError(Exception):
    """A step failed: one sentence."""


class NodeProcess:
    """The node as a process of its own, in this process group: Ctrl-C reaches it too."""

    def __init__(self, params_file: Path, namespace: str) -> None:
        """Start it in a namespace; what it writes is kept, the last lines of it."""
        self._popen = subprocess.Popen(
            [
                *(sys.executable, "-u", "-m", "gemma_mtp_ros.ros.node"),
                *("--ros-args", "--params-file", str(params_file), "-r", f"__ns:={namespace}"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.pid = self._popen.pid
        self._lines: collections.deque[str] = collections.deque(maxlen=20)
        self._reader = threading.Thread(target=self._read, name="node output", daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raise DriveError if the process has ended."""
        code = self._popen.poll()
        if code is not None:
            raise DriveError(f"the node ended too early, with exit status {code}")

    def stop(self, timeout_s: float = 10.0) -> int | None:
        """End the process with SIGINT; return its exit status, None if it had to be killed."""
        if self._popen.poll() is None:
            self._popen.send_signal(signal.SIGINT)
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if self._popen.poll() is None:
                self._popen.kill()
                self._popen.wait()
            self._reader.join(1.0)

    def last_lines(self) -> list[str]:
        """What the process wrote last."""
        return list(self._lines)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self._lines.append(line.rstrip())


@dataclasses.dataclass
class Goal:
    """A goal that was sent; `handle` and the future of its `result` once it is accepted."""

    id: UUID
    accepted: Future
    handle: Any = None
    result: Future | None = None


class Driver:
    """A client of the node in a namespace, with an executor thread of its own.

    `check` raises while something waits and the node is gone.
    """

    def __init__(self, namespace: str) -> None:
        self.check: Callable[[], None] = lambda: None
        self.power: PowerState | None = None
        self.engine_status = ""
        self._name = f"{namespace}/{NODE_NAME}"
        self._on_chunks: dict[bytes, Callable[[TokenChunk], None]] = {}
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        node = rclpy.create_node(
            "driver", namespace=namespace, context=self._context, start_parameter_services=False
        )
        self._node = node
        self._change_state = node.create_client(ChangeState, f"{self._name}/change_state")
        self._generate = ActionClient(node, Generate, f"{self._name}/generate")
        node.create_subscription(PowerState, f"{self._name}/power", self._on_power, qos.STATE)
        node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)
        self._tokens = node.create_subscription(
            TokenChunk, f"{self._name}/tokens", self._on_chunk, qos.TOKENS
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(node)
        self._thread = threading.Thread(target=self._spin, name="driver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave ROS."""
        self._executor.shutdown()
        self._thread.join()
        self._generate.destroy()
        self._node.destroy_node()
        self._context.try_shutdown()

    def wait_for_node(self, timeout_s: float) -> None:
        """Wait until services, action and topics of the node are matched with this client.

        Raises:
            DriveError: they were not in time.
        """
        self._until(self._matched, timeout_s, "the node's services were not found")

    def wait_for_power(self, timeout_s: float) -> PowerState:
        """Wait for a message on ~/power.

        Raises:
            DriveError: none came in time.
        """
        self._until(lambda: self.power is not None, timeout_s, "nothing came on ~/power")
        return self.power

    def transition(
        self, name: str, timeout_s: float, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Run a transition of :data:`TRANSITIONS`; `tick` is called while it runs.

        Raises:
            DriveError: it failed or was not answered in time.
        """
        request = ChangeState.Request(transition=Transition(id=TRANSITIONS[name]))
        answer = self.wait(
            self._change_state.call_async(request), timeout_s, f"the answer to {name}", tick
        )
        if not answer.success:
            raise DriveError(f"the transition {name} failed")

    def send(
        self,
        goal: Generate.Goal,
        on_chunk: Callable[[TokenChunk], None],
        on_feedback: Callable[[Any], None] | None = None,
    ) -> Goal:
        """Send a goal; its chunks and feedback go to the callbacks, on the executor's thread."""
        goal_id = UUID(uuid=list(uuid.uuid4().bytes))
        self._on_chunks[bytes(goal_id.uuid)] = on_chunk
        send = self._generate.send_goal_async
        return Goal(goal_id, self._on_executor(lambda: send(goal, on_feedback, goal_uuid=goal_id)))

    def wait_accepted(self, goal: Goal, timeout_s: float) -> None:
        """Wait until the node has accepted the goal.

        Raises:
            DriveError: it was rejected, or not answered in time.
        """
        goal.handle = self.wait(goal.accepted, timeout_s, "the answer to the goal")
        if not goal.handle.accepted:
            raise DriveError("the goal was rejected; the node takes goals only while it is active")
        goal.result = self._on_executor(goal.handle.get_result_async)

    def wait_result(self, goal: Goal, timeout_s: float) -> Generate.Result:
        """Wait for the result of an accepted goal.

        Raises:
            DriveError: it did not come in time.
        """
        answer = self.wait(goal.result, timeout_s, "the result of the goal")
        del self._on_chunks[bytes(goal.id.uuid)]
        return answer.result

    def wait(
        self,
        future: Future,
        timeout_s: float,
        what: str,
        tick: Callable[[], None] = lambda: None,
    ) -> Any:
        """Wait for a future of this client.

        Raises:
            DriveError: it was not completed in time.
        """
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        give_up_s = time.monotonic() + timeout_s
        while not done.wait(LOOK_S):
            self.check()
            tick()
            if time.monotonic() > give_up_s:
                raise DriveError(f"{what} did not come within {timeout_s:g} s")
        return future.result()

    def _on_executor(self, request: Callable[[], Future]) -> Future:
        """The future that `request` returns, called on the thread that handles the answers.

        rclpy's action client notes a request only after sending it: from another thread, an answer
        that is faster is lost.
        """
        return self.wait(self._executor.create_task(request), REQUEST_S, "the executor")

    def _until(self, condition: Callable[[], bool], timeout_s: float, failure: str) -> None:
        give_up_s = time.monotonic() + timeout_s
        while not condition():
            self.check()
            if time.monotonic() > give_up_s:
                raise DriveError(f"{failure} within {timeout_s:g} s")
            time.sleep(LOOK_S / 2)

    def _matched(self) -> bool:
        return (
            self._change_state.service_is_ready()
            and self._generate.server_is_ready()
            and self._node.count_publishers(self._tokens.topic_name) > 0
        )

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()

    def _on_chunk(self, chunk: TokenChunk) -> None:
        take = self._on_chunks.get(bytes(chunk.goal_id.uuid))
        if take is not None:
            take(chunk)

    def _on_power(self, power: PowerState) -> None:
        self.power = power

    def _on_diagnostics(self, array: DiagnosticArray) -> None:
        for status in array.status:
            if status.name == f"{self._name.lstrip('/')}: engine":
                self.engine_status = status.message


def level_name(power: PowerState) -> str:
    """The level of ~/power in words."""
    names: Sequence[str] = ("UNKNOWN", "NOMINAL", "WARM", "HOT", "CRITICAL", "DISABLED")
    return next((name for name in names if getattr(PowerState, name) == power.level), "?")
