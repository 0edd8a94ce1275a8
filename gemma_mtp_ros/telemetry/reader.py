# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A source read on a thread of its own, as a read can hang in a driver for seconds or for ever."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from .reading import Reading
from .sources import Source

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the source gave: a reading, or the exception that it raised, at `at_s`."""

    at_s: float
    reading: Reading | None
    error: Exception | None = None


class SourceReader:
    """Reads `source` when asked to, one reading at a time, on one thread.

    A thread whose read hangs cannot be ended. It is used again as soon as it comes back, and no
    second one is started beside it.
    """

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._changed = threading.Condition()
        self._asked_s: float | None = None  # while a reading is wanted or under way
        self._closing = False
        self._thread: threading.Thread | None = None
        self._answer: Answer | None = None

    @property
    def answer(self) -> Answer | None:
        """The latest."""
        return self._answer

    @property
    def asked_s(self) -> float | None:
        """When the reading under way was asked for; None if there is none."""
        return self._asked_s

    def ask(self) -> None:
        """Begin a reading, unless one is under way."""
        with self._changed:
            self._closing = False
            if self._asked_s is not None:
                return
            self._asked_s = self._clock()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="telemetry reader", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout_s: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no reading is under way, or `give_up` is true at a `nudge`.

        Returns whether none is under way.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._asked_s is None or give_up(), timeout_s)
            return self._asked_s is None

    def nudge(self) -> None:
        """Let `wait` look at its `give_up`."""
        with self._changed:
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Close the source and end the thread; False if a read hangs.

        Both then happen when it comes back, unless `ask` was called before that.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked_s is not None or self._closing)
                closing = self._closing
            if closing:
                self._close_source()
                with self._changed:
                    if self._closing:
                        self._thread = self._asked_s = None
                        self._changed.notify_all()
                        return
            else:
                answer = self._read()
                with self._changed:
                    self._answer, self._asked_s = answer, None
                    self._changed.notify_all()

    def _close_source(self) -> None:
        try:
            self._source.close()
        except Exception:  # the thread has to end, or to go on reading
            _log.exception("closing source %s failed", self._source.name)

    def _read(self) -> Answer:
        try:
            reading = self._source.read()
        except Exception as error:  # whoever asked has to say so
            return Answer(self._clock(), None, error)
        return Answer(self._clock(), reading)
