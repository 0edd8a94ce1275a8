# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The requests that a host has taken and not yet ended.

One rule stands above all: each request that was submitted gets exactly one Finish, as its last
event, whatever client, engine and clock do at the same time. Every method takes the lock once, and
decides under it; what a request is to be told is put in line and told later, outside the lock, by
the one thread that calls :meth:`Backlog.deliver`.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from .api import (
    Cancel,
    Channel,
    ErrorCode,
    Finish,
    FinishReason,
    Generate,
    Piece,
    Queued,
    Request,
    Started,
    Stats,
)
from .framing import FrameError, encode
from .scheduling import Before, BusyPolicy, admit, preempted

Event = Queued | Started | Piece | Finish
Sink = Callable[[Event], None]
"""Is told of each event of one request; must be quick. Finish comes exactly once, and last."""

_log = logging.getLogger(__name__)


class UnexpectedAnswer(Exception):
    """The engine spoke of a request that it does not hold."""


@dataclasses.dataclass(eq=False)
class _Entry:
    request: Request
    frame: bytes
    sink: Sink
    told: Queued | None = None
    sent_s: float | None = None
    started: Started | None = None
    first_token_s: float | None = None
    latest: Piece | None = None
    text: dict[Channel, list[str]] = dataclasses.field(
        default_factory=lambda: {channel: [] for channel in Channel}
    )
    end: Cancel | None = None
    end_sent: bool = False
    resent: bool = False

    @property
    def arrived_s(self) -> float:
        """CLOCK_MONOTONIC time from which the statistics count."""
        assert self.request.submitted_s is not None
        return self.request.submitted_s

    def stats(self) -> Stats:
        """What is known of the cost of a request that the engine did not end itself."""
        now = time.monotonic()
        began, latest, first_s = self.started, self.latest, self.first_token_s
        return Stats(
            prompt_tokens=began.prompt_tokens if began else 0,
            cached_tokens=began.cached_tokens if began else 0,
            completion_tokens=latest.completion_tokens if latest else 0,
            tokens_per_second=latest.tokens_per_second if latest else 0.0,
            queue_s=(now if self.sent_s is None else self.sent_s) - self.arrived_s,
            ttft_s=0.0 if first_s is None else first_s - self.arrived_s,
            total_s=now - self.arrived_s,
        )


class Backlog:
    """A bounded queue in front of one engine that serves one request at a time.

    Higher priority goes first, among equals the earlier one. What a new request does to those
    before it is the rule of :func:`gemma_mtp_ros.scheduling.admit`; one that takes the place of the
    running one waits until the engine has ended that.
    """

    def __init__(
        self,
        queue_size: int,
        changed: Callable[[], None],
        policy: BusyPolicy = BusyPolicy.QUEUE,
    ) -> None:
        """Begin closed. ``changed`` is called, outside the lock, when the engine's thread has to
        look: it must not block.
        """
        self._lock = threading.Lock()
        self._changed = changed
        self._queue_size = queue_size
        self._policy = policy
        self._ready = False
        self._refusal: tuple[ErrorCode, str] | None = (
            ErrorCode.NOT_ACTIVE,
            "the engine is not running; start it first",
        )
        self._waiting: list[_Entry] = []
        self._running: _Entry | None = None
        self._abandoned: str | None = None
        self._outbox: collections.deque[tuple[Sink, Event]] = collections.deque()

    # Called by any thread.

    def submit(self, request: Request, sink: Sink) -> None:
        """Take ``request``, or tell ``sink`` at once, in this thread, why not."""
        refusal = None
        if request.submitted_s is None:
            request = request.model_copy(update={"submitted_s": time.monotonic()})
        try:
            entry = _Entry(request, encode(Generate(request=request)), sink)
        except FrameError as error:
            refusal = (ErrorCode.INVALID_GOAL, f"the request cannot be sent to the engine: {error}")
        if refusal is None:
            with self._lock:
                refusal = self._why_not(request) or self._make_way(request)
                if refusal is None:
                    bisect.insort(self._waiting, entry, key=lambda each: -each.request.priority)
        if refusal is None:
            self._changed()
        else:
            code, message = refusal
            tell(sink, _finish(request, FinishReason.ERROR, code, message))

    def cancel(self, request_id: str, reason: FinishReason, code: ErrorCode, message: str) -> bool:
        """End a request: at once if it waits, else at the engine's next round. False: not here."""
        with self._lock:
            found = self._cancel([request_id], reason, code, message)
        if found:
            self._changed()
        return bool(found)

    def cancel_all(self, reason: FinishReason, code: ErrorCode, message: str) -> int:
        """End all requests, as :meth:`cancel` does; return how many there were."""
        with self._lock:
            found = self._cancel(self._ids(), reason, code, message)
        if found:
            self._changed()
        return found

    def resize(self, queue_size: int) -> None:
        """Bound the queue anew; those that already wait stay."""
        with self._lock:
            self._queue_size = queue_size

    def set_policy(self, policy: BusyPolicy) -> None:
        """Treat requests by this policy from now on; those that are here stay."""
        with self._lock:
            self._policy = policy

    @property
    def running_id(self) -> str | None:
        """The request that the engine holds, or has yet to end after its client was told."""
        with self._lock:
            return self._abandoned if self._running is None else self._running.request.id

    @property
    def depth(self) -> int:
        """How many requests wait."""
        with self._lock:
            return len(self._waiting)

    # Called by the thread that feeds the engine, or at start and stop.

    def open(self) -> None:
        """Take requests from now on."""
        with self._lock:
            self._refusal = None

    def close(self, code: ErrorCode, message: str) -> None:
        """Refuse requests from now on; end those that wait, and ask the running one to end."""
        with self._lock:
            self._refusal = (code, message)
            self._cancel(self._ids(), FinishReason.ERROR, code, message)
        self._changed()

    def set_ready(self, ready: bool) -> None:
        """Say whether a loaded engine is there."""
        with self._lock:
            self._ready = ready

    def next(self) -> bytes | None:
        """Make the first in the queue the running one; return its frame. None: nothing to do."""
        with self._lock:
            if not self._ready or self._busy or not self._waiting:
                return None
            entry = self._running = self._waiting.pop(0)
            entry.sent_s = time.monotonic()
            return entry.frame

    def next_cancel(self) -> Cancel | None:
        """Return the message that ends the running request; None if it was sent, or none is due."""
        with self._lock:
            entry = self._running
            if entry is None or entry.end is None or entry.end_sent:
                return None
            entry.end_sent = True
            return entry.end

    def overdue(self, now_s: float) -> str | None:
        """Return the request that the engine should have ended by now: late, or told to end."""
        with self._lock:
            if self._abandoned is not None:
                return self._abandoned
            entry = self._running
            if entry is None or (entry.end is None and _deadline(entry) > now_s):
                return None
            return entry.request.id

    def abandon(self) -> None:
        """End the overdue request with its own reason and the text so far.

        The engine did not, so it stays busy until it ends the request too, or is lost; what it
        still says of it is dropped.
        """
        with self._lock:
            entry = self._running
            if entry is not None:
                self._running, self._abandoned = None, entry.request.id
                self._end_for_its_reason(entry)

    def started(self, event: Started) -> None:
        """The engine began."""
        with self._lock:
            if event.request_id == self._abandoned:
                return
            entry = self._held(event.request_id)
            entry.started, entry.frame = event, b""
            self._outbox.append((entry.sink, event))

    def piece(self, event: Piece) -> None:
        """The engine decided one more piece."""
        with self._lock:
            if event.request_id == self._abandoned:
                return
            entry = self._held(event.request_id)
            entry.latest = event
            entry.text[event.channel].append(event.text)
            if entry.first_token_s is None and event.token_ids:
                entry.first_token_s = time.monotonic()
            self._outbox.append((entry.sink, event))

    def finish(self, event: Finish) -> None:
        """The engine ended the running request."""
        with self._lock:
            if event.request_id == self._abandoned:
                self._abandoned = None
                return
            entry = self._held(event.request_id)
            self._running = None
            self._outbox.append((entry.sink, event))

    def lost(self, code: ErrorCode, message: str) -> None:
        """The engine is gone: end the running request with what it said so far.

        One that the engine had not begun goes back to the head of the queue, once: it may be what
        the engine died of.
        """
        with self._lock:
            entry, self._running, self._abandoned = self._running, None, None
            self._ready = False
            if entry is None:
                return
            if entry.end is not None or _deadline(entry) <= time.monotonic():
                self._end_for_its_reason(entry)
            elif entry.started is None and entry.latest is None and not entry.resent:
                entry.resent, entry.sent_s = True, None
                self._waiting.insert(0, entry)
            else:
                self._end(entry, FinishReason.ERROR, code, message)

    def expire(self, now_s: float) -> None:
        """End those in the queue whose deadline has passed."""
        with self._lock:
            late = [each for each in self._waiting if _deadline(each) <= now_s]
            self._waiting = [each for each in self._waiting if _deadline(each) > now_s]
            for entry in late:
                waited = f"{now_s - entry.arrived_s:.3g} s in the queue"
                if self._ready:
                    remedy = "allow more time or send fewer goals at once"
                else:
                    waited += ", while the engine was coming up"
                    remedy = "allow more time or send it again once the engine is ready"
                self._end(
                    entry,
                    FinishReason.TIMEOUT,
                    ErrorCode.TIMEOUT,
                    f"the goal's timeout passed after {waited}; {remedy}",
                )

    def next_deadline(self) -> float:
        """When :meth:`expire` has to be called next (CLOCK_MONOTONIC); infinity: never."""
        with self._lock:
            return min(map(_deadline, self._waiting), default=float("inf"))

    def announce(self) -> None:
        """Tell those in the queue where they stand, where that has changed."""
        with self._lock:
            before = 1 if self._busy else 0
            for position, entry in enumerate(self._waiting, before):
                event = Queued(
                    request_id=entry.request.id, position=position, loading=not self._ready
                )
                if entry.told != event:
                    entry.told = event
                    self._outbox.append((entry.sink, event))

    def deliver(self) -> None:
        """Call the sinks with all that is in line for them."""
        while True:
            with self._lock:
                if not self._outbox:
                    return
                sink, event = self._outbox.popleft()
            tell(sink, event)

    # Called under the lock.

    @property
    def _busy(self) -> bool:
        """Whether the engine has yet to end a request."""
        return self._running is not None or self._abandoned is not None

    def _ids(self) -> list[str]:
        entries = self._waiting if self._running is None else [self._running, *self._waiting]
        return [entry.request.id for entry in entries]

    def _why_not(self, request: Request) -> tuple[ErrorCode, str] | None:
        if self._refusal is not None:
            return self._refusal
        if request.id in self._ids():
            return (
                ErrorCode.INVALID_GOAL,
                f"a request with the id {request.id!r} is not yet ended; give each its own",
            )
        return None

    def _make_way(self, request: Request) -> tuple[ErrorCode, str] | None:
        """End those whose place the request takes; or return why there is none for it."""
        entry, new = self._running, request.priority
        stays = entry if entry is not None and entry.end is None else None
        before = Before(
            running=None if stays is None else stays.request.priority,
            waiting=[each.request.priority for each in self._waiting],
            ready=self._ready,
        )
        admission = admit(self._policy, self._queue_size, new, before)
        if admission.refusal:
            return ErrorCode.QUEUE_FULL, admission.refusal
        displaced = [self._waiting[place] for place in admission.end_waiting]
        if admission.end_running and stays is not None:
            displaced.append(stays)
        for each in displaced:
            message = preempted(self._policy, each.request.priority, new)
            self._cancel([each.request.id], FinishReason.PREEMPTED, ErrorCode.PREEMPTED, message)
        return None

    def _cancel(self, ids: list[str], reason: FinishReason, code: ErrorCode, message: str) -> int:
        found = 0
        entry = self._running
        if entry is not None and entry.request.id in ids:
            found += 1
            if entry.end is None:
                entry.end = Cancel(
                    request_id=entry.request.id,
                    finish_reason=reason,
                    error_code=code,
                    error_msg=message,
                )
        for entry in [each for each in self._waiting if each.request.id in ids]:
            found += 1
            self._waiting.remove(entry)
            self._end(entry, reason, code, message)
        return found

    def _end(self, entry: _Entry, reason: FinishReason, code: ErrorCode, message: str) -> None:
        """Put the Finish in line of an entry that was just taken out of the backlog."""
        finish = _finish(entry.request, reason, code, message).model_copy(
            update={
                "text": "".join(entry.text[Channel.TEXT]),
                "reasoning": "".join(entry.text[Channel.REASONING]),
                "stats": entry.stats(),
                "seed": _seed(entry),
            }
        )
        self._outbox.append((entry.sink, finish))

    def _end_for_its_reason(self, entry: _Entry) -> None:
        """End an entry that was told to end, or is late."""
        end = entry.end
        if end is not None:
            self._end(entry, end.finish_reason, end.error_code, end.error_msg)
        else:
            self._end(
                entry,
                FinishReason.TIMEOUT,
                ErrorCode.TIMEOUT,
                "the goal's timeout passed while it ran; allow more time or ask for fewer tokens",
            )

    def _held(self, request_id: str) -> _Entry:
        entry = self._running
        if entry is None or entry.request.id != request_id:
            holds = "none" if entry is None else repr(entry.request.id)
            raise UnexpectedAnswer(f"it answered for request {request_id!r} and holds {holds}")
        return entry


def tell(sink: Callable[..., object], *arguments: object) -> None:
    """Call what a user of the host gave; an exception of theirs is logged and stops nothing."""
    try:
        sink(*arguments)
    except Exception:
        _log.exception("a callback given to the engine's host failed")


def _deadline(entry: _Entry) -> float:
    deadline = entry.request.deadline_s
    return float("inf") if deadline is None else deadline


def _seed(entry: _Entry) -> int:
    if entry.started is not None:
        return entry.started.seed
    return entry.request.sampling.seed or 0


def _finish(request: Request, reason: FinishReason, code: ErrorCode, message: str) -> Finish:
    return Finish(
        request_id=request.id,
        finish_reason=reason,
        error_code=code,
        error_msg=message,
        seed=request.sampling.seed or 0,
    )
