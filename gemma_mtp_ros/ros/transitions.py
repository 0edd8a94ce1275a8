# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Lifecycle transitions on a thread of their own, one at a time.

rclpy runs a transition inside the service callback, on an executor thread. Loading a model takes
seconds to minutes; here the callback awaits it, so that the one executor thread goes on serving
get_state, parameters and goals. A request that the state machine has no arrow for is answered
with false; in rclpy before 7.1.3 it ended the node (#1209).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.task import Future

from gemma_mtp_ros.ros.waiting import complete

NAMES = {
    Transition.TRANSITION_CONFIGURE: "configure",
    Transition.TRANSITION_CLEANUP: "cleanup",
    Transition.TRANSITION_ACTIVATE: "activate",
    Transition.TRANSITION_DEACTIVATE: "deactivate",
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: "shutdown",
    Transition.TRANSITION_INACTIVE_SHUTDOWN: "shutdown",
    Transition.TRANSITION_ACTIVE_SHUTDOWN: "shutdown",
}
"""Transitions that may be asked for. The others (on_configure_success and so on) are the node's."""


class Transitions:
    """The transitions of `node`, a LifecycleNodeMixin; takes over its change_state service."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self._lock = threading.Lock()
        node._service_change_state.callback = self._on_request

    @property
    def state(self) -> str:
        """Label of the state machine's state, such as ``inactive`` or ``configuring``."""
        return str(self._node._state_machine.current_state[1])

    def run(self, choose: Callable[[str], str | None], timeout_s: float) -> bool:
        """Wait for a running transition, then run the one that `choose` names for the state.

        No name: nothing is done. False: it failed, or the lock was not had within `timeout_s`.
        """
        if not self._lock.acquire(timeout=timeout_s):
            return False
        try:
            name = choose(self.state)
            return not name or self._trigger(name) is TransitionCallbackReturn.SUCCESS
        finally:
            self._lock.release()

    async def _on_request(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        response.success = False
        wanted = request.transition
        asked = wanted.label or str(wanted.id)
        if not self._lock.acquire(blocking=False):
            self._refuse(asked, "another transition is running")
            return response
        try:
            name = self._name(wanted)
            if not name:
                self._lock.release()
                self._refuse(asked, f"there is no such transition from {self.state}")
                return response
            future = Future(executor=self._node.executor)
            threading.Thread(
                target=self._work, args=(name, future), name=f"transition {name}", daemon=True
            ).start()
        except Exception as error:
            self._lock.release()
            self._refuse(asked, repr(error))
            return response
        response.success = await future
        return response

    def _name(self, wanted: Transition) -> str:
        """Name of the method trigger_<name> for this transition; empty: not from this state."""
        for number, label, *_ in self._node._state_machine.available_transitions:
            if number in NAMES and (label == wanted.label if wanted.label else number == wanted.id):
                return NAMES[number]
        return ""

    def _work(self, name: str, future: Future) -> None:
        try:
            success = self._trigger(name) is TransitionCallbackReturn.SUCCESS
        finally:
            self._lock.release()
        complete(future, success, self._node.executor)

    def _trigger(self, name: str) -> TransitionCallbackReturn:
        """Run one transition; an exception is logged and counts as a failure."""
        try:
            result: TransitionCallbackReturn = getattr(self._node, f"trigger_{name}")()
            return result
        except Exception as error:
            self._node.get_logger().error(f"transition {name} failed: {error!r}")
            return TransitionCallbackReturn.ERROR

    def _refuse(self, asked: str, why: str) -> None:
        self._node.get_logger().warning(f"transition {asked} refused: {why}")
