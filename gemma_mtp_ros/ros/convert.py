# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Between ROS messages and the words of `api`: goal to Request, Finish to Result, and so on.

Pure functions of messages; nothing here knows a node.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Mapping
from typing import Any

from builtin_interfaces.msg import Time
from pydantic import ValidationError
from rclpy.clock import Clock

from gemma_mtp_ros import msg
from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import (
    MAX_PROMPT_BYTES,
    ErrorCode,
    Finish,
    FinishReason,
    Message,
    Request,
    RequestError,
    Stats,
    one_sentence,
)
from gemma_mtp_ros.telemetry.policy import Decision
from gemma_mtp_ros.telemetry.reading import Reading

NOT_SET = -1
"""Default of a sampling field: the parameter counts; default of the parameter: the checkpoint."""

FALLS_BACK = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
)
"""Sampling fields that take parameter ``sampling.<field>`` where they are not set."""

LITERAL = ("presence_penalty", "frequency_penalty")


class Outcome(enum.Enum):
    """The terminal state of a goal."""

    SUCCEEDED = "succeeded"
    ABORTED = "aborted"
    CANCELED = "canceled"


def outcome(finish: Finish, cancel_requested: bool) -> Outcome:
    """The terminal state for `finish`; CANCELED only for a goal whose client asked for it."""
    if finish.finish_reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS):
        return Outcome.SUCCEEDED
    if finish.finish_reason is FinishReason.CANCELED and cancel_requested:
        return Outcome.CANCELED
    return Outcome.ABORTED


def request_from_goal(
    goal: Any,
    goal_id: str,
    parameters: Mapping[str, Any],
    now_s: float,
) -> Request:
    """The request that goal message `goal` (Generate.Goal) asks for.

    `parameters` gives ``sampling.*``, ``system_prompt`` and ``goal_timeout_s``; `now_s` is
    CLOCK_MONOTONIC at acceptance, from which the timeout counts.

    Raises:
        RequestError: a field is out of its bounds or not served; names it, the bound, the remedy.
    """
    timeout_s = goal.timeout.sec + goal.timeout.nanosec * 1e-9
    if timeout_s < 0:
        raise RequestError(
            f"timeout = {timeout_s:g} s is negative; give a positive one, or 0 for the node's own"
        )
    timeout_s = timeout_s or parameters["goal_timeout_s"]
    messages, raw_prompt = conversation(
        goal.messages, goal.prompt, parameters["system_prompt"], goal.raw_prompt
    )
    try:
        return Request.model_validate(
            {
                "id": goal_id,
                "messages": messages,
                "raw_prompt": raw_prompt,
                "session_id": goal.session_id,
                "enable_thinking": goal.enable_thinking,
                "tools": goal.tools,
                "tool_choice": goal.tool_choice,
                "response_schema": goal.response_schema,
                "sampling": _sampling(goal.sampling, parameters),
                "deadline_s": now_s + timeout_s if timeout_s else None,
                "submitted_s": now_s,
                "priority": goal.priority,
            }
        )
    except ValidationError as error:
        raise RequestError(one_sentence(error)) from error


def conversation(
    messages: Any, prompt: str, system_prompt: str, raw_prompt: bool = False
) -> tuple[tuple[Message, ...], str | None]:
    """Turns of a conversation (ChatMessage[] or one user turn), or the raw prompt, as api has them.

    `system_prompt` goes before a conversation without a system turn, never before a raw prompt.

    Raises:
        RequestError: nothing or contradictory things were sent, a turn is invalid, or it is all
            too long.
    """
    size = len(prompt.encode("utf-8", "replace")) + sum(
        len(message.content.encode("utf-8", "replace")) for message in messages
    )
    if size > MAX_PROMPT_BYTES:
        raise RequestError(
            f"the prompt has {size} bytes, more than {MAX_PROMPT_BYTES}; shorten it",
            ErrorCode.PROMPT_TOO_LONG,
        )
    if raw_prompt:
        if messages:
            raise RequestError(
                "raw_prompt is set but messages are not empty; send the text in prompt alone, or "
                "leave raw_prompt false"
            )
        if not prompt:
            raise RequestError("prompt is empty; send the text that the model shall go on from")
        return (), prompt
    if not messages and not prompt:
        raise RequestError("prompt and messages are both empty; send one of them")
    turns = [_turn(index, message) for index, message in enumerate(messages)]
    if not turns:
        turns = [Message(role="user", content=prompt)]
    if system_prompt and all(turn.role not in ("system", "developer") for turn in turns):
        turns.insert(0, Message(role="system", content=system_prompt))
    return tuple(turns), None


def _turn(index: int, message: Any) -> Message:
    if message.images:
        raise RequestError(
            f"messages.{index}.images holds {len(message.images)} images, and images are not "
            "supported; leave it empty"
        )
    fields = {
        "role": message.role,
        "content": message.content,
        "tool_calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments or "{}"}
            for call in message.tool_calls
        ],
        "tool_call_id": message.tool_call_id,
    }
    try:
        return Message.model_validate(fields)
    except ValidationError as error:
        raise RequestError(f"messages.{index}.{one_sentence(error)}") from error


def _sampling(sampling: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(sampling, name) for name in LITERAL}
    for name in FALLS_BACK:
        value = getattr(sampling, name)
        if value == NOT_SET:
            value = parameters[f"sampling.{name}"]
        fields[name] = None if value == NOT_SET else value
    fields["stop"] = tuple(sampling.stop)
    return fields


def result_from_finish(finish: Finish, model: str) -> Generate.Result:
    """The action's result."""
    result = Generate.Result()
    result.text = without_nul(finish.text)
    result.reasoning = without_nul(finish.reasoning)
    result.tool_calls = [
        msg.ToolCall(
            id=without_nul(call.id),
            name=without_nul(call.name),
            arguments=without_nul(call.arguments),
        )
        for call in finish.tool_calls
    ]
    result.finish_reason = int(finish.finish_reason)
    result.seed = finish.seed
    result.model = model
    result.stats = generation_stats(finish.stats)
    result.error_code = int(finish.error_code)
    result.error_msg = without_nul(finish.error_msg)
    return result


def without_nul(text: str) -> str:
    """`text` with U+FFFD for each NUL, at which rclpy would cut the string."""
    return text.replace("\0", "\ufffd")


def generation_stats(stats: Stats) -> msg.GenerationStats:
    """`stats` as a message; what is unknown is NaN."""
    return msg.GenerationStats(
        prompt_tokens=stats.prompt_tokens,
        cached_tokens=stats.cached_tokens,
        completion_tokens=stats.completion_tokens,
        rounds=stats.rounds,
        drafted_at=list(stats.drafted_at),
        accepted_at=list(stats.accepted_at),
        queue_s=stats.queue_s,
        ttft_s=stats.ttft_s if stats.completion_tokens else math.nan,
        decode_s=stats.decode_s,
        paused_s=stats.paused_s,
        total_s=stats.total_s,
        tokens_per_second=stats.tokens_per_second,
        energy_j=known(stats.energy_j),
    )


def power_state(reading: Reading, decision: Decision) -> msg.PowerState:
    """What ~/power says, without the stamp."""
    state = msg.PowerState()
    state.level = int(decision.level)
    state.reason = f"{decision.reason} {decision.advice}".rstrip()
    state.hottest_zone = reading.hottest_zone or ""
    state.temperature_c = known(reading.temperature_c)
    state.margin_c = known(reading.margin_c)
    state.power_w = known(reading.power_w)
    state.gpu_clock_mhz = known(reading.gpu_clock_mhz)
    state.gpu_load = known(reading.gpu_load)
    state.throttle = int(reading.throttle)
    state.power_mode = reading.power_mode or ""
    state.draft_cap = decision.draft_cap
    state.pause_s = decision.pause_s
    state.source = "" if reading.source == "none" else reading.source
    return state


def set_stamp(stamp: Time, clock: Clock, at_s: float) -> None:
    """Set `stamp` to the time of `clock` at `at_s`, a past moment of CLOCK_MONOTONIC; at least 0.

    In place, as it is done for each token.
    """
    age_ns = int((time.monotonic() - at_s) * 1e9)
    stamp.sec, stamp.nanosec = divmod(max(clock.now().nanoseconds - age_ns, 0), 10**9)


def known(value: float | None) -> float:
    """NaN for what is unknown."""
    return math.nan if value is None else float(value)
