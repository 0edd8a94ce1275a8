# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A client of the node for robot behaviours and scripts: see docs/clients.md."""

from __future__ import annotations

import atexit
import contextlib
import threading
from types import TracebackType
from typing import Any

from rclpy.node import Node

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.ros.answer import LOOK_S, Answer, Piece, Stage
from gemma_mtp_ros.ros.client_errors import (
    AnswerTimeoutError,
    ClientError,
    GoalFailedError,
    GoalRejectedError,
    NodeLostError,
    NotSpunError,
    ServerUnavailableError,
)
from gemma_mtp_ros.ros.client_messages import Messages, Result, Schema, Tools, goal_message
from gemma_mtp_ros.ros.courier import Courier
from gemma_mtp_ros.ros.own_node import OwnNode

__all__ = [
    "Answer",
    "AnswerTimeoutError",
    "ClientError",
    "GenerateClient",
    "GoalFailedError",
    "GoalRejectedError",
    "NodeLostError",
    "NotSpunError",
    "Piece",
    "Result",
    "ServerUnavailableError",
    "Stage",
]


class GenerateClient:
    """Sends goals to the node and hands out their answers.

    With `node` it lives in a node that the caller spins, with an executor of one thread or of
    several (rclpy's experimental EventsExecutor serves no guard conditions). Without, it has a node
    and a thread of its own; that is for scripts. Leaving its ``with`` block closes it.

    `name` is that of the node to ask: absolute, or relative to the namespace of `node`. A goal
    waits up to `server_timeout_s` for that node to be found; a node that says nothing for
    `silence_s` while a goal runs is taken for lost.
    """

    def __init__(
        self,
        name: str = "gemma_mtp",
        *,
        node: Node | None = None,
        server_timeout_s: float = 10.0,
        silence_s: float = 10.0,
    ) -> None:
        self.name = name
        self._own = OwnNode() if node is None else None
        self._courier = Courier(
            self._own.node if self._own is not None else node,
            name,
            server_timeout_s,
            silence_s,
            own_node=self._own is not None,
        )
        self._closed = False
        if self._own is not None:
            self._own.start()
            atexit.register(self.close)

    def ask(
        self,
        prompt: str = "",
        *,
        messages: Messages = (),
        system: str = "",
        raw_prompt: bool = False,
        session_id: str = "",
        enable_thinking: bool = False,
        response_schema: Schema = "",
        tools: Tools = "",
        tool_choice: str = "",
        timeout_s: float = 0.0,
        priority: int = 0,
        **sampling: Any,
    ) -> Answer:
        """Send a goal; returns at once, from any thread or callback.

        `prompt` is one user turn; or `messages` is the conversation, oldest first, as
        :class:`gemma_mtp_ros.api.Message` or mappings with its fields. `system` goes before either,
        in place of the node's own system prompt. `response_schema` is a JSON Schema as text, as a
        mapping, or a pydantic model; `tools` a JSON array as text or a sequence of declarations.
        `timeout_s` counts from acceptance, 0 takes the node's own. The rest are fields of
        :class:`gemma_mtp_ros.api.SamplingParams`, such as ``temperature=0.0``; those left out are
        the node's parameters.

        Raises:
            RequestError: a value cannot be sent. All else is raised where the answer is read.
        """
        return self.send(
            goal_message(
                prompt,
                messages=messages,
                system=system,
                raw_prompt=raw_prompt,
                session_id=session_id,
                enable_thinking=enable_thinking,
                response_schema=response_schema,
                tools=tools,
                tool_choice=tool_choice,
                timeout_s=timeout_s,
                priority=priority,
                **sampling,
            )
        )

    def send(self, goal: Generate.Goal) -> Answer:
        """Send a goal message as it is; returns at once."""
        answer = Answer(self._courier, goal)
        self._courier.begin(answer)
        return answer

    def close(self, wait: bool = True) -> None:
        """Cancel what runs, wait until it has ended (at most 10 s), leave ROS.

        In a callback of the node that was given, it does not wait.
        """
        if self._closed:
            return
        self._closed = True
        courier = self._courier
        left = courier.open_answers()
        for answer in left:
            answer.cancel()
        may_wait = wait and not courier.on_executor()
        for answer in left if may_wait else ():
            with contextlib.suppress(ClientError):
                answer.result(check=False)
        courier.close()
        if self._own is not None:
            atexit.unregister(self.close)
            self._own.stop(courier.destroy)
            return
        destroyed = threading.Event()
        courier.leave(destroyed)
        with contextlib.suppress(NotSpunError):
            while may_wait and not destroyed.wait(LOOK_S):
                courier.check_spun()

    def __enter__(self) -> GenerateClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
