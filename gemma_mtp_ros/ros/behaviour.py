# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A py_trees behaviour that asks the model: a tick never waits for it.

py_trees is optional (``pip install py_trees``, or ``ros-$ROS_DISTRO-py-trees``) and imported by
this module alone. Trees of py_trees_ros hand the node to ``setup`` by themselves.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import py_trees
from py_trees.common import Access, Status
from rclpy.node import Node

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import ErrorCode, FinishReason
from gemma_mtp_ros.ros.answer import Answer, Stage
from gemma_mtp_ros.ros.client import GenerateClient
from gemma_mtp_ros.ros.client_errors import ClientError
from gemma_mtp_ros.ros.client_messages import MAX_TIMEOUT_S, Result

GRACE_S = 2.0
"""How long after the goal's own time-out the node may take to say so."""

LOOK_S = 0.05
"""How often `setup` looks for the server."""

STAGES = {
    Stage.SENDING: "the node is looked for",
    Stage.QUEUED: "waits for its turn",
    Stage.LOADING: "waits for the engine",
    Stage.PREFILL: "the prompt is read",
}

WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)
"""How an answer ends that may be acted on."""


class AskModel(py_trees.behaviour.Behaviour):
    """Sends a goal to the ``generate`` action and waits for its end, tick by tick.

    RUNNING until the result is there; SUCCESS if the model ended its answer or calls tools (STOP,
    TOOL_CALLS); FAILURE for everything else, with the error's name, code and sentence in
    ``feedback_message``. A goal that is still open when the behaviour stops is canceled.

    Blackboard: reads `prompt_key`, a string (one user turn) or a ``Generate.Goal`` that is taken
    whole. Writes under `answer_key`, at the end and whatever the end: ``<answer_key>/text``,
    ``/json``, ``/tool_calls`` (dicts of id, name and arguments, these parsed), ``/error_code``,
    ``/error_msg`` and ``/result`` (a :class:`~gemma_mtp_ros.ros.client.Result`, None if the node
    gave none).
    """

    def __init__(
        self,
        name: str,
        *,
        prompt_key: str = "prompt",
        answer_key: str = "answer",
        goal: Generate.Goal | None = None,
        parse: Callable[[str], Any] | None = None,
        node_name: str = "/gemma_mtp",
        server_timeout_s: float = 3.0,
        require_server: bool = True,
        timeout_s: float = 60.0,
    ) -> None:
        """Nothing of ROS is touched before ``setup``.

        Args:
            goal: sampling, schema, tools and the rest of each goal; the prompt comes from the
                blackboard.
            parse: makes ``<answer_key>/json`` of the text. If it returns None or raises ValueError,
                the behaviour fails. By default a goal with a response_schema is parsed as JSON, and
                other text is not parsed.
            server_timeout_s: how long ``setup``, and later each goal, waits for the node.
            require_server: whether ``setup`` waits, and raises where there is no node.
            timeout_s: the goal's own time-out, from acceptance to the end. Where the node says
                nothing at all, the behaviour gives up soon after it.

        Raises:
            ValueError: a time is not positive, or more than a goal can say.
        """
        super().__init__(name)
        for key, value in (("timeout_s", timeout_s), ("server_timeout_s", server_timeout_s)):
            if not 0 < value <= MAX_TIMEOUT_S:
                raise ValueError(f"{key} = {value:g} must be above 0 and at most {MAX_TIMEOUT_S} s")
        self._goal = goal if goal is not None else Generate.Goal()
        self._parse = parse
        self._node_name = node_name
        self._server_timeout_s = server_timeout_s
        self._require_server = require_server
        self._timeout_s = timeout_s
        self._prompt_key, self._answer_key = prompt_key, answer_key
        self._client: GenerateClient | None = None
        self._answer: Answer | None = None
        self._give_up_s = 0.0
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
        if self._require_server:
            self._find_server(node)
        self._client = GenerateClient(
            self._node_name, node=node, server_timeout_s=self._server_timeout_s
        )

    def initialise(self) -> None:
        """Send the goal."""
        if self._client is None:
            raise RuntimeError(f"{self.qualified_name}: setup was not called")
        # An earlier answer must not look like the one to this goal.
        self._write(None, ErrorCode.NONE, "", None)
        self._answer = None
        wish = self._board.get(self._prompt_key) if self._board.exists(self._prompt_key) else None
        if isinstance(wish, (str, Generate.Goal)):
            waits_s = self._server_timeout_s + self._timeout_s + GRACE_S
            self._give_up_s = time.monotonic() + waits_s
            self._answer = self._client.send(self._goal_of(wish))

    def update(self) -> Status:
        """Look what came of it."""
        if self._answer is None:
            said = f"{self._prompt_key} on the blackboard is missing, or no string and no Goal"
            return self._fail(ErrorCode.INVALID_GOAL, said)
        if self._answer.done():
            return self._judge(self._answer)
        if time.monotonic() > self._give_up_s:
            said = f"the node gave no result within {self._timeout_s:g} s and {GRACE_S:g} s more"
            return self._fail(ErrorCode.TIMEOUT, said)
        stage = self._answer.stage
        self.feedback_message = STAGES.get(stage, f"{len(self._answer.text)} characters")
        return Status.RUNNING

    def terminate(self, new_status: Status) -> None:
        """Cancel the goal if it is still open: a higher branch took over, or this one gave up."""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        answer.cancel()
        if new_status == Status.INVALID:
            self.feedback_message = "interrupted: the goal is canceled"

    def shutdown(self) -> None:
        """Take the client off the node."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _find_server(self, node: Node) -> None:
        service = node.resolve_service_name(f"{self._node_name}/generate/_action/send_goal")
        give_up_s = time.monotonic() + self._server_timeout_s
        while all(found != service for found, _ in node.get_service_names_and_types()):
            if time.monotonic() > give_up_s:
                raise RuntimeError(
                    f"{self.qualified_name}: no action server {self._node_name}/generate was found "
                    f"within {self._server_timeout_s:g} s; start the node, or wait longer"
                )
            time.sleep(LOOK_S)

    def _goal_of(self, wish: str | Generate.Goal) -> Generate.Goal:
        goal = copy.deepcopy(wish if isinstance(wish, Generate.Goal) else self._goal)
        if isinstance(wish, str):
            goal.prompt, goal.messages = wish, []
        whole, part = divmod(self._timeout_s, 1)
        goal.timeout.sec, goal.timeout.nanosec = int(whole), int(part * 1e9)
        return goal

    def _judge(self, answer: Answer) -> Status:
        """What the end of the goal means to the tree."""
        try:
            result = answer.result(check=False)
        except ClientError as error:
            return self._fail(error.error_code, error.error_msg)
        reason = result.finish_reason
        if result.error_code is not ErrorCode.NONE:
            return self._fail(result.error_code, result.error_msg, result)
        if reason not in WHOLE:
            said = f"the answer ended {reason.name}; raise sampling.max_new_tokens"
            return self._fail(ErrorCode.NONE, said, result)
        parse = self._parse or (json.loads if answer.goal.response_schema else None)
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

    def _fail(self, code: ErrorCode, sentence: str, result: Result | None = None) -> Status:
        self._write(result, code, sentence, None)
        self.feedback_message = f"{code.name} ({code.value}): {sentence}" if code else sentence
        return Status.FAILURE

    def _write(self, result: Result | None, code: ErrorCode, sentence: str, parsed: Any) -> None:
        # Calls of an answer that failed may be cut short: they are in the result, not here.
        acts = result is not None and result.finish_reason is FinishReason.TOOL_CALLS
        calls = result.tool_calls if result is not None and acts and not code else ()
        values = {
            "text": "" if result is None else result.text,
            "json": parsed,
            "tool_calls": [
                {"id": call.id, "name": call.name, "arguments": json.loads(call.arguments)}
                for call in calls
            ],
            "error_code": int(code),
            "error_msg": sentence,
            "result": result,
        }
        for part, value in values.items():
            self._board.set(f"{self._answer_key}/{part}", value)
