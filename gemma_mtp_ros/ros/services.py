# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The services ~/count_tokens, ~/get_model_info and ~/reset_session."""

from __future__ import annotations

from collections.abc import Callable

from rclpy.callback_groups import CallbackGroup
from rclpy.node import Node

from gemma_mtp_ros.api import GemmaMtpError
from gemma_mtp_ros.host import EngineHost
from gemma_mtp_ros.ros.convert import conversation
from gemma_mtp_ros.ros.settings import Settings
from gemma_mtp_ros.ros.waiting import result_of
from gemma_mtp_ros.srv import CountTokens, GetModelInfo, ResetSession

NOT_LOADED = "no model is loaded; configure the node first"

ANSWER_TIMEOUT_S = 10.0
"""Longest wait for the engine, which looks for questions once a round or prefill chunk."""


class Services:
    """Answers from the host of the moment; without one, with a sentence."""

    def __init__(
        self,
        node: Node,
        settings: Settings,
        group: CallbackGroup,
        host: Callable[[], EngineHost | None],
    ) -> None:
        self._node = node
        self._settings = settings
        self._host = host
        for interface, name, callback in (
            (CountTokens, "~/count_tokens", self._count_tokens),
            (GetModelInfo, "~/get_model_info", self._get_model_info),
            (ResetSession, "~/reset_session", self._reset_session),
        ):
            node.create_service(interface, name, callback, callback_group=group)

    async def _count_tokens(
        self, request: CountTokens.Request, response: CountTokens.Response
    ) -> CountTokens.Response:
        host = self._host()
        if host is None or host.info is None:
            response.message = NOT_LOADED
            return response
        try:
            messages, raw_prompt = conversation(
                request.messages, request.prompt, self._settings["system_prompt"]
            )
            counted = await result_of(
                host.count_tokens(messages, raw_prompt, ANSWER_TIMEOUT_S), self._node.executor
            )
        except GemmaMtpError as error:
            response.message = str(error)
            return response
        except Exception as error:  # the client waits for an answer
            self._node.get_logger().error(f"count_tokens failed: {error!r}")
            response.message = f"the tokens could not be counted: {error!r}"
            return response
        response.success = counted.success
        response.message = counted.message
        response.tokens = counted.tokens
        response.max_context = counted.max_context
        return response

    def _get_model_info(
        self, _request: GetModelInfo.Request, response: GetModelInfo.Response
    ) -> GetModelInfo.Response:
        host = self._host()
        info = host.info if host is not None else None
        if info is None:
            response.message = NOT_LOADED
            return response
        response.success = True
        response.model = info.model
        response.drafter = info.drafter
        response.precision = info.precision
        response.revision = info.revision
        response.context = info.context
        response.vocabulary = info.vocabulary
        response.bytes = info.bytes
        return response

    async def _reset_session(
        self, request: ResetSession.Request, response: ResetSession.Response
    ) -> ResetSession.Response:
        host = self._host()
        if host is None or host.info is None:
            return response
        try:
            answer = await result_of(
                host.reset_session(request.session_id, ANSWER_TIMEOUT_S), self._node.executor
            )
        except Exception as error:  # the client waits for an answer
            self._node.get_logger().error(f"reset_session failed: {error!r}")
            return response
        if not answer.success:
            self._node.get_logger().warning(
                f"session {request.session_id!r} was not reset: {answer.message}"
            )
        response.found = answer.found
        return response
