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
from .reading import Reading
from .sources import Source

LOG_AGAIN_S = 60.0
"""The same failure is logged again after this long."""

_log = logging.getLogger(__name__)


class Watchdog:
    """Reads `source` every `period_s`, decides, and hands both to `publish`, in its own thread.

    `publish` is called at every poll, in mode off too: it stamps the engine's control record, and
    a record that is no longer stamped makes the engine fall to its stale draft cap. So a source
    that hangs, and a watchdog that stopped, are both seen by the engine.

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
        self._state = PolicyState()
        self._latest: tuple[Reading, Decision] | None = None
        self._lifecycle = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._logged: dict[str, tuple[str, float]] = {}

    @property
    def latest(self) -> tuple[Reading, Decision] | None:
        """The last reading with the decision made on it; None before the first poll."""
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
        """Stop polling. Does nothing if it does not poll; may be called from `publish`.

        A source that hangs in the kernel is left behind after `timeout_s`, with a warning; when it
        comes back its thread ends without publishing.
        """
        with self._lifecycle:
            thread, self._thread = self._thread, None
            self._stopped.set()
            self._wake.set()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout_s)
        if thread.is_alive():
            _log.warning("source %s has not answered for %.1f s", self._source.name, timeout_s)

    def _run(self, stopped: threading.Event, wake: threading.Event) -> None:
        while not stopped.is_set():
            wake.clear()
            self._poll(stopped)
            if not stopped.is_set():
                wake.wait(self._period_s)

    def _poll(self, stopped: threading.Event) -> None:
        source_failure = ""
        try:
            reading = self._source.read()
            self._logged.pop("source", None)
        except Exception as error:  # any failure of a source is an unknown reading
            source_failure = f"source {self._source.name} failed: {error!r}"
            self._log_failure("source", source_failure)
            reading = Reading(stamp_s=self._clock(), wall_s=time.time(), source=self._source.name)
        if stopped.is_set():
            return
        decision = self._latest[1] if self._latest else Decision()
        try:
            self._state, decision = step(self._config, self._state, reading, self._clock())
            if source_failure:
                reason = f"{decision.reason} ({source_failure})"
                decision = dataclasses.replace(decision, reason=reason)
            self._publish(reading, decision)
            self._logged.pop("publish", None)
        except Exception as error:  # the engine sees a record that is not stamped
            failure = f"deciding or publishing failed: {error!r}"
            self._log_failure("publish", failure)
            decision = dataclasses.replace(decision, level=Level.UNKNOWN, reason=failure)
        self._latest = (reading, decision)

    def _log_failure(self, where: str, text: str) -> None:
        """Log a new failure with its traceback; the same one only every `LOG_AGAIN_S`."""
        now_s = time.monotonic()
        last_text, last_s = self._logged.get(where, ("", -math.inf))
        if text != last_text or now_s - last_s >= LOG_AGAIN_S:
            self._logged[where] = (text, now_s)
            _log.exception("%s", text)
