# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The action ~/generate and the topic ~/tokens.

Threads. The executor's thread accepts a goal, hands it to the host and awaits a future. The host's
thread calls :meth:`ActiveGoal.on_event` for every round and publishes from there: rclpy's publish
is thread-safe, and going through the executor would cost one rebuilt wait set per token (measured:
docs/benchmarks.md). Only the end of a goal wakes the executor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.callback_groups import CallbackGroup
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.task import Future

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import (
    Channel,
    ErrorCode,
    Finish,
    FinishReason,
    Piece,
    Queued,
    Request,
    RequestError,
    Started,
)
from gemma_mtp_ros.host import EngineHost
from gemma_mtp_ros.msg import TokenChunk
from gemma_mtp_ros.ros import qos
from gemma_mtp_ros.ros.convert import (
    Outcome,
    outcome,
    request_from_goal,
    result_from_finish,
    set_stamp,
    without_nul,
)
from gemma_mtp_ros.ros.meter import Meter
from gemma_mtp_ros.ros.settings import Settings

RESULT_TIMEOUT_S = 120
"""How long a result is kept for its client after the goal ended."""

Feedback = Generate.Feedback


class ActiveGoal:
    """One goal from acceptance to its terminal state; publishes its chunks and its feedback."""

    def __init__(self, server: GenerateServer, handle: Any, future: Future) -> None:
        self.handle = handle
        self.future = future
        self.id = bytes(handle.goal_id.uuid).hex()
        self.accepted_s = time.monotonic()
        self.begun_s: float | None = None
        """When the engine took it (CLOCK_MONOTONIC)."""
        self._host: EngineHost | None = None
        self._cancel_wanted = False
        self._server = server
        self._lock = threading.Lock()
        self._chunk = TokenChunk(goal_id=handle.goal_id)
        self._feedback = Feedback()
        self._text: list[str] = []
        self._ended = False

    def on_event(self, event: Started | Piece | Finish | Queued) -> None:
        """Take what the host says of this goal; after its Finish nothing more is taken."""
        with self._lock:
            if self._ended:
                return
            try:
                self._take(event)
            except Exception as error:  # the host's thread serves other goals too
                self._server.log_error(f"goal {self.id}: publishing failed: {error!r}")
            if isinstance(event, Finish):
                self._ended = True
                self.future.set_result(event)
                self._server.wake()

    def submit(self, host: EngineHost, request: Request) -> None:
        """Hand the goal to the host."""
        self._host = host
        host.submit(request, self.on_event)
        if self._cancel_wanted:
            host.cancel(self.id)

    def cancel(self) -> None:
        """End the goal as its client wishes, wherever it is."""
        self._cancel_wanted = True
        if self._host is not None:
            self._host.cancel(self.id)

    def fail(self, error_code: ErrorCode, error_msg: str, reason: FinishReason) -> None:
        """End a goal that the host has not seen."""
        self.on_event(
            Finish(
                request_id=self.id,
                finish_reason=reason,
                error_code=error_code,
                error_msg=error_msg,
            )
        )

    def feedback(self, state: int, piece: Piece | None = None) -> None:
        """Publish feedback: the state, and what the latest round brought."""
        message = self._feedback
        message.state = state
        said = piece.text if piece is not None and piece.channel is Channel.TEXT else ""
        message.text_delta = without_nul(said)
        if piece is not None:
            message.completion_tokens = piece.completion_tokens
            message.tokens_per_second = piece.tokens_per_second
            message.draft_length = piece.draft_length
        self.handle.publish_feedback(message)

    def _take(self, event: Started | Piece | Finish | Queued) -> None:
        if isinstance(event, Piece):
            self._publish(event.text, event.channel, event.token_ids, decided_s=event.decided_s)
            self.feedback(Feedback.STATE_DECODING, event)
            self._server.meter.piece(event)
        elif isinstance(event, Finish):
            self._publish_end(event)
        elif isinstance(event, Started):
            self.begun_s = time.monotonic()
            self._server.meter.started(self.id, self.accepted_s)
            self.feedback(Feedback.STATE_PREFILL)
        else:
            self.feedback(Feedback.STATE_LOADING if event.loading else Feedback.STATE_QUEUED)

    def _publish(
        self,
        text: str,
        channel: Channel = Channel.TEXT,
        token_ids: tuple[int, ...] = (),
        finish_reason: FinishReason | None = None,
        decided_s: float = 0.0,
    ) -> None:
        chunk = self._chunk
        chunk.text = without_nul(text)
        chunk.channel = int(channel)
        chunk.token_ids = token_ids
        if finish_reason is not None:
            chunk.done = True
            chunk.finish_reason = int(finish_reason)
        self._server.publish(chunk, decided_s)
        chunk.seq += 1
        if channel == Channel.TEXT:
            self._text.append(text)

    def _publish_end(self, finish: Finish) -> None:
        """The last chunk: what of the result's text no round has brought, and why it ended."""
        said = "".join(self._text)
        if not finish.text.startswith(said):
            self._server.log_error(
                f"goal {self.id}: the chunks say {said[-40:]!r} where the result says "
                f"{finish.text[-40:]!r}; the result counts"
            )
        self._publish(finish.text[len(said) :], finish_reason=finish.finish_reason)


class GenerateServer:
    """Takes goals while a host is given to it (:meth:`open`), rejects them else.

    `halted` gives a sentence while the board is too hot for a new goal, else nothing; `energy` the
    joules that the board drew between two moments of CLOCK_MONOTONIC, where known; `on_end` is
    called on the executor's thread after each goal.
    """

    def __init__(
        self,
        node: Node,
        settings: Settings,
        group: CallbackGroup,
        meter: Meter,
        halted: Callable[[], str],
        energy: Callable[[float, float], float | None],
        on_end: Callable[[], None],
    ) -> None:
        self.meter = meter
        self._node = node
        self._settings = settings
        self._halted = halted
        self._energy = energy
        self._on_end = on_end
        self._gate = threading.Lock()
        self._host: EngineHost | None = None
        self._model = ""
        self._goals: dict[bytes, ActiveGoal] = {}
        self._idle = threading.Condition()
        self._clock = node.get_clock()
        self._tokens = node.create_publisher(
            TokenChunk, "~/tokens", qos.TOKENS, callback_group=group
        )
        self._server = ActionServer(
            node,
            Generate,
            "~/generate",
            self._execute,
            callback_group=group,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=self._on_cancel,
            goal_service_qos_profile=qos.SERVICE,
            cancel_service_qos_profile=qos.SERVICE,
            result_service_qos_profile=qos.SERVICE,
            feedback_pub_qos_profile=qos.FEEDBACK,
            result_timeout=RESULT_TIMEOUT_S,
        )

    def open(self, host: EngineHost) -> None:
        """Take goals from now on."""
        with self._gate:
            self._host = host
            self._model = host.info.model if host.info is not None else ""

    def close(self) -> None:
        """Take no more goals; those accepted and not yet handed to the host end NOT_ACTIVE."""
        with self._gate:
            self._host = None

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until every accepted goal has its terminal state; False if one has not in time."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._goals, timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until the readers of ~/tokens have acknowledged what was published."""
        self._tokens.wait_for_all_acked(Duration(seconds=timeout_s))

    def destroy(self) -> None:
        """To be called before the node is destroyed, while nothing spins."""
        self._server.destroy()

    def publish(self, chunk: TokenChunk, decided_s: float = 0.0) -> None:
        """Publish one chunk, stamped with `decided_s` (CLOCK_MONOTONIC) as ROS time; 0: now."""
        set_stamp(chunk.header.stamp, self._clock, decided_s or time.monotonic())
        self._tokens.publish(chunk)

    def wake(self) -> None:
        """Let the executor resume who awaits a future that was just completed."""
        executor = self._node.executor
        if executor is not None:
            executor.wake()

    def log_error(self, text: str) -> None:
        """Log from any thread."""
        self._node.get_logger().error(text)

    def _on_goal(self, _goal: Generate.Goal) -> GoalResponse:
        if self._host is not None:
            return GoalResponse.ACCEPT
        self._node.get_logger().warning(
            "a goal was rejected because the node is not active: wait while it loads, or configure "
            "and activate it"
        )
        return GoalResponse.REJECT

    def _on_accepted(self, handle: Any) -> None:
        goal = ActiveGoal(self, handle, Future(executor=self._node.executor))
        with self._idle:
            self._goals[bytes(handle.goal_id.uuid)] = goal
        handle.execute()
        try:
            self._begin(goal)
        except Exception as error:  # the goal must end all the same
            self.log_error(f"goal {goal.id}: {error!r}")
            goal.fail(
                ErrorCode.UNKNOWN,
                f"the node failed to serve the goal: {error!r}",
                FinishReason.ERROR,
            )

    def _on_cancel(self, handle: Any) -> CancelResponse:
        goal = self._goals.get(bytes(handle.goal_id.uuid))
        if goal is not None:
            goal.cancel()
        return CancelResponse.ACCEPT

    async def _execute(self, handle: Any) -> Generate.Result:
        key = bytes(handle.goal_id.uuid)
        goal = self._goals[key]
        try:
            return self._end(goal, self._with_energy(goal, await goal.future))
        finally:
            with self._idle:
                del self._goals[key]
                self._idle.notify_all()

    def _begin(self, goal: ActiveGoal) -> None:
        """Check the goal and hand it to the host, or end it at once."""
        goal.feedback(Feedback.STATE_QUEUED)
        try:
            request = request_from_goal(
                goal.handle.request, goal.id, self._settings.values, goal.accepted_s
            )
        except RequestError as error:
            goal.fail(error.code, str(error), FinishReason.ERROR)
            return
        with self._gate:
            halted = self._halted()
            if self._host is None:
                goal.fail(
                    ErrorCode.NOT_ACTIVE,
                    "the node left the active state; activate it and send the goal again",
                    FinishReason.ERROR,
                )
            elif halted:
                goal.fail(ErrorCode.THERMAL_LIMIT, halted, FinishReason.THERMAL)
            else:
                goal.submit(self._host, request)

    def _with_energy(self, goal: ActiveGoal, finish: Finish) -> Finish:
        if goal.begun_s is None:
            return finish
        energy_j = self._energy(goal.begun_s, time.monotonic())
        stats = finish.stats.model_copy(update={"energy_j": energy_j})
        return finish.model_copy(update={"stats": stats})

    def _end(self, goal: ActiveGoal, finish: Finish) -> Generate.Result:
        """Set the terminal state and make the result."""
        handle = goal.handle
        ended = outcome(finish, handle.is_cancel_requested)
        if ended is Outcome.SUCCEEDED:
            handle.succeed()
        elif ended is Outcome.CANCELED:
            handle.canceled()
        else:
            handle.abort()
        self.meter.finished(finish, ended)
        result = result_from_finish(finish, self._model)
        try:
            self._on_end()
        except Exception as error:  # the result must not be lost to a statistics message
            self.log_error(f"publishing statistics failed: {error!r}")
        return result
