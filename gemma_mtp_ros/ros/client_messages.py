# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The client's side of the messages: what is asked for to a goal, a result to words of `api`.

Pure functions; nothing here knows a node. The node's side is in :mod:`gemma_mtp_ros.ros.convert`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from gemma_mtp_ros import msg
from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import (
    Finish,
    Message,
    RequestError,
    SamplingParams,
    Stats,
    ToolCall,
    one_sentence,
)
from gemma_mtp_ros.ros.convert import FALLS_BACK, LITERAL, NOT_SET

INT32_MAX = 2**31 - 1
MAX_TIMEOUT_S = INT32_MAX

Schema = str | Mapping[str, Any] | type[BaseModel]
Tools = str | Sequence[Mapping[str, Any]]
Messages = Iterable[Message | Mapping[str, Any]]


class Result(Finish):
    """How a goal ended, as the action's result says it."""

    model: str = ""
    """Name of the target that answered."""

    @property
    def message(self) -> Message:
        """The answer as the next turn of the conversation, without what was thought."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls)


def goal_message(
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
) -> Generate.Goal:
    """A goal of the action; see :meth:`gemma_mtp_ros.ros.client.GenerateClient.ask`.

    Raises:
        RequestError: a value cannot be sent; names it, the bound and the remedy.
    """
    turns = [_turn(index, turn) for index, turn in enumerate(messages)]
    if turns and prompt:
        raise RequestError(
            "prompt and messages are both given, and the node would ignore prompt; make it the "
            "last message"
        )
    if system:
        if raw_prompt:
            raise RequestError("system belongs to the chat template that raw_prompt leaves out")
        rest = turns or [Message(role="user", content=prompt)]
        turns, prompt = [Message(role="system", content=system), *rest], ""
    goal = Generate.Goal(
        prompt=_text("prompt", prompt),
        messages=[_chat_message(index, turn) for index, turn in enumerate(turns)],
        raw_prompt=raw_prompt,
        session_id=_text("session_id", session_id),
        sampling=_sampling(sampling),
        enable_thinking=enable_thinking,
        response_schema=_text("response_schema", as_json(response_schema)),
        tools=_text("tools", as_json(tools)),
        tool_choice=_text("tool_choice", tool_choice),
    )
    if not 0 <= timeout_s <= MAX_TIMEOUT_S:
        raise RequestError(
            f"timeout_s = {timeout_s:g} is not between 0 (the node's own) and {MAX_TIMEOUT_S} s"
        )
    goal.timeout.sec, goal.timeout.nanosec = divmod(round(timeout_s * 1e9), 10**9)
    if not 0 <= priority <= 255:
        raise RequestError(f"priority = {priority} is not between 0 and 255")
    goal.priority = priority
    return goal


def as_json(value: Schema | Tools) -> str:
    """A schema or tools as the goal takes them; text is handed on as it is.

    Raises:
        RequestError: it holds what JSON cannot say.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, type):
        value = value.model_json_schema()
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{value!r:.60} is not JSON: {error}") from error


def result_of(message: Any, goal_id: str) -> Result:
    """What a result message (Generate.Result) says."""
    return Result(
        request_id=goal_id,
        finish_reason=message.finish_reason,
        error_code=message.error_code,
        error_msg=message.error_msg,
        text=message.text,
        reasoning=message.reasoning,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ),
        seed=message.seed,
        stats=stats_of(message.stats),
        model=message.model,
    )


def stats_of(message: Any) -> Stats:
    """The statistics of a result (msg/GenerationStats) in the words of the engine."""
    values = {name: getattr(message, name) for name in Stats.model_fields}
    values |= {name: tuple(values[name]) for name in ("drafted_at", "accepted_at")}
    values["energy_j"] = None if math.isnan(message.energy_j) else message.energy_j
    values["ttft_s"] = 0.0 if math.isnan(message.ttft_s) else message.ttft_s
    return Stats.model_validate(values)


def _turn(index: int, turn: Message | Mapping[str, Any]) -> Message:
    try:
        turn = Message.model_validate(turn)
    except ValidationError as error:
        raise RequestError(f"messages.{index}.{one_sentence(error)}") from error
    if turn.reasoning:
        raise RequestError(
            f"messages.{index}.reasoning cannot be sent: ChatMessage has no such field; leave "
            "it out"
        )
    return turn


def _chat_message(index: int, turn: Message) -> msg.ChatMessage:
    where = f"messages.{index}"
    return msg.ChatMessage(
        role=turn.role,
        content=_text(f"{where}.content", turn.content),
        tool_call_id=_text(f"{where}.tool_call_id", turn.tool_call_id),
        tool_calls=[
            msg.ToolCall(
                id=_text(f"{where}.tool_calls.id", call.id),
                name=_text(f"{where}.tool_calls.name", call.name),
                arguments=_text(f"{where}.tool_calls.arguments", call.arguments),
            )
            for call in turn.tool_calls
        ],
    )


def _sampling(fields: Mapping[str, Any]) -> msg.SamplingParams:
    try:
        given = SamplingParams.model_validate(dict(fields))
    except ValidationError as error:
        raise RequestError(one_sentence(error)) from error
    if (given.top_k or 0) > INT32_MAX:
        raise RequestError(f"top_k = {given.top_k} is more than {INT32_MAX}; 0 turns it off")
    message = msg.SamplingParams(stop=[_text("stop", text) for text in given.stop])
    for name in (*FALLS_BACK, *LITERAL):
        value = getattr(given, name)
        kind = type(getattr(message, name))
        setattr(message, name, kind(NOT_SET if value is None else value))
    return message


def _text(name: str, text: str) -> str:
    """The text, if ROS can carry it: rosidl cuts a string at a NUL and tells nobody."""
    if "\0" in text:
        raise RequestError(f"{name} holds a NUL, at which ROS would cut it; take it out")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise RequestError(f"{name} is not valid Unicode (a lone surrogate); give text in UTF-8")
    return text
