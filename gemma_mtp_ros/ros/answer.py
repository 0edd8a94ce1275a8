# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""One goal as its client sees it: pieces as they come, then the result.

An Answer is written to on the executor that spins the client's node, and read from anywhere: a
thread (blocking), a coroutine of rclpy's executor, or a coroutine of asyncio.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rclpy.task import Future

from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.api import Channel, ErrorCode, FinishReason
from gemma_mtp_ros.ros.client_errors import AnswerTimeoutError, ClientError, GoalFailedError
from gemma_mtp_ros.ros.client_messages import Result
from gemma_mtp_ros.ros.waiting import complete

if TYPE_CHECKING:
    from gemma_mtp_ros.ros.courier import Courier

LOOK_S = 0.5
"""How often a wait looks whether the node that it needs is still spun."""


class Stage(enum.IntEnum):
    """How far a goal is; the middle ones are the states of the action's feedback."""

    SENDING = 0
    QUEUED = Generate.Feedback.STATE_QUEUED
    LOADING = Generate.Feedback.STATE_LOADING
    PREFILL = Generate.Feedback.STATE_PREFILL
    DECODING = Generate.Feedback.STATE_DECODING
    ENDED = 5


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one round decided, as ``msg/TokenChunk``."""

    seq: int
    channel: Channel
    text: str
    """Whole characters; may be empty."""
    token_ids: tuple[int, ...]
    lost: int = 0
    """How many chunks before this one did not arrive; the result has their text."""


class Answer:
    """The answer to one goal. Made by :meth:`gemma_mtp_ros.ros.client.GenerateClient.ask`.

    Iterating (``for`` or ``async for``) gives the pieces and raises what :meth:`result` raises.
    Leaving a ``with`` or ``async with`` block cancels the goal if it has not ended.
    """

    def __init__(self, courier: Courier, goal: Generate.Goal) -> None:
        self.goal = goal
        self.goal_id = uuid.uuid4()
        self.lost = 0
        """Chunks of the token topic that did not arrive."""
        self._courier = courier
        self._changed = threading.Condition()
        self._stage = Stage.SENDING
        self._waiters: list[Callable[[], None]] = []
        self._on_end: list[Callable[[Answer], None]] = []
        self._pieces: collections.deque[Piece] = collections.deque()
        self._said: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._next_seq = 0
        self._stream_ended = False
        self._result: Result | None = None
        self._error: ClientError | None = None

    # Reading without waiting.

    @property
    def stage(self) -> Stage:
        """How far it is. Feedback may be lost, so a stage may be skipped."""
        return Stage.ENDED if self.done() else self._stage

    @property
    def text(self) -> str:
        """The text that came so far."""
        return "".join(self._said[Channel.TEXT])

    @property
    def reasoning(self) -> str:
        """What the model thought so far."""
        return "".join(self._said[Channel.REASONING])

    def done(self) -> bool:
        """Whether the goal has ended, or is known never to; then nothing here waits any more."""
        with self._changed:
            return self._ended()

    def take(self) -> list[Piece]:
        """The pieces that came since they were last taken; for those who poll."""
        with self._changed:
            taken = list(self._pieces)
            self._pieces.clear()
            return taken

    def add_done_callback(self, callback: Callable[[Answer], None]) -> None:
        """Call it once the goal has ended, on the executor's thread; at once if it has."""
        with self._changed:
            if not self._ended():
                self._on_end.append(callback)
                return
        callback(self)

    def cancel(self) -> None:
        """Ask the node to end the goal; returns at once, from any thread. The result follows."""
        self._courier.cancel(self)

    # Blocking.

    def wait(self, timeout_s: float) -> bool:
        """Wait until there are pieces to take or the goal has ended; False if not in time.

        Raises:
            NotSpunError: nothing executes the callbacks that this waits for.
        """
        return self._wait(lambda: bool(self._pieces) or self._ended(), time.monotonic() + timeout_s)

    def result(self, timeout_s: float | None = None, check: bool = True) -> Result:
        """Wait for the result.

        With `check` False a goal that ended with an error code is returned like any other.

        Raises:
            GoalFailedError: the goal ended with an error code (canceled and timed out are two).
            GoalRejectedError, ServerUnavailableError, NodeLostError: there is no result.
            AnswerTimeoutError: it did not come within `timeout_s`; the goal still runs.
            NotSpunError: nothing executes the callbacks that this waits for.
        """
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._wait(self._decided, give_up_s):
            raise AnswerTimeoutError(
                f"the result did not come within {timeout_s:g} s; the goal still runs: wait "
                "longer, or cancel it"
            )
        return self._outcome(check)

    def __iter__(self) -> Iterator[Piece]:
        while True:
            self._wait(lambda: bool(self._pieces) or self._ended())
            with self._changed:
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
            yield piece
        self._outcome(check=True)

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._decided():
            return
        self.cancel()
        if not self._courier.on_executor():
            with contextlib.suppress(ClientError):
                self._wait(self._decided)

    # In a coroutine.

    async def result_async(self, check: bool = True) -> Result:
        """As :meth:`result`, awaited; in a callback of the node that was given to the client, or
        in asyncio. ``await answer`` is short for it.
        """
        await self._wait_async(self._decided)
        return self._outcome(check)

    def __await__(self) -> Generator[Any, Any, Result]:
        return self.result_async().__await__()

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while True:
            await self._wait_async(lambda: bool(self._pieces) or self._ended())
            with self._changed:
                if not self._pieces:
                    break
                piece = self._pieces.popleft()
            yield piece
        self._outcome(check=True)

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._decided():
            self.cancel()
            with contextlib.suppress(ClientError):
                await self._wait_async(self._decided)

    # Waiting.

    def _ended(self) -> bool:
        return self._error is not None or (self._result is not None and self._stream_ended)

    def _decided(self) -> bool:
        return self._error is not None or self._result is not None

    def _outcome(self, check: bool) -> Result:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        if check and self._result.error_code is not ErrorCode.NONE:
            raise GoalFailedError(self._result)
        return self._result

    def _wait(self, condition: Callable[[], bool], give_up_s: float | None = None) -> bool:
        """Block until the condition is met; False if it was not in time."""
        with self._changed:
            if condition():
                return True
            self._courier.check_may_block()
            while not condition():
                left_s = LOOK_S if give_up_s is None else give_up_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(LOOK_S, left_s))
                if not condition():
                    self._courier.check_spun()
        return True

    async def _wait_async(self, condition: Callable[[], bool]) -> None:
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
            self._courier.check_may_await()
        while True:
            waiting: Any
            if loop is None:
                executor = self._courier.node.executor
                waiting = Future(executor=executor)
                wake = _waker_of_rclpy(waiting, executor)
            else:
                waiting = loop.create_future()
                wake = _waker_of_asyncio(waiting, loop)
            with self._changed:
                if condition():
                    return
                self._waiters.append(wake)
            if loop is None:
                await waiting
            else:
                await asyncio.wait([waiting], timeout=LOOK_S)
                if not condition():
                    self._courier.check_spun()

    # Called by the client, on the executor.

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Change what is known, then wake all who wait."""
        with self._changed:
            yield
            self._changed.notify_all()
            waiters, self._waiters = self._waiters, []
            callbacks: list[Callable[[Answer], None]] = []
            if self._ended():
                callbacks, self._on_end = self._on_end, []
        for wake in waiters:
            wake()
        for callback in callbacks:
            callback(self)

    def _on_chunk(self, chunk: Any) -> None:
        lost = chunk.seq - self._next_seq
        if lost < 0 or self._stream_ended:
            return
        with self._change():
            self.lost += lost
            self._next_seq = chunk.seq + 1
            if chunk.text or chunk.token_ids or lost:
                channel = Channel(chunk.channel)
                self._said[channel].append(chunk.text)
                self._pieces.append(
                    Piece(chunk.seq, channel, chunk.text, tuple(chunk.token_ids), lost)
                )
            self._stream_ended = chunk.done

    def _on_feedback(self, message: Any) -> None:
        self._stage = Stage(message.feedback.state)

    def _on_result(self, result: Result) -> None:
        if not self._decided():
            with self._change():
                self._result = result

    def _end_stream(self) -> None:
        """The last chunk is not coming any more."""
        with self._change():
            self.lost += 1
            self._stream_ended = True

    def _fail(self, error: ClientError) -> None:
        """Nothing will come any more; a result that is there stays."""
        with self._change():
            self._stream_ended = True
            if self._result is None:
                self._error = error

    def _end_unsent(self) -> None:
        """It was canceled before it was sent."""
        with self._change():
            self._stream_ended = True
            self._result = Result(
                request_id=self.goal_id.hex,
                finish_reason=FinishReason.CANCELED,
                error_code=ErrorCode.CANCELED,
                error_msg="the goal was canceled before it was sent",
            )


def _waker_of_rclpy(future: Future, executor: Any) -> Callable[[], None]:
    return lambda: complete(future, True, executor)


def _waker_of_asyncio(
    future: asyncio.Future[bool], loop: asyncio.AbstractEventLoop
) -> Callable[[], None]:
    def set_result() -> None:
        if not future.done():
            future.set_result(True)

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(set_result)

    return wake
