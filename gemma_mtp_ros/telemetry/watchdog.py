# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The polling thread between a source of readings and whoever acts on the decisions."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable

from .policy import Decision, Level, PolicyConfig, PolicyState, step
from .reader import SourceReader
from .reading import Reading, unknown
from .sources import Source

LOG_AGAIN_S = 60.0
"""The same failure is logged again after this long."""

STALE_AFTER_S = 2.0
"""A reading older than this, and than three periods, counts no more."""

_log = logging.getLogger(__name__)


class Watchdog:
    """Reads `source` every `period_s`, decides, and hands both to `publish`, in its own thread.

    `publish` is called at every poll, in mode off too: it stamps the engine's control record, and
    a record that is no longer stamped makes the engine fall to its stale draft cap. That is for a
    watchdog that stopped.

    The source is read on another thread, so that a read that hangs in a driver does not stop the
    watchdog: it goes on deciding and publishing at its period. For `stale_after_s` (default: three
    periods, at least `STALE_AFTER_S`) it decides on the last reading; then on one that knows
    nothing but its age, which the policy takes for UNKNOWN: the record stays stamped, what was in
    force is not loosened, and a goal is not slowed down for a silent sensor alone. When the read
    comes back, its reading counts at once. The very first poll waits for its reading as long.

    A source that raises counts as a reading that knows nothing; a `publish` that raises leaves an
    UNKNOWN decision as the latest, with the cap and halt that were to be published. Both are
    logged, neither ends the thread.

    Raises:
        ValueError: a period that is not a positive number of seconds.
    """

    def __init__(
        self,
        source: Source,
        config: PolicyConfig,
        publish: Callable[[Reading, Decision], None],
        period_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
        stale_after_s: float | None = None,
    ) -> None:
        if not (math.isfinite(period_s) and period_s > 0):
            raise ValueError(
                f"watchdog period {period_s!r} s is not above 0; 0.5 polls twice a second."
            )
        self._source = source
        self._config = config
        self._publish = publish
        self._period_s = period_s
        self._clock = clock
        self.stale_after_s = (
            max(3 * period_s, STALE_AFTER_S) if stale_after_s is None else stale_after_s
        )
        self._reader = SourceReader(source, clock)
        self._state = PolicyState()
        self._latest: tuple[Reading, Decision] | None = None
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._logged: dict[str, tuple[str, float]] = {}

    @property
    def latest(self) -> tuple[Reading, Decision] | None:
        """The last reading with the decision made on it; None before the first poll.

        `Reading.age_s` grows beyond the period while the source does not answer.
        """
        return self._latest

    @property
    def running(self) -> bool:
        """Whether the thread polls."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def set_config(self, config: PolicyConfig) -> None:
        """Decide by `config` from now on; the next poll comes at once."""
        self._config = config
        self._wake.set()

    def start(self) -> None:
        """Start polling, with a first poll at once. Does nothing if it polls already.

        The policy goes on where it stopped: a board that was CRITICAL has to be seen cooled.
        """
        with self._lifecycle:
            if self.running:
                return
            self._stopped = threading.Event()
            self._wake = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopped, self._wake), name="watchdog", daemon=True
            )
            self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """Stop polling and close the source. Does nothing if it does not poll.

        May be called from `publish`. A source that hangs is left behind after `timeout_s`, with a
        warning; when it comes back it is closed and its thread ends, or polling has been started
        again and goes on with it.
        """
        with self._lifecycle:
            thread, self._thread = self._thread, None
            self._stopped.set()
            self._wake.set()
            self._reader.nudge()
        if thread is None:
            return
        until_s = time.monotonic() + timeout_s
        if thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                _log.warning("what the watchdog publishes to has hung for %.1f s", timeout_s)
        if not self._reader.close(max(until_s - time.monotonic(), 0.0)):
            _log.warning("source %s has not answered for %.1f s", self._source.name, timeout_s)

    def _run(self, stopped: threading.Event, wake: threading.Event) -> None:
        next_s = time.monotonic()
        while not stopped.is_set():
            wake.clear()
            self._poll(stopped)
            next_s = max(next_s + self._period_s, time.monotonic())
            if not stopped.is_set() and wake.wait(next_s - time.monotonic()):
                next_s = time.monotonic()

    def _poll(self, stopped: threading.Event) -> None:
        self._reader.ask()
        patience_s = self.stale_after_s if self._latest is None else self._period_s / 2
        self._reader.wait(patience_s, stopped.is_set)
        if stopped.is_set():
            return
        reading = self._reading()
        decision = self._latest[1] if self._latest else Decision()
        try:
            self._state, decision = step(self._config, self._state, reading, self._clock())
            if reading.note and decision.level is Level.UNKNOWN:
                decision = dataclasses.replace(decision, reason=f"{decision.reason} {reading.note}")
            self._publish(reading, decision)
            self._logged.pop("publish", None)
        except Exception as error:  # the engine sees a record that is not stamped
            failure = f"deciding or publishing failed: {error!r}"
            self._log_failure("publish", failure, error)
            decision = dataclasses.replace(decision, level=Level.UNKNOWN, reason=failure)
        self._latest = (reading, decision)

    def _reading(self) -> Reading:
        """The latest that counts: what the source gave, or one that says why it gave nothing."""
        now_s = self._clock()
        name = self._source.name
        answer = self._reader.answer
        if answer is not None and answer.error is not None:
            note = f"Source {name} failed: {answer.error!r}."
            self._log_failure("source", note, answer.error)
            return unknown(answer.at_s, name, note)
        self._logged.pop("source", None)
        reading = None if answer is None else answer.reading
        if reading is None:
            asked_s = self._reader.asked_s
            reading = unknown(now_s if asked_s is None else asked_s, name, "")
        elif reading.age_s(now_s) <= self.stale_after_s:
            self._logged.pop("stale", None)
            return reading
        self._log_failure("stale", f"source {name} does not answer", None)
        note = f"Source {name} has given no reading for {reading.age_s(now_s):.1f} s."
        return unknown(reading.stamp_s, reading.source, note, reading.board)

    def _log_failure(self, where: str, text: str, error: Exception | None) -> None:
        """Log a new failure with its traceback; the same one only every `LOG_AGAIN_S`."""
        now_s = time.monotonic()
        last_text, last_s = self._logged.get(where, ("", -math.inf))
        if text != last_text or now_s - last_s >= LOG_AGAIN_S:
            self._logged[where] = (text, now_s)
            _log.error("%s", text, exc_info=error)
