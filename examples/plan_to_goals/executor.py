# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Carries goals out one after the other: Nav2's NavigateToPose and the arm's Manipulate.

One at a time; the first that fails ends the run, and so does `stop`, which cancels the goal that
runs and waits until its server has said that it ended.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from action_msgs.msg import GoalStatus
from arm_msgs.action import Manipulate
from nav2_msgs.action import NavigateToPose
from plan import Drive, Goal, Handle, Pause
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

LOOK_S = 0.05
"""How often a wait looks whether it is to stop."""
ANSWER_S = 5.0
"""Longest time until a server answers a goal, or ends a goal that was canceled."""

Tell = Callable[[Goal, str], None]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended: `done` goals of it were reached; `said` is one sentence."""

    state: Literal["done", "failed", "stopped"]
    done: int
    said: str


@dataclasses.dataclass(frozen=True)
class Limits:
    """Longest time of a goal, in s; then it is canceled and counts as failed."""

    drive_s: float = 300.0
    handle_s: float = 120.0


class PlanExecutor:
    """Sends goals from `node`, which nobody else may spin while it runs."""

    def __init__(
        self,
        node: Node,
        frame: str,
        *,
        navigate_action: str = "navigate_to_pose",
        arm_action: str = "manipulate",
        limits: Limits | None = None,
    ) -> None:
        self._node = node
        self._frame = frame
        self._limits = limits or Limits()
        self._stop = threading.Event()
        self._executor = SingleThreadedExecutor(context=node.context)
        self._executor.add_node(node)
        self._drive = ActionClient(node, NavigateToPose, navigate_action)
        self._arm = ActionClient(node, Manipulate, arm_action)
        self._names = {self._drive: navigate_action, self._arm: arm_action}

    def stop(self) -> None:
        """End the run; from any thread, or a signal handler."""
        self._stop.set()

    def missing(self, goals: Sequence[Goal], timeout_s: float = ANSWER_S) -> str:
        """Wait for the servers that the goals need; a sentence if one is not there, else empty."""
        needed = {self._drive} if any(isinstance(goal, Drive) for goal in goals) else set()
        if any(isinstance(goal, Handle) for goal in goals):
            needed.add(self._arm)
        give_up_s = time.monotonic() + timeout_s
        for client in needed:
            if not client.wait_for_server(max(0.0, give_up_s - time.monotonic())):
                return f"no action server {self._names[client]} was found within {timeout_s:g} s"
        return ""

    def run(self, goals: Sequence[Goal], tell: Tell = lambda goal, said: None) -> Outcome:
        """Carry the goals out; `tell` hears of each when it begins, and what it reports."""
        for done, goal in enumerate(goals):
            if self._stop.is_set():
                return Outcome("stopped", done, f"{goal} was not begun")
            tell(goal, "sent")
            failure = self._carry_out(goal, tell)
            if self._stop.is_set() and failure:
                return Outcome("stopped", done, f"{goal}{failure}")
            if failure:
                return Outcome("failed", done, f"{goal}{failure}")
        return Outcome("done", len(goals), f"all {len(goals)} goals were reached")

    def _carry_out(self, goal: Goal, tell: Tell) -> str:
        """Empty: it was reached; else how the sentence that names the goal goes on."""
        if isinstance(goal, Pause):
            end_s = time.monotonic() + goal.seconds
            while (left_s := end_s - time.monotonic()) > 0 and not self._stop.is_set():
                tell(goal, f"{left_s:.0f} s left")
                self._stop.wait(min(left_s, 0.2))
            return "" if left_s <= 0 else ", which was cut short"
        if isinstance(goal, Drive):
            return self._ask(
                self._drive,
                self._drive_goal(goal),
                self._limits.drive_s,
                lambda feedback: tell(goal, f"{feedback.distance_remaining:.1f} m left"),
            )
        return self._ask(
            self._arm,
            _arm_goal(goal),
            self._limits.handle_s,
            lambda feedback: tell(goal, feedback.phase),
        )

    def _drive_goal(self, goal: Drive) -> NavigateToPose.Goal:
        wish = NavigateToPose.Goal()
        wish.pose.header.frame_id = self._frame
        wish.pose.header.stamp = self._node.get_clock().now().to_msg()
        wish.pose.pose.position.x = goal.pose.x
        wish.pose.pose.position.y = goal.pose.y
        wish.pose.pose.orientation.z = math.sin(goal.pose.yaw / 2)
        wish.pose.pose.orientation.w = math.cos(goal.pose.yaw / 2)
        return wish

    def _ask(
        self, client: ActionClient, wish: Any, limit_s: float, on_feedback: Callable[[Any], None]
    ) -> str:
        sent = client.send_goal_async(wish, lambda message: on_feedback(message.feedback))
        if not self._wait(sent.done, ANSWER_S):
            return f": {self._names[client]} did not answer within {ANSWER_S:g} s"
        handle = sent.result()
        if not handle.accepted:
            return f": {self._names[client]} rejected the goal"
        ended = handle.get_result_async()
        in_time = self._wait(
            lambda: ended.done() or self._stop.is_set() or not client.server_is_ready(), limit_s
        )
        if not ended.done():
            late = "" if in_time else f" after {limit_s:g} s"
            if not client.server_is_ready():
                return f": {self._names[client]} is gone"
            handle.cancel_goal_async()
            if not self._wait(ended.done, ANSWER_S):
                return f": {self._names[client]} did not confirm the cancel{late}"
            if ended.result().status == GoalStatus.STATUS_CANCELED:
                return f", which was canceled{late}"
        return _failure(ended.result())

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        give_up_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up_s:
                return False
            self._executor.spin_once(LOOK_S)
        return True


def _arm_goal(goal: Handle) -> Manipulate.Goal:
    wish = Manipulate.Goal()
    wish.operation = getattr(Manipulate.Goal, goal.operation.upper())
    wish.object, wish.target = goal.object, goal.target
    return wish


def _failure(answer: Any) -> str:
    """How a goal that was not reached ended; the result of Nav2 on Humble has no error code."""
    if answer.status == GoalStatus.STATUS_SUCCEEDED:
        return ""
    if answer.status == GoalStatus.STATUS_CANCELED:
        return ", which somebody else canceled"
    code = getattr(answer.result, "error_code", 0)
    said = getattr(answer.result, "error_msg", "") or "it was aborted"
    return f": {said} (error {code})" if code else f": {said}"
