# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a client raises. Each has `error_code` and `error_msg`, as the action's result has them."""

from __future__ import annotations

from gemma_mtp_ros.api import ErrorCode, GemmaMtpError
from gemma_mtp_ros.ros.client_messages import Result


class ClientError(GemmaMtpError):
    """A goal that brought no whole answer: one sentence with the remedy."""

    @property
    def error_code(self) -> ErrorCode:
        """The code, as in the action's result."""
        return self.code

    @property
    def error_msg(self) -> str:
        """The sentence."""
        return str(self)


class ServerUnavailableError(ClientError):
    """The goal was not sent: no node was found in time."""

    code = ErrorCode.BACKEND_UNAVAILABLE


class GoalRejectedError(ClientError):
    """The node takes no goals: it is not active."""

    code = ErrorCode.NOT_ACTIVE


class NodeLostError(ClientError):
    """The node is gone, hangs or forgot the goal; the answer's text so far is kept there."""

    code = ErrorCode.ENGINE_LOST


class NotSpunError(ClientError):
    """Nothing executes the callbacks of the client's node, so no answer can come."""


class AnswerTimeoutError(ClientError, TimeoutError):
    """The result did not come within the time that the caller gave; the goal still runs."""

    code = ErrorCode.TIMEOUT


class GoalFailedError(ClientError):
    """The goal ended with an error code; `result` holds all of it, the text so far too."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error_msg, result.error_code)
        self.result = result
