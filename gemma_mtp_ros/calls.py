# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Questions to the engine that are not goals: each has one answer, through a future."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from .api import Counted, CountTokens, Message, ResetSession, SessionReset, Warm, Warmed
from .framing import FrameError, encode

MAX_OPEN_CALLS = 16

Question = CountTokens | ResetSession | Warm
Answer = Counted | SessionReset | Warmed

_ANSWERS: dict[type[Question], type[Answer]] = {
    CountTokens: Counted,
    ResetSession: SessionReset,
    Warm: Warmed,
}


@dataclasses.dataclass(eq=False)
class _Call:
    message: Question
    frame: bytes
    future: concurrent.futures.Future[Any]
    deadline_s: float
    sent: bool = False

    def answer(self, success: bool, message: str) -> Answer:
        kind = _ANSWERS[type(self.message)]
        return kind(id=self.message.id, success=success, message=message)


class Calls:
    """Open calls of one host. A future is completed outside the lock, and always with an answer:
    ``success`` is False where there was none.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """``changed`` is called when the engine's thread has to look; it must not block."""
        self._lock = threading.Lock()
        self._changed = changed
        self._refusal: str | None = "the engine is not running; start it first"
        self._numbers = itertools.count(1)
        self._open: dict[str, _Call] = {}

    def count_tokens(
        self, messages: tuple[Message, ...], raw_prompt: str | None, timeout_s: float
    ) -> concurrent.futures.Future[Counted]:
        """Ask how many tokens a prompt has."""
        message = CountTokens(
            id=f"count-{next(self._numbers)}", messages=messages, raw_prompt=raw_prompt
        )
        return self._ask(message, time.monotonic() + timeout_s)

    def reset_session(
        self, session_id: str, timeout_s: float
    ) -> concurrent.futures.Future[SessionReset]:
        """Ask the engine to forget a session."""
        message = ResetSession(id=f"reset-{next(self._numbers)}", session_id=session_id)
        return self._ask(message, time.monotonic() + timeout_s)

    def warm(self, system_prompt: str) -> concurrent.futures.Future[Warmed]:
        """Ask the engine to prefill a system prompt."""
        message = Warm(id=f"warm-{next(self._numbers)}", system_prompt=system_prompt)
        return self._ask(message, float("inf"))

    def _ask(self, message: Question, deadline_s: float) -> concurrent.futures.Future[Any]:
        call = _Call(message, b"", concurrent.futures.Future(), deadline_s)
        refusal = None
        try:
            call.frame = encode(message)
        except FrameError as error:
            refusal = f"the text cannot be sent to the engine: {error}"
        with self._lock:
            refusal = refusal or self._refusal
            if refusal is None and len(self._open) >= MAX_OPEN_CALLS:
                refusal = f"{MAX_OPEN_CALLS} calls wait for the engine; ask again later"
            if refusal is None:
                self._open[message.id] = call
        if refusal is None:
            self._changed()
        else:
            _complete(call, call.answer(False, refusal))
        return call.future

    def open(self) -> None:
        """Take calls from now on."""
        with self._lock:
            self._refusal = None

    def close(self, message: str) -> None:
        """Refuse calls from now on, and answer the open ones so."""
        with self._lock:
            self._refusal = message
            ended = list(self._open.values())
            self._open.clear()
        for call in ended:
            _complete(call, call.answer(False, message))

    def next(self, idle: bool) -> bytes | None:
        """Return the frame of a call to send now. A warm-up wants the engine ``idle``."""
        with self._lock:
            for call in self._open.values():
                if not call.sent and (idle or not isinstance(call.message, Warm)):
                    call.sent = True
                    frame, call.frame = call.frame, b""
                    return frame
        return None

    @property
    def warming(self) -> bool:
        """Whether the engine is at a warm-up."""
        with self._lock:
            return any(call.sent and isinstance(call.message, Warm) for call in self._open.values())

    def answered(self, answer: Answer) -> None:
        """The engine answered; an answer that came too late is dropped."""
        with self._lock:
            call = self._open.pop(answer.id, None)
        if call is not None:
            _complete(call, answer)

    def lost(self, message: str) -> None:
        """The engine is gone: answer what was sent to it; the rest waits for the next engine."""
        self._fail(lambda call: call.sent, message)

    def expire(self, now_s: float) -> None:
        """Answer those whose time is over."""
        self._fail(
            lambda call: call.deadline_s <= now_s,
            "the engine did not answer in time; allow more time or ask when it is idle",
        )

    def next_deadline(self) -> float:
        """When :meth:`expire` has to be called next (CLOCK_MONOTONIC); infinity: never."""
        with self._lock:
            return min((call.deadline_s for call in self._open.values()), default=float("inf"))

    def _fail(self, chosen: Callable[[_Call], bool], message: str) -> None:
        with self._lock:
            ended = [call for call in self._open.values() if chosen(call)]
            for call in ended:
                del self._open[call.message.id]
        for call in ended:
            _complete(call, call.answer(False, message))


def _complete(call: _Call, answer: Answer) -> None:
    """Set the answer, unless the asker canceled the future."""
    if call.future.set_running_or_notify_cancel():
        call.future.set_result(answer)
