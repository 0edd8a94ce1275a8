# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A robot that is none: servers of NavigateToPose and Manipulate that take time and can fail.

Each event is one line of JSON on standard output, for whoever checks what the robot did.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import threading
import time
from typing import Any

import rclpy
from arm_msgs.action import Manipulate
from nav2_msgs.action import NavigateToPose
from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor
from rclpy.node import Node

PERIOD_S, LOOK_S = 0.05, 0.5
OPERATIONS = {getattr(Manipulate.Goal, name): name.lower() for name in ("PICK", "PLACE", "GIVE")}
PHASES = {
    "pick": ("looks", "reaches", "grasps", "lifts"),
    "place": ("looks", "reaches", "lets go", "draws back"),
    "give": ("looks", "reaches out", "lets go", "draws back"),
}


class MockRobot(Node):
    """A point that drives in straight lines, and a hand. `fail`: what it will not manage."""

    def __init__(self, speed_m_s: float, phase_s: float, fail: list[str]) -> None:
        super().__init__("mock_robot")
        self._speed_m_s, self._phase_s, self._fail = speed_m_s, phase_s, fail
        self._x = self._y = 0.0
        self._holds = ""
        self._print = threading.Lock()
        options: dict[str, Any] = {
            "cancel_callback": lambda _: CancelResponse.ACCEPT,
            "callback_group": ReentrantCallbackGroup(),
        }
        self._servers = (
            ActionServer(self, NavigateToPose, "navigate_to_pose", self._drive, **options),
            ActionServer(self, Manipulate, "manipulate", self._handle, **options),
        )

    def tell(self, event: str, **values: Any) -> None:
        """Print an event."""
        with self._print, contextlib.suppress(BrokenPipeError):
            print(json.dumps({"event": event} | values), flush=True)

    def _drive(self, goal: Any) -> NavigateToPose.Result:
        pose = goal.request.pose
        x, y = pose.pose.position.x, pose.pose.position.y
        yaw = 2 * math.atan2(pose.pose.orientation.z, pose.pose.orientation.w)
        self.tell("drive", x=x, y=y, yaw=round(yaw, 2), frame=pose.header.frame_id)
        while (left_m := math.hypot(x - self._x, y - self._y)) > 1e-6:
            if goal.is_cancel_requested:
                goal.canceled()
                self.tell("drive canceled", left_m=round(left_m, 2))
                return NavigateToPose.Result()
            if "drive" in self._fail:
                goal.abort()
                self.tell("drive aborted")
                return NavigateToPose.Result(error_code=9003, error_msg="the way is blocked")
            share = min(1.0, self._speed_m_s * PERIOD_S / left_m)
            self._x += share * (x - self._x)
            self._y += share * (y - self._y)
            feedback = NavigateToPose.Feedback(distance_remaining=left_m * (1 - share))
            feedback.current_pose.header.frame_id = pose.header.frame_id
            feedback.current_pose.pose.position.x = self._x
            feedback.current_pose.pose.position.y = self._y
            goal.publish_feedback(feedback)
            time.sleep(PERIOD_S)
        goal.succeed()
        self.tell("arrived", x=x, y=y)
        return NavigateToPose.Result()

    def _handle(self, goal: Any) -> Manipulate.Result:
        wish = goal.request
        operation = OPERATIONS[wish.operation]
        self.tell(operation, object=wish.object, target=wish.target)
        for phase in PHASES[operation]:
            goal.publish_feedback(Manipulate.Feedback(phase=phase))
            end_s = time.monotonic() + self._phase_s
            while time.monotonic() < end_s:
                if goal.is_cancel_requested:
                    goal.canceled()
                    self.tell(f"{operation} canceled")
                    return self._result(Manipulate.Result.CANCELED, "stopped")
                time.sleep(PERIOD_S)
            if operation in self._fail:
                goal.abort()
                self.tell(f"{operation} aborted")
                return self._result(
                    Manipulate.Result.NOT_FOUND, f"there is no {wish.object} to be seen"
                )
        self._holds = wish.object if operation == "pick" else ""
        goal.succeed()
        self.tell(f"{operation} done")
        return self._result(Manipulate.Result.NONE, "")

    def _result(self, code: int, said: str) -> Manipulate.Result:
        return Manipulate.Result(error_code=code, error_msg=said, holding=bool(self._holds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=1.5, help="of the base, in m/s")
    parser.add_argument("--phase", type=float, default=0.4, help="of the arm's motion, in s")
    parser.add_argument("--fail", action="append", default=[], help="drive, pick, place or give")
    options, rest = parser.parse_known_args()
    rclpy.init(args=rest)
    robot = MockRobot(options.speed, options.phase, options.fail)
    executor = MultiThreadedExecutor(4)
    executor.add_node(robot)
    robot.tell("ready")
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        while rclpy.ok():  # a signal does not always wake a wait without an end
            executor.spin_once(timeout_sec=LOOK_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
