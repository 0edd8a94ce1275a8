# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A client of the node for tests: goals, topics, lifecycle, parameters.

It lives in the test's process, the node in another. Everything waits on events, with a deadline.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rclpy
import yaml
from action_msgs.msg import GoalStatus
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.msg import Log, Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
from rclpy.action import ActionClient
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode
from gemma_mtp_ros.msg import EngineStats, PowerState, TokenChunk
from gemma_mtp_ros.srv import CountTokens, GetModelInfo, ResetSession

NODE = "/gemma_mtp"
OK, WARN, ERROR = (DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR)
REPOSITORY = Path(__file__).parent.parent.parent
WAIT_S = 30.0

SUCCEEDED = GoalStatus.STATUS_SUCCEEDED
ABORTED = GoalStatus.STATUS_ABORTED
CANCELED = GoalStatus.STATUS_CANCELED

LATCHED = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
DEEP = QoSProfile(depth=1000)
TRANSITIONS = {
    "configure": Transition.TRANSITION_CONFIGURE,
    "cleanup": Transition.TRANSITION_CLEANUP,
    "activate": Transition.TRANSITION_ACTIVATE,
    "deactivate": Transition.TRANSITION_DEACTIVATE,
    "unconfigured_shutdown": Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
    "inactive_shutdown": Transition.TRANSITION_INACTIVE_SHUTDOWN,
    "active_shutdown": Transition.TRANSITION_ACTIVE_SHUTDOWN,
}


class NodeProcess:
    """The node in its own process; its log goes to a file."""

    def __init__(self, folder: Path, parameters: dict[str, Any], *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.params_file = folder / "params.yaml"
        self.log_file = folder / "node.log"
        self.params_file.write_text(yaml.safe_dump({"/**": {"ros__parameters": parameters}}))
        command = [sys.executable, "-m", "gemma_mtp_ros.ros.node", "--ros-args"]
        command += ["--params-file", str(self.params_file), *arguments]
        path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": path}
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def children(self) -> list[int]:
        """Living processes whose parent is the node."""
        task = Path(f"/proc/{self.pid}/task")
        found: list[int] = []
        for thread in task.iterdir() if task.exists() else ():
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in (thread / "children").read_text().split()]
        return [pid for pid in found if state_of(pid) not in ("", "Z")]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def state_of(pid: int) -> str:
    """State letter of a process (R, S, T, Z ...); empty: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Goal:
    """One goal that was sent: what came of it."""

    def __init__(self, driver: Driver, handle: Any, feedback: list[Any]) -> None:
        self._driver = driver
        self._handle = handle
        self.feedback = feedback
        self.id = bytes(handle.goal_id.uuid)
        self.accepted = handle.accepted
        self._result = driver.on_executor(handle.get_result_async) if handle.accepted else None

    @property
    def chunks(self) -> list[TokenChunk]:
        return [chunk for chunk in self._driver.chunks if bytes(chunk.goal_id.uuid) == self.id]

    @property
    def text(self) -> str:
        return "".join(c.text for c in self.chunks if c.channel == TokenChunk.TEXT)

    @property
    def states(self) -> list[int]:
        """States of the feedback, each run of equal ones once."""
        seen: list[int] = []
        for message in self.feedback:
            if not seen or seen[-1] != message.state:
                seen.append(message.state)
        return seen

    @property
    def done(self) -> bool:
        return self._result is not None and self._result.done()

    def cancel(self) -> Any:
        return self._driver.wait_for(self._driver.on_executor(self._handle.cancel_goal_async))

    def wait_state(self, state: int, timeout_s: float = WAIT_S) -> None:
        self._driver.wait_until(lambda: state in self.states, timeout_s, f"feedback state {state}")

    def wait_text(self, timeout_s: float = WAIT_S) -> None:
        self._driver.wait_until(lambda: bool(self.text), timeout_s, "text of the answer")

    def result(self, timeout_s: float = WAIT_S) -> tuple[int, Any]:
        """Terminal status and result, after the last chunk has come too."""
        answer = self._driver.wait_for(self._result, timeout_s)
        self._driver.wait_until(
            lambda: any(c.done for c in self.chunks), timeout_s, "the chunk with done"
        )
        return answer.status, answer.result

    def error(self, timeout_s: float = WAIT_S) -> tuple[ErrorCode, str]:
        """Code and sentence of a goal that must end ABORTED."""
        status, result = self.result(timeout_s)
        assert status == ABORTED, (status, result)
        assert_sentence(result.error_msg)
        assert self.chunks[-1].done
        assert self.chunks[-1].finish_reason == result.finish_reason
        return ErrorCode(result.error_code), result.error_msg


def assert_sentence(text: str) -> None:
    """One sentence, whole, of a length that fits a terminal."""
    assert text
    assert "\n" not in text
    assert "Traceback" not in text
    assert len(text) < 400


class Driver:
    """Client side of everything that the node offers."""

    def __init__(self) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = rclpy.create_node(f"driver_{os.getpid()}", context=self.context)
        self._changed = threading.Condition()
        self.chunks: list[TokenChunk] = []
        self.power: list[PowerState] = []
        self.stats: list[EngineStats] = []
        self.diagnostics: list[DiagnosticArray] = []
        self.logs: list[Log] = []
        self._sent: list[Goal] = []
        self._group = ReentrantCallbackGroup()
        subscribe = self._subscribe
        subscribe(TokenChunk, f"{NODE}/tokens", DEEP, self.chunks)
        subscribe(PowerState, f"{NODE}/power", LATCHED, self.power)
        subscribe(EngineStats, f"{NODE}/stats", LATCHED, self.stats)
        subscribe(DiagnosticArray, "/diagnostics", QoSProfile(depth=100), self.diagnostics)
        subscribe(Log, "/rosout", DEEP, self.logs)
        self._generate = ActionClient(
            self.node,
            Generate,
            f"{NODE}/generate",
            callback_group=self._group,
            goal_service_qos_profile=DEEP,
            result_service_qos_profile=DEEP,
            cancel_service_qos_profile=DEEP,
            feedback_sub_qos_profile=DEEP,
        )
        services = {
            "change_state": ChangeState,
            "get_state": GetState,
            "set_parameters": SetParameters,
            "get_parameters": GetParameters,
            "describe_parameters": DescribeParameters,
            "count_tokens": CountTokens,
            "get_model_info": GetModelInfo,
            "reset_session": ResetSession,
        }
        self._clients = {
            name: self.node.create_client(interface, f"{NODE}/{name}", callback_group=self._group)
            for name, interface in services.items()
        }
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._closing = False
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        self._executor.create_task(lambda: None)  # a wake alone does not end spin_once
        self._thread.join(5)
        self._executor.shutdown()
        self._generate.destroy()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context, uninstall_handlers=True)

    def forget(self) -> None:
        """Drop what was received so far."""
        for received in (self.chunks, self.power, self.stats, self.diagnostics, self.logs):
            received.clear()

    def _spin(self) -> None:
        while not self._closing:
            self._executor.spin_once()
            with self._changed:
                self._changed.notify_all()

    def _subscribe(self, kind: Any, topic: str, qos: QoSProfile, into: list[Any]) -> None:
        self.node.create_subscription(kind, topic, into.append, qos, callback_group=self._group)

    # Waiting.

    def wait_until(
        self, condition: Callable[[], bool], timeout_s: float = WAIT_S, what: str = "condition"
    ) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"{what} was not met within {timeout_s} s")

    def soon(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether the condition is met within `timeout_s`: the pace of a loop that asks again."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def wait_for(self, future: Any, timeout_s: float = WAIT_S) -> Any:
        self.wait_until(future.done, timeout_s, "an answer")
        return future.result()

    def on_executor(self, request: Callable[[], Any]) -> Any:
        """The future that `request` returns, called where answers are handled.

        rclpy's action client notes a request after sending it: on another thread the answer may be
        faster, and is lost.
        """
        return self.wait_for(self._executor.create_task(request))

    def call(self, service: str, request: Any, timeout_s: float = WAIT_S) -> Any:
        return self.wait_for(self.call_async(service, request), timeout_s)

    def call_async(self, service: str, request: Any) -> Any:
        return self._clients[service].call_async(request)

    def wait_node(self, timeout_s: float = WAIT_S, since_s: float = 0.0) -> None:
        """Wait until all that the node offers is matched with this side.

        A node of this name that just ended may still be known, and its last messages under way, so
        ~/power must speak of a time after `since_s`, and a service must answer.

        The node learns of this side's readers in the order in which they were made. So one that
        sends ~/power here knows the reader of ~/tokens, which was made before.
        """
        deadline = time.monotonic() + timeout_s
        for client in self._clients.values():
            assert client.wait_for_service(deadline - time.monotonic()), client.srv_name
        assert self._generate.wait_for_server(deadline - time.monotonic())
        self.wait_until(
            lambda: any(
                p.header.stamp.sec + 1e-9 * p.header.stamp.nanosec > since_s for p in self.power
            ),
            timeout_s,
            "a message on ~/power",
        )
        while not self.soon(self.call_async("get_state", GetState.Request()).done, 2.0):
            assert time.monotonic() < deadline, "no answer to get_state"

    # What the node offers.

    def state(self, timeout_s: float = WAIT_S) -> str:
        return self.call("get_state", GetState.Request(), timeout_s).current_state.label

    def change(self, name: str, timeout_s: float = WAIT_S) -> bool:
        return self.wait_for(self.change_async(name), timeout_s).success

    def change_async(self, name: str) -> Any:
        return self.change_by_id(TRANSITIONS[name])

    def change_by_id(self, number: int, label: str = "") -> Any:
        transition = Transition(id=number, label=label)
        return self.call_async("change_state", ChangeState.Request(transition=transition))

    def set(self, **values: Any) -> str:
        """Set parameters (a double underscore is a dot); the reason of the first refusal."""
        for name, value in values.items():
            parameter = Parameter(name=name.replace("__", "."), value=parameter_value(value))
            answer = self.call("set_parameters", SetParameters.Request(parameters=[parameter]))
            if not answer.results[0].successful:
                return answer.results[0].reason
        return ""

    def get(self, name: str) -> ParameterValue:
        return self.call("get_parameters", GetParameters.Request(names=[name])).values[0]

    def send(self, prompt: str = "", *, feedback: Any = None, **fields: Any) -> Goal:
        """Send a goal; keywords that SamplingParams has go there, the rest to the goal."""
        goal = Generate.Goal(prompt=prompt)
        for name, value in fields.items():
            setattr(goal.sampling if hasattr(goal.sampling, name) else goal, name, value)
        seen: list[Any] = []

        def on_feedback(message: Any) -> None:
            seen.append(message.feedback)
            if feedback is not None:
                feedback(message.feedback)

        send = self._generate.send_goal_async
        handle = self.wait_for(self.on_executor(lambda: send(goal, feedback_callback=on_feedback)))
        self._sent.append(Goal(self, handle, seen))
        return self._sent[-1]

    def send_at_once(self, goals: list[Any]) -> Callable[[], list[Any]]:
        """Send goals without waiting for anything between; what is returned waits for the results.

        Raises TimeoutError where a response or a result is lost.
        """
        send = self._generate.send_goal_async
        sent = self.on_executor(lambda: [send(goal) for goal in goals])

        def results() -> list[Any]:
            handles = [self.wait_for(future) for future in sent]
            asked = self.on_executor(lambda: [handle.get_result_async() for handle in handles])
            return [self.wait_for(future).result for future in asked]

        return results

    def pour(self, goals: list[Any]) -> list[Any]:
        """Send goals, wait for nothing. The list gains the future result of each accepted one."""
        results: list[Any] = []

        def answered(response: Any) -> None:
            handle = response.result()
            if handle is not None and handle.accepted:
                results.append(handle.get_result_async())

        def send() -> None:
            for goal in goals:
                self._generate.send_goal_async(goal).add_done_callback(answered)

        self.on_executor(send)
        return results

    def status(self, name: str) -> Any:
        """Latest diagnostic status whose name ends so; None: there was none."""
        for array in reversed(self.diagnostics):
            for status in array.status:
                if status.name.endswith(f": {name}"):
                    return status
        return None

    def wait_health(self, name: str, level: bytes, timeout_s: float = WAIT_S) -> Any:
        """Wait until /diagnostics gives this level to the status `name`; that status."""

        def met() -> bool:
            status = self.status(name)
            return status is not None and status.level == level

        self.wait_until(met, timeout_s, f"level {level!r} of {name}")
        return self.status(name)

    def end_goals(self) -> None:
        """Cancel what a test left running."""
        goals, self._sent = self._sent, []
        for goal in goals:
            if goal.accepted and not goal.done:
                goal.cancel()
                goal.result()


def parameter_value(value: Any) -> ParameterValue:
    if isinstance(value, bool):
        return ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    if isinstance(value, int):
        return ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=value)
    if isinstance(value, float):
        return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    if isinstance(value, str):
        return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=value)


@contextlib.contextmanager
def running_node(
    folder: Path, driver: Driver, parameters: dict[str, Any], *arguments: str
) -> Iterator[NodeProcess]:
    """A node of its own, found by the driver; ended afterwards."""
    begin_s = time.time()
    node = NodeProcess(folder, parameters, *arguments)
    try:
        driver.wait_node(since_s=begin_s)
        yield node
    except BaseException:
        print(node.log)
        raise
    finally:
        node.end()
        driver.forget()
