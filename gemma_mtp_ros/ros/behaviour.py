# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A py_trees behaviour that asks the model: a tick never waits for it.

py_trees is optional (``pip install py_trees``, or ``ros-$ROS_DISTRO-py-trees``) and imported by
this module alone. Trees of py_trees_ros hand the node to ``setup`` by themselves.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import queue
import time
import uuid
from collections.abc import Callable
from typing import Any

import py_trees
from action_msgs.msg import GoalStatus
from py_trees.common import Access, Status
from rclpy.action import ActionClient
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node
from rclpy.task import Future
from unique_identifier_msgs.msg import UUID

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason

GRACE_S = 2.0
"""How long after the goal's own time-out the node may take to say so."""

STATES = {
    Generate.Feedback.STATE_QUEUED: "waits for its turn",
    Generate.Feedback.STATE_LOADING: "waits for the engine",
    Generate.Feedback.STATE_PREFILL: "the prompt is read",
}

WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)
"""How an answer ends that may be acted on."""


@dataclasses.dataclass
class _Attempt:
    """One goal. The executor's threads write, the tick reads; a later goal has its own."""

    goal: Generate.Goal
    give_up_s: float
    said: str = "sent"
    failure: tuple[ErrorCode, str] | None = None
    """Why nothing could be sent."""
    handle: Any = None
    answer: Any = None
    unwanted: bool = False
    """Nobody waits for it any more: it is canceled as soon as it can be."""


class AskModel(py_trees.behaviour.Behaviour):
    """Sends a goal to the ``generate`` action and waits for its end, tick by tick.

    RUNNING until the result is there; SUCCESS if the model ended its answer or calls tools (STOP,
    TOOL_CALLS); FAILURE for everything else, with the error's name, code and sentence in
    ``feedback_message``. A goal that is still open when the behaviour stops is canceled.

    Blackboard: reads `prompt_key`, a string (one user turn) or a ``Generate.Goal`` that is taken
    whole. Writes under `answer_key`, at the end and whatever the end: ``<answer_key>/text``,
    ``/json``, ``/tool_calls`` (dicts of id, name and arguments, these parsed), ``/error_code``,
    ``/error_msg`` and ``/result`` (the message, None if the node gave none).
    """

    def __init__(
        self,
        name: str,
        *,
        prompt_key: str = "prompt",
        answer_key: str = "answer",
        goal: Generate.Goal | None = None,
        parse: Callable[[str], Any] | None = None,
        action_name: str = "/gemma_mtp/generate",
        wait_for_server_s: float = 3.0,
        timeout_s: float = 60.0,
    ) -> None:
        """Nothing of ROS is touched before ``setup``.

        Args:
            goal: sampling, schema, tools and the rest of each goal; the prompt comes from the
                blackboard.
            parse: makes ``<answer_key>/json`` of the text. If it returns None or raises ValueError,
                the behaviour fails. By default a goal with a response_schema is parsed as JSON, and
                other text is not parsed.
            wait_for_server_s: how long ``setup`` waits for the node; 0: not at all, and the
                behaviour fails until the node is there.
            timeout_s: the goal's own time-out, from acceptance to the end. Where the node says
                nothing at all, the behaviour gives up soon after it.

        Raises:
            ValueError: a time is negative, not finite, or `timeout_s` is 0.
        """
        super().__init__(name)
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ValueError(f"timeout_s = {timeout_s} must be a positive number of seconds")
        if not (math.isfinite(wait_for_server_s) and wait_for_server_s >= 0):
            raise ValueError(f"wait_for_server_s = {wait_for_server_s} must be 0 or more seconds")
        self._goal = goal if goal is not None else Generate.Goal()
        self._parse = parse
        self._action_name = action_name
        self._wait_for_server_s = wait_for_server_s
        self._timeout_s = timeout_s
        self._prompt_key, self._answer_key = prompt_key, answer_key
        self._attempt: _Attempt | None = None
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._node: Node | None = None
        self._client: ActionClient | None = None
        self._wake: GuardCondition | None = None
        self._board = self.attach_blackboard_client(name=name)
        self._board.register_key(prompt_key, access=Access.READ)
        for part in ("text", "json", "tool_calls", "error_code", "error_msg", "result"):
            self._board.register_key(f"{answer_key}/{part}", access=Access.WRITE)

    def setup(self, **kwargs: Any) -> None:
        """Make the client on ``kwargs["node"]``, which somebody spins, and wait for the server.

        Raises:
            KeyError: there is no node in `kwargs`.
            RuntimeError: no server was found in time.
        """
        if "node" not in kwargs:
            raise KeyError(f"{self.qualified_name}: setup needs the ROS node: tree.setup(node=...)")
        node: Node = kwargs["node"]
        # rclpy's action client notes a request only after sending it: on another thread the answer
        # may be faster, and is lost. So requests are sent from the group that handles the answers.
        group = MutuallyExclusiveCallbackGroup()
        self._node = node
        self._client = ActionClient(node, Generate, self._action_name, callback_group=group)
        self._wake = node.create_guard_condition(self._work, callback_group=group)
        if self._wait_for_server_s and not self._client.wait_for_server(self._wait_for_server_s):
            raise RuntimeError(
                f"{self.qualified_name}: no action server {self._action_name} was found within "
                f"{self._wait_for_server_s:g} s; start the node, or wait longer"
            )

    def initialise(self) -> None:
        """Send the goal."""
        # What nobody could wait for must not look like the answer to this goal.
        self._write(None, ErrorCode.NONE, "", None)
        wish = self._board.get(self._prompt_key) if self._board.exists(self._prompt_key) else None
        attempt = _Attempt(self._make_goal(wish), time.monotonic() + self._timeout_s + GRACE_S)
        self._attempt = attempt
        if self._client is None:
            raise RuntimeError(f"{self.qualified_name}: setup was not called")
        if not isinstance(wish, (str, Generate.Goal)):
            held = "missing" if wish is None else f"a {type(wish).__name__}"
            said = f"{self._prompt_key} on the blackboard is {held}; write a string or a Goal"
            attempt.failure = (ErrorCode.INVALID_GOAL, said)
        elif not self._client.server_is_ready():
            attempt.failure = (ErrorCode.BACKEND_UNAVAILABLE, self._absent())
        else:
            self._do(lambda: self._send(attempt))

    def update(self) -> Status:
        """Look what came of it."""
        attempt = self._attempt
        assert attempt is not None
        assert self._client is not None
        if attempt.failure is not None:
            return self._fail(*attempt.failure)
        if attempt.handle is not None and not attempt.handle.accepted:
            return self._fail(
                ErrorCode.NOT_ACTIVE,
                "the goal was rejected; the node takes goals only while active",
            )
        if attempt.answer is not None:
            return self._judge(attempt.answer.status, attempt.answer.result)
        if not self._client.server_is_ready():
            return self._fail(ErrorCode.BACKEND_UNAVAILABLE, self._absent())
        if time.monotonic() > attempt.give_up_s:
            return self._fail(
                ErrorCode.TIMEOUT,
                f"the node gave no result within timeout_s = {self._timeout_s:g} and {GRACE_S:g} s",
            )
        self.feedback_message = attempt.said
        return Status.RUNNING

    def terminate(self, new_status: Status) -> None:
        """Cancel the goal if it is still open: a higher branch took over, or this one gave up."""
        attempt, self._attempt = self._attempt, None
        if attempt is None or attempt.answer is not None:
            return
        attempt.unwanted = True
        self._do(lambda: self._cancel(attempt))
        if new_status == Status.INVALID:
            self.feedback_message = "interrupted: the goal is canceled"

    def shutdown(self) -> None:
        """Take the client off the node."""
        if self._node is None or self._client is None:
            return
        self._client.destroy()
        self._node.destroy_guard_condition(self._wake)
        self._client = self._wake = self._node = None

    # On the tick.

    def _make_goal(self, wish: Any) -> Generate.Goal:
        goal = copy.deepcopy(wish if isinstance(wish, Generate.Goal) else self._goal)
        if isinstance(wish, str):
            goal.prompt, goal.messages = wish, []
        whole, part = divmod(self._timeout_s, 1)
        goal.timeout.sec, goal.timeout.nanosec = int(whole), int(part * 1e9)
        return goal

    def _absent(self) -> str:
        return f"there is no action server {self._action_name}; is the node running?"

    def _judge(self, status: int, result: Generate.Result) -> Status:
        """What the end of the goal means to the tree."""
        reason = FinishReason(result.finish_reason)
        if status != GoalStatus.STATUS_SUCCEEDED:
            code = ErrorCode(result.error_code)
            return self._fail(code, result.error_msg or f"the goal ended {reason.name}", result)
        if reason not in WHOLE:
            cut = f"the answer ended {reason.name}; raise sampling.max_new_tokens"
            return self._fail(ErrorCode.NONE, cut, result)
        parse = self._parse or (json.loads if self._asked_for_json() else None)
        parsed = None
        if parse is not None and reason is FinishReason.STOP:
            try:
                parsed = parse(result.text)
            except ValueError as error:
                return self._fail(ErrorCode.NONE, f"the answer cannot be parsed: {error}", result)
            if parsed is None:
                return self._fail(ErrorCode.NONE, "the answer holds nothing to parse", result)
        self._write(result, ErrorCode.NONE, "", parsed)
        self.feedback_message = f"{reason.name}: {result.stats.completion_tokens} tokens"
        return Status.SUCCESS

    def _asked_for_json(self) -> bool:
        assert self._attempt is not None
        return bool(self._attempt.goal.response_schema)

    def _fail(
        self, code: ErrorCode, sentence: str, result: Generate.Result | None = None
    ) -> Status:
        self._write(result, code, sentence, None)
        self.feedback_message = f"{code.name} ({code.value}): {sentence}" if code else sentence
        return Status.FAILURE

    def _write(
        self, result: Generate.Result | None, code: ErrorCode, sentence: str, parsed: Any
    ) -> None:
        calls = [] if result is None else result.tool_calls
        # Calls of an answer that failed may be cut short: they are in the result, not here.
        whole = result is not None and result.finish_reason == FinishReason.TOOL_CALLS
        values = {
            "text": "" if result is None else result.text,
            "json": parsed,
            "tool_calls": [_call(call) for call in calls] if whole and not code else [],
            "error_code": int(code),
            "error_msg": sentence,
            "result": result,
        }
        for part, value in values.items():
            self._board.set(f"{self._answer_key}/{part}", value)

    # On the executor.

    def _do(self, work: Callable[[], None]) -> None:
        self._todo.put(work)
        if self._wake is not None:
            self._wake.trigger()

    def _work(self) -> None:
        while True:
            try:
                self._todo.get_nowait()()
            except queue.Empty:
                return

    def _send(self, attempt: _Attempt) -> None:
        if attempt.unwanted or self._client is None:
            return
        self._client.send_goal_async(
            attempt.goal,
            feedback_callback=lambda message: _note(attempt, message.feedback),
            goal_uuid=UUID(uuid=list(uuid.uuid4().bytes)),
        ).add_done_callback(lambda sent: self._accepted(attempt, sent))

    def _accepted(self, attempt: _Attempt, sent: Future) -> None:
        attempt.handle = handle = sent.result()
        if not handle.accepted:
            return
        if attempt.unwanted:
            self._cancel(attempt)
            return
        attempt.said = "accepted"
        handle.get_result_async().add_done_callback(
            lambda ended: setattr(attempt, "answer", ended.result())
        )

    def _cancel(self, attempt: _Attempt) -> None:
        """Ask the node to end the goal; before it is accepted, `_accepted` will."""
        if attempt.handle is not None and attempt.handle.accepted and self._client is not None:
            attempt.handle.cancel_goal_async()


def _note(attempt: _Attempt, feedback: Generate.Feedback) -> None:
    attempt.said = STATES.get(feedback.state, f"{feedback.completion_tokens} tokens")


def _call(call: Any) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)}
