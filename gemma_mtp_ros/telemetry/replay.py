# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A recorded trace as a source of readings."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterator

from .reading import Reading, unknown
from .trace import TraceReader, check

_log = logging.getLogger(__name__)


class ReplaySource:
    """Plays a trace against the clock, from the first `read` on.

    speed: 1 is the pace of the recording. loop: begins again at the end; else the readings know
    nothing after it. A reading is as old as it was: where the recording has a gap, the reading
    before it ages, and the watchdog takes it for stale.

    Raises:
        TraceError: the file cannot be replayed. It is read through once to know that.
        ValueError: a speed that is not above 0.
    """

    name = "replay"

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        speed: float = 1.0,
        loop: bool = False,
    ) -> None:
        if not (math.isfinite(speed) and speed > 0):
            raise ValueError(f"replay speed {speed!r} is not above 0; 1 is as it was recorded.")
        self.summary = check(path)
        if self.summary.cut:
            _log.warning("%s breaks off: its last line is skipped", os.fspath(path))
        self._path = os.fspath(path)
        self._clock = clock
        self._speed = speed
        self._loop = loop
        self._span_s = self.summary.duration_s + self.summary.header.period_s
        self._begun_s: float | None = None
        self._lap = 0
        self._reader: TraceReader | None = None
        self._readings: Iterator[Reading] = iter(())
        self._first_s = 0.0
        self._now: Reading | None = None
        self._next: Reading | None = None

    def read(self) -> Reading:
        """What was read at this time of the recording.

        Raises:
            TraceError: the file was changed since.
        """
        now_s = self._clock()
        if self._begun_s is None:
            self._begun_s = now_s
        at_s = max(now_s - self._begun_s, 0.0) * self._speed
        lap = int(at_s // self._span_s)
        if lap and not self._loop:
            count = self.summary.count
            note = f"The trace {self._path} has ended after {count} readings."
            return unknown(now_s, self.name, note, self.summary.header.board)
        if self._reader is None or lap != self._lap:
            self._rewind(lap)
        at_s -= lap * self._span_s
        while self._next is not None and self._next.stamp_s - self._first_s <= at_s:
            self._now, self._next = self._next, next(self._readings, None)
        assert self._now is not None  # the first reading is at 0
        age_s = max(at_s - (self._now.stamp_s - self._first_s), 0.0) / self._speed
        return dataclasses.replace(
            self._now, stamp_s=now_s - age_s, wall_s=time.time() - age_s, source=self.name
        )

    def close(self) -> None:
        """Close the file; a later reading goes on by the clock."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _rewind(self, lap: int) -> None:
        self.close()
        self._lap = lap
        self._reader = TraceReader(self._path)
        self._readings = iter(self._reader)
        self._now = self._next = next(self._readings, None)
        self._first_s = 0.0 if self._next is None else self._next.stamp_s
