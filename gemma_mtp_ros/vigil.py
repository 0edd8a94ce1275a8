# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""When an engine process counts as lost, and whether a new one is started."""

from __future__ import annotations

import collections
import contextlib
import os
import threading

POLL_S = 0.5
"""Longest time between two looks at the engine's heartbeat."""
END_GRACE_S = 1.5
"""How long the engine may take to end a goal that it has to, before the host ends it itself.

A round, and a prefill chunk on a slow board, take less; so this is for an engine that hangs."""
MAX_BACKOFF_S = 5.0


class PatientClock:
    """Time that passed while somebody was looking.

    Between two looks it advances by ``max_step_s`` at most. So when the host itself was starved or
    stopped for a while, that does not count against the engine, which may have been so as well.
    """

    def __init__(self, max_step_s: float) -> None:
        self._max_step_s = max_step_s
        self._looked_s: float | None = None
        self.seen_s = 0.0

    def look(self, now_s: float) -> float:
        """Return the time seen so far; ``now_s`` is CLOCK_MONOTONIC."""
        if self._looked_s is not None:
            self.seen_s += min(now_s - self._looked_s, self._max_step_s)
        self._looked_s = now_s
        return self.seen_s


class Vigil:
    """Watches over one engine process: its heartbeat, and that it ends what it has to end.

    All times are those of a :class:`PatientClock`.
    """

    def __init__(self, load_timeout_s: float, stall_timeout_s: float) -> None:
        self._load_timeout_s = load_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self.poll_s = min(POLL_S, stall_timeout_s / 4, load_timeout_s / 4)
        self._clock = PatientClock(2 * self.poll_s)
        self._beats = 0
        self._beat_s = 0.0
        self._overdue: str | None = None
        self._overdue_s = 0.0
        self._end_grace_s = min(END_GRACE_S, stall_timeout_s / 2)
        self.loading = True

    def began(self, now_s: float) -> None:
        """A process was started."""
        self._beats, self._beat_s = 0, self._clock.look(now_s)
        self._overdue = None
        self.loading = True

    def loaded(self) -> None:
        """It is ready: from now on the shorter time-out counts."""
        self._beat_s = self._clock.seen_s
        self.loading = False

    def look(self, now_s: float, beats: int, overdue: str | None) -> str | None:
        """Return why the process has to be killed; None: it is well.

        Args:
            now_s: CLOCK_MONOTONIC.
            beats: its heartbeat, a counter.
            overdue: the request that it should have ended by now, if any.
        """
        seen_s = self._clock.look(now_s)
        if beats != self._beats:
            self._beats, self._beat_s = beats, seen_s
        if overdue != self._overdue:
            self._overdue, self._overdue_s = overdue, seen_s
        name = "load_timeout_s" if self.loading else "stall_timeout_s"
        limit_s = self._load_timeout_s if self.loading else self._stall_timeout_s
        silent_s = seen_s - self._beat_s
        if silent_s > limit_s:
            return f"showed no sign of life for {silent_s:.3g} s (engine.{name} is {limit_s:g})"
        if overdue is not None and seen_s - self._overdue_s > self._stall_timeout_s:
            limit_s = self._stall_timeout_s
            return f"did not end a goal {limit_s:g} s after it had to (engine.stall_timeout_s)"
        return None

    @property
    def end_due(self) -> bool:
        """Whether the goal that is overdue has to be ended without the engine."""
        if self._overdue is None:
            return False
        return self._clock.seen_s - self._overdue_s >= self._end_grace_s


class Restarts:
    """How often an engine may be replaced: ``limit`` times within ``window_s``."""

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._losses_s: collections.deque[float] = collections.deque()

    def lost(self, now_s: float) -> float | None:
        """Take note of a loss; return how long to wait before the restart. None: give up."""
        while self._losses_s and now_s - self._losses_s[0] > self._window_s:
            self._losses_s.popleft()
        self._losses_s.append(now_s)
        losses = len(self._losses_s)
        return None if losses > self._limit else backoff_s(losses)


def backoff_s(restarts: int) -> float:
    """Wait before the n-th restart within the window: none, then 0.5 s, doubled each time."""
    return 0.0 if restarts <= 1 else min(0.5 * 2.0 ** (restarts - 2), MAX_BACKOFF_S)


class Bell:
    """Wakes a selector from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Wake the selector; never blocks, and does nothing once closed."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        """Take note."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        with self._lock:
            os.close(self.fd)
            self.fd = -1
