# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Takes goals to the node and brings answers back: the side of a client that touches ROS.

All of it happens in one mutually exclusive callback group, whoever calls: a request from another
thread is put into a queue that a guard condition empties. rclpy's ActionClient notes a request
only after sending it, so elsewhere an answer that is faster is lost.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from action_msgs.msg import GoalStatus
from rclpy.action import ActionClient
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidHandle
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from unique_identifier_msgs.msg import UUID

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.msg import EngineStats, TokenChunk
from gemma_mtp_ros.ros import qos
from gemma_mtp_ros.ros.answer import Answer
from gemma_mtp_ros.ros.client_errors import (
    ClientError,
    GoalRejectedError,
    NodeLostError,
    NotSpunError,
    ServerUnavailableError,
)
from gemma_mtp_ros.ros.client_messages import result_of

FIND_S = 0.05
"""How often an unsent goal looks for its server."""
WATCH_S = 1.0
"""How often the node is looked after while goals run; it speaks on ~/stats as often."""
ANSWER_S = 10.0
"""Longest time until the node answers a goal, and until a canceled goal has ended."""
SPIN_S = 10.0
"""A node whose callbacks have not run for so long is not spun."""
LAST_CHUNK_WATCHES = 2
"""Looks after the result for which the last chunk is awaited."""


@dataclasses.dataclass(eq=False)
class _Open:
    """A goal that was asked for and has not ended."""

    answer: Answer
    asked_s: float
    writers: frozenset[bytes] = frozenset()
    """Of ~/tokens when it was sent; empty: it was not."""
    handle: Any = None
    cancel_wanted: bool = False
    watches: int = 0
    """Looks since it was sent, accepted, canceled or answered, whichever was last."""


class Courier:
    """See the module; `own_node`: nobody but the client spins the node."""

    def __init__(
        self, node: Node, name: str, server_timeout_s: float, silence_s: float, own_node: bool
    ) -> None:
        self.node = node
        self._name = name
        self._server_timeout_s = server_timeout_s
        self._silence_s = silence_s
        self._own_node = own_node
        self._open: dict[bytes, _Open] = {}
        self._unsent: collections.deque[_Open] = collections.deque()
        self._requests: collections.deque[Callable[[], None]] = collections.deque()
        self._heard = False
        """Whether ~/stats came from the node that is there now."""
        self._silent = 0
        """Looks since anything came from the node."""
        self._closed = False
        self._executor_thread: int | None = None
        self._spun_s = time.monotonic()
        self._group = MutuallyExclusiveCallbackGroup()
        # The node learns of readers in the order in which they are made. So once it sends ~/stats
        # here, whose last message every new reader gets, it knows the reader of ~/tokens.
        self._tokens = node.create_subscription(
            TokenChunk, f"{name}/tokens", self._on_chunk, qos.TOKENS, callback_group=self._group
        )
        self._stats = node.create_subscription(
            EngineStats, f"{name}/stats", self._on_stats, qos.STATE, callback_group=self._group
        )
        self._action = ActionClient(
            node,
            Generate,
            f"{name}/generate",
            callback_group=self._group,
            goal_service_qos_profile=qos.SERVICE,
            result_service_qos_profile=qos.SERVICE,
            cancel_service_qos_profile=qos.SERVICE,
            feedback_sub_qos_profile=qos.FEEDBACK,
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._find_timer = node.create_timer(FIND_S, self._find, self._group, steady)
        self._watch_timer = node.create_timer(WATCH_S, self._watch, self._group, steady)
        self._find_timer.cancel()
        self._watch_timer.cancel()
        self._guard = node.create_guard_condition(self._serve, self._group)

    # From any thread.

    def begin(self, answer: Answer) -> None:
        """Take a goal to the node."""
        entry = _Open(answer, time.monotonic())
        if not self._open:
            self._spun_s = time.monotonic()  # no callback was needed until now
        self._open[answer.goal_id.bytes] = entry
        self._post(lambda: self._begin(entry))
        if self._closed:
            self._fail(entry, ClientError("the client is closed; make a new one"))

    def cancel(self, answer: Answer) -> None:
        """Ask the node to end a goal."""
        self._post(lambda: self._cancel_now(answer))

    def open_answers(self) -> list[Answer]:
        """Those whose goals have not ended."""
        return [entry.answer for entry in list(self._open.values())]

    def close(self) -> None:
        """Take no more goals, and await none."""
        self._closed = True
        for entry in list(self._open.values()):
            self._fail(entry, ClientError("the client was closed before the goal ended"))

    def on_executor(self) -> bool:
        """Whether this is the thread that must run the callbacks that a wait needs."""
        return self._executor_thread == threading.get_ident() and isinstance(
            self.node.executor, SingleThreadedExecutor
        )

    def check_may_block(self) -> None:
        """Raise NotSpunError where blocking would never end."""
        if self.on_executor():
            raise NotSpunError(
                "this would block the executor that has to receive the answer; await it in an "
                "async callback, or wait in a thread of its own"
            )

    def check_may_await(self) -> None:
        """Raise NotSpunError where nothing would resume a coroutine of rclpy."""
        if self._own_node:
            raise NotSpunError(
                "to await an answer in a callback, give the callback's node to the client: "
                "GenerateClient(name, node=node)"
            )

    def check_spun(self) -> None:
        """Raise NotSpunError if callbacks do not run; to be called now and then by who waits."""
        if not self.node.context.ok():
            raise NotSpunError("ROS was shut down while the answer was awaited")
        if time.monotonic() - self._spun_s > SPIN_S:
            raise NotSpunError(
                f"no callback of node {self.node.get_fully_qualified_name()} has run for "
                f"{SPIN_S:g} s; spin it (in a callback: await the answer instead of blocking)"
            )

    def leave(self, destroyed: threading.Event) -> None:
        """Destroy everything while the node is spun.

        The action client in two steps: an executor of several threads may be about to wait for it.
        """

        def finish() -> None:
            self.destroy()
            destroyed.set()

        def begin() -> None:
            self.node.remove_waitable(self._action)
            self._post(finish)

        self._post(begin)

    def destroy(self) -> None:
        """Destroy everything; for a node that is not spun, or in the callback group."""
        with contextlib.suppress(ValueError):  # it was removed from the node before
            self._action.destroy()
        for timer in (self._find_timer, self._watch_timer):
            self.node.destroy_timer(timer)
        for subscription in (self._tokens, self._stats):
            self.node.destroy_subscription(subscription)
        self.node.destroy_guard_condition(self._guard)

    def _post(self, request: Callable[[], None]) -> None:
        """Have a request served in the callback group."""
        self._requests.append(request)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(InvalidHandle):  # closed
            self._guard.trigger()

    # In the callback group.

    def _serve(self) -> None:
        self._note_life()
        for _ in range(len(self._requests)):  # what is put in meanwhile has its own turn
            self._requests.popleft()()

    def _note_life(self) -> None:
        self._executor_thread = threading.get_ident()
        self._spun_s = time.monotonic()

    def _begin(self, entry: _Open) -> None:
        if not self._closed:
            self._unsent.append(entry)
            self._find()
            if self._unsent:
                self._find_timer.reset()
            if self._watch_timer.is_canceled():
                self._silent = 0
                self._watch_timer.reset()

    def _find(self) -> None:
        """Send what waits if the node is there; fail what waited too long."""
        self._note_life()
        missing = self._missing() if self._unsent else ""
        now_s = time.monotonic()
        while self._unsent and not missing:
            self._send(self._unsent.popleft())
        while self._unsent and now_s - self._unsent[0].asked_s > self._server_timeout_s:
            self._fail(
                self._unsent.popleft(),
                ServerUnavailableError(
                    f"{missing} was found within {self._server_timeout_s:g} s; is the node "
                    f"running, and in ROS domain {os.environ.get('ROS_DOMAIN_ID', '0')}?"
                ),
            )
        if not self._unsent:
            self._find_timer.cancel()

    def _missing(self) -> str:
        """What of the node is not matched with this client yet; empty: nothing."""
        name = self.node.resolve_topic_name(self._name)
        if not self._action.server_is_ready():
            self._heard = False
            return f"no action server {name}/generate"
        if not self._writers():
            self._heard = False
            return f"no publisher of {name}/tokens"
        return "" if self._heard else f"no message on {name}/stats"

    def _writers(self) -> frozenset[bytes]:
        found = self.node.get_publishers_info_by_topic(self._tokens.topic_name)
        return frozenset(bytes(info.endpoint_gid) for info in found)

    def _send(self, entry: _Open) -> None:
        goal_id = UUID(uuid=list(entry.answer.goal_id.bytes))
        entry.writers = self._writers()
        sent = self._action.send_goal_async(
            entry.answer.goal, entry.answer._on_feedback, goal_uuid=goal_id
        )
        sent.add_done_callback(lambda done: self._post(lambda: self._on_response(entry, done)))

    def _on_response(self, entry: _Open, future: Any) -> None:
        handle = future.result()
        if not handle.accepted:
            self._fail(
                entry,
                GoalRejectedError(
                    f"{self._name} rejected the goal: it takes goals only while it is active; wait "
                    "while it loads, or configure and activate it"
                ),
            )
            return
        entry.handle, entry.watches = handle, 0
        if entry.cancel_wanted or entry.answer._decided():
            handle.cancel_goal_async()
        result = handle.get_result_async()
        result.add_done_callback(lambda done: self._post(lambda: self._on_result(entry, done)))

    def _on_result(self, entry: _Open, future: Any) -> None:
        answer, response = entry.answer, future.result()
        if response.status == GoalStatus.STATUS_UNKNOWN:
            self._lose(entry, "does not know the goal any more (was it started again?)")
            return
        entry.watches = 0
        answer._on_result(result_of(response.result, answer.goal_id.hex))
        if answer._stream_ended:
            self._open.pop(answer.goal_id.bytes, None)

    def _on_chunk(self, chunk: TokenChunk) -> None:
        self._note_life()
        self._silent = 0
        key = bytes(chunk.goal_id.uuid)
        entry = self._open.get(key)
        if entry is not None:
            entry.answer._on_chunk(chunk)
            if entry.answer.done():
                del self._open[key]

    def _on_stats(self, _stats: EngineStats) -> None:
        self._note_life()
        self._silent, self._heard = 0, True

    def _watch(self) -> None:
        """Look after the goals that were sent. Time is counted in looks: where the executor was
        busy, what came meanwhile is still to be read.
        """
        self._note_life()
        self._silent += 1
        writers = self._writers()
        silent = self._silent * WATCH_S > self._silence_s
        for entry in list(self._open.values()):
            if not entry.writers:
                continue
            entry.watches += 1
            if entry.answer._result is not None:
                if entry.watches >= LAST_CHUNK_WATCHES:
                    entry.answer._end_stream()
                    del self._open[entry.answer.goal_id.bytes]
            elif not entry.writers & writers:
                self._lose(entry, "is gone")
            elif silent:
                self._lose(entry, f"has said nothing for {self._silence_s:g} s")
            elif entry.watches * WATCH_S > ANSWER_S and entry.handle is None:
                self._lose(entry, f"did not answer the goal within {ANSWER_S:g} s")
            elif entry.watches * WATCH_S > ANSWER_S and entry.cancel_wanted:
                self._lose(entry, f"did not end the canceled goal within {ANSWER_S:g} s")
        if not self._open:
            self._watch_timer.cancel()

    def _cancel_now(self, answer: Answer) -> None:
        entry = self._open.get(answer.goal_id.bytes)
        if entry is None or answer._decided():
            return
        if not entry.writers:
            self._unsent.remove(entry)
            del self._open[answer.goal_id.bytes]
            answer._end_unsent()
            return
        entry.cancel_wanted, entry.watches = True, 0
        if entry.handle is not None:
            entry.handle.cancel_goal_async()

    def _lose(self, entry: _Open, why: str) -> None:
        self._heard = False
        if entry.handle is not None and not entry.cancel_wanted:
            entry.handle.cancel_goal_async()  # should it only hang
        self._fail(
            entry,
            NodeLostError(
                f"node {self._name} {why}; the goal has no result: send it again when it is up"
            ),
        )

    def _fail(self, entry: _Open, error: ClientError) -> None:
        self._open.pop(entry.answer.goal_id.bytes, None)
        entry.answer._fail(error)
