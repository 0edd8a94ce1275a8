# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that keeps an engine process running: starts, feeds, watches, kills, restarts it."""

from __future__ import annotations

import contextlib
import enum
import logging
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from .api import (
    Configure,
    Counted,
    EngineConfig,
    EngineLostError,
    ErrorCode,
    Failed,
    Finish,
    FromEngine,
    GemmaMtpError,
    Held,
    Log,
    MemoryUse,
    ModelInfo,
    Piece,
    Progress,
    Ready,
    SessionReset,
    Started,
    Warmed,
)
from .backlog import Backlog, UnexpectedAnswer, tell
from .calls import Calls
from .control import ControlDesk
from .process import EngineProcess, ProtocolError
from .vigil import Bell, Restarts, Vigil

EXIT_GRACE_S = 0.5
"""How long a process that closed its connection may take to end, before it is killed."""
REAP_S = 1.0
"""How long a killed process may take to be gone, before its host stops waiting for it."""


class HostState(enum.Enum):
    """What the host is about."""

    STOPPED = "stopped"
    """There is no engine process, and none is wanted."""
    LOADING = "loading"
    """The engine is coming up; requests wait."""
    READY = "ready"
    """The engine serves."""
    FAILED = "failed"
    """The engine was lost too often; ``start`` tries again."""


class Report(Protocol):
    """Told by the supervisor's thread of each change of state."""

    def __call__(
        self,
        state: HostState,
        sentence: str,
        info: ModelInfo | None = None,
        failure: GemmaMtpError | None = None,
    ) -> None: ...


class Supervisor:
    """One life of a host, from start to stop or failure, on a thread of its own.

    That thread makes the engine processes, since the kernel kills a child whose spawning thread
    ends.

    Attributes:
        thread: the thread; whoever made the supervisor starts it.
        restarts: how often the engine was lost and replaced.
    """

    def __init__(
        self,
        config: EngineConfig,
        backlog: Backlog,
        calls: Calls,
        desk: ControlDesk,
        report: Report,
        on_log: Callable[[int, str], None],
        on_progress: Callable[[Progress], None],
        on_held: Callable[[MemoryUse], None],
    ) -> None:
        self.thread = threading.Thread(target=self._run, name="gemma_mtp_engine_host", daemon=True)
        self.restarts = 0
        self._config = config
        self._backlog = backlog
        self._calls = calls
        self._desk = desk
        self._report = report
        self._on_log = on_log
        self._on_progress = on_progress
        self._on_held = on_held
        self._process: EngineProcess | None = None
        self._loading = False
        self._dying = False
        self._lost = False
        self._refused: Failed | None = None
        self._ever_ready = False
        self._failure: GemmaMtpError | None = None
        self._restarts_left = Restarts(config.max_restarts, config.restart_window_s)
        self._vigil = Vigil(config.load_timeout_s, config.stall_timeout_s)
        self._spawn_at_s = time.monotonic()
        self._stop_by_s: float | None = None
        self._selector = selectors.PollSelector()
        self._bell = Bell()
        self._selector.register(self._bell.fd, selectors.EVENT_READ, self._bell.silence)

    # Called by any thread.

    @property
    def pid(self) -> int | None:
        """Process id of the engine, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def wake(self) -> None:
        """Have the thread look at backlog and calls now."""
        self._bell.ring()

    @property
    def stopping(self) -> bool:
        """Whether :meth:`request_stop` was called."""
        return self._stop_by_s is not None

    def request_stop(self, timeout_s: float) -> None:
        """End all goals, then the process, then the thread; a later call changes nothing."""
        if self._stop_by_s is None:
            self._stop_by_s = time.monotonic() + timeout_s
            self._backlog.close(ErrorCode.NOT_ACTIVE, "the engine was stopped; start it again")
            self._bell.ring()

    def discard(self) -> None:
        """Close selector and bell; for one whose thread never ran, or is about to end."""
        self._selector.close()
        self._bell.close()

    # The thread.

    def _run(self) -> None:
        """Supervise until stopped, or until there is nothing left to supervise."""
        orderly = False
        try:
            self._report(HostState.LOADING, "the engine is starting")
            while self._failure is None and self._stop_by_s is None:
                self._step()
            self._let_finish()
            orderly = True
        except Exception as error:
            self._log(logging.CRITICAL, traceback.format_exc())
            self._failure = GemmaMtpError(f"the engine's host failed: {error!r}; see the log")
        finally:
            self._wind_up(orderly)

    def _step(self) -> None:
        """Do what is to be done now, then wait for the next thing to happen."""
        if self._process is None and time.monotonic() >= self._spawn_at_s:
            self._spawn()
            if self._failure is not None:
                return
        self._feed()
        self._backlog.deliver()
        for key, _ in self._selector.select(self._wait_s()):
            key.data()
        now = time.monotonic()
        self._backlog.expire(now)
        self._calls.expire(now)
        self._check(now)
        self._backlog.deliver()

    def _wait_s(self) -> float:
        now = time.monotonic()
        due = [now + self._vigil.poll_s, self._backlog.next_deadline(), self._calls.next_deadline()]
        if self._process is None:
            due.append(self._spawn_at_s)
        if self._stop_by_s is not None:
            due.append(self._stop_by_s)
        return max(0.0, min(due) - now)

    def _spawn(self) -> None:
        self._loading = True
        self._dying = False
        self._lost = False
        self._refused = None
        try:
            process = EngineProcess(self._desk.control)
        except OSError as error:
            self._account(f"the engine process cannot be started: {error}")
            return
        self._process = process
        self._desk.attach(process.block)
        self._vigil.began(time.monotonic())
        self._selector.register(process.socket, selectors.EVENT_READ, self._on_socket)
        self._selector.register(process.log_pipe, selectors.EVENT_READ, self._on_output)
        self._selector.register(process.pidfd, selectors.EVENT_READ, self._on_exit)
        process.send(Configure(config=self._config))

    def _feed(self) -> None:
        """Send the engine what is due, and tell those in the queue where they stand."""
        process = self._process
        if process is not None and not self._dying:
            if not self._loading:
                while frame := self._calls.next(idle=self._backlog.running_id is None):
                    process.send_frame(frame)
                if not self._calls.warming and (frame := self._backlog.next()):
                    process.last_line = ""  # of an earlier goal, no word on how this one ends
                    process.send_frame(frame)
                if cancel := self._backlog.next_cancel():
                    process.send(cancel)
            if not process.eof:  # the selector knows the socket until then
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.pending else 0)
                self._selector.modify(process.socket, events, self._on_socket)
        self._backlog.announce()

    # Handlers of events; they leave the process open, since others of the same batch may follow.

    def _on_socket(self) -> None:
        process = self._process
        if process is None or self._lost:
            return
        process.flush()
        try:
            for message in process.receive() or ():
                self._handle(message)
        except (ProtocolError, UnexpectedAnswer) as error:
            self._lose(f"sent what cannot be used ({error})", readable=False)
        if process.eof and not self._lost:
            self._ignore(process.socket)
            if not self._dying:
                ended = process.ended(EXIT_GRACE_S)
                self._lose(process.reap() if ended else "closed its connection")

    def _on_output(self) -> None:
        process = self._process
        if process is not None:
            self._log_output(process.output() or [])
            if process.output_ended:
                self._ignore(process.log_pipe)

    def _on_exit(self) -> None:
        process = self._process
        if process is not None:
            self._ignore(process.pidfd)
            self._lose(process.reap())

    def _handle(self, message: FromEngine) -> None:
        if isinstance(message, Piece):
            self._backlog.piece(message)
        elif isinstance(message, Started):
            self._backlog.started(message)
        elif isinstance(message, Finish):
            self._backlog.finish(message)
        elif isinstance(message, Log):
            self._log(message.level, message.message)
        elif isinstance(message, Progress):
            tell(self._on_progress, message)
        elif isinstance(message, Ready):
            self._ready(message.info)
        elif isinstance(message, Failed):
            self._refused = message
        elif isinstance(message, Held):
            self._on_held(message.memory)
        elif isinstance(message, (Counted, SessionReset, Warmed)):
            self._calls.answered(message)

    def _ready(self, info: ModelInfo) -> None:
        self._loading = False
        self._ever_ready = True
        self._vigil.loaded()
        self._backlog.set_ready(True)
        self._report(HostState.READY, f"{info.model} is loaded", info=info)

    # Watching.

    def _check(self, now_s: float) -> None:
        """Look whether the process is well, or gone."""
        process = self._process
        if process is None:
            return
        if not self._dying:
            if self._refused is not None:
                self._lose("")
            elif why := self._vigil.look(
                now_s, process.block.heartbeat(), self._backlog.overdue(now_s)
            ):
                self._lose(f"{why} and was killed while {process.stage().name.lower()}")
            elif self._vigil.end_due:
                self._backlog.abandon()
        if self._dying and process.ended(0.0):
            self._bury(process)

    # Losing and ending.

    def _lose(self, how: str, readable: bool = True) -> None:
        """Give the process up. What it sent before is heard, if it is still ``readable``."""
        process = self._process
        if process is None or self._dying:
            return
        self._dying = self._lost = True
        process.kill()
        self._ignore(process.socket)
        try:
            while readable and (messages := process.receive()) is not None:
                for message in messages:
                    self._handle(message)
        except (ProtocolError, UnexpectedAnswer) as error:
            self._log(logging.ERROR, f"the engine's last messages cannot be used: {error}")
        self._drain_output(process)
        if self._refused is not None:
            self._account(self._refused.error_msg, self._refused.error_code)
        else:
            words = f"; its last line was {process.last_line!r}" if process.last_line else ""
            self._account(f"the engine process {process.pid} {how}{words}")

    def _account(self, sentence: str, code: ErrorCode | None = None) -> None:
        """Draw the consequences of a loss; ``code`` is that of an engine that could not load."""
        self._loading = True
        if self._stop_by_s is not None:
            return
        self._log(logging.ERROR, sentence)
        now_s = time.monotonic()
        wait_s = self._restarts_left.lost(now_s)
        if not self._ever_ready:
            self._failure = GemmaMtpError(sentence, code) if code else EngineLostError(sentence)
        elif wait_s is None:
            self._failure = GemmaMtpError(
                f"{sentence}; that is more than {self._config.max_restarts} losses "
                f"(engine.max_restarts) within {self._config.restart_window_s:g} s: remove the "
                "cause and configure again",
                ErrorCode.BACKEND_UNAVAILABLE,
            )
        again = "" if self._failure else "; a new one is being started, send the goal again"
        self._backlog.lost(ErrorCode.ENGINE_LOST, sentence + again)
        self._calls.lost(sentence)
        if self._failure is not None or wait_s is None:
            self._refuse(ErrorCode.BACKEND_UNAVAILABLE, str(self._failure))
        else:
            self.restarts += 1
            self._spawn_at_s = now_s + wait_s
            self._report(HostState.LOADING, f"{sentence}; a new one is being started")

    def _refuse(self, code: ErrorCode, sentence: str) -> None:
        self._backlog.close(code, sentence)
        self._calls.close(sentence)

    def _bury(self, process: EngineProcess) -> None:
        """Reap an ended process and close all that led to it."""
        process.reap()
        self._drain_output(process)
        self._detach(process)

    def _detach(self, process: EngineProcess) -> None:
        self._process = None
        self._desk.attach(None)
        for source in (process.socket, process.log_pipe, process.pidfd):
            self._ignore(source)
        process.close()

    def _ignore(self, source: int | socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(source)

    def _drain_output(self, process: EngineProcess) -> None:
        while (lines := process.output()) is not None:
            self._log_output(lines)

    def _log_output(self, lines: list[str]) -> None:
        for line in lines:
            self._log(logging.WARNING, line)

    def _let_finish(self) -> None:
        """After a stop was asked for: let the engine end its goal, then itself, within the time."""
        if self._stop_by_s is None or self._loading:
            return
        half_s = (self._stop_by_s - time.monotonic()) / 2
        finish_by_s = self._stop_by_s - half_s
        while (
            self._backlog.running_id is not None
            and not self._dying
            and time.monotonic() < finish_by_s
        ):
            self._step()
        if self._process is not None and not self._dying:
            self._dying = True
            self._process.hang_up()
            while self._process is not None and time.monotonic() < self._stop_by_s:
                self._step()

    def _wind_up(self, orderly: bool) -> None:
        """End all that is left, and say so."""
        if self._failure is None:
            failure = GemmaMtpError("the engine was stopped", ErrorCode.NOT_ACTIVE)
            code, state = ErrorCode.NOT_ACTIVE, HostState.STOPPED
        else:
            failure, code = self._failure, ErrorCode.BACKEND_UNAVAILABLE
            given_up = self._ever_ready or not orderly
            state = HostState.FAILED if given_up else HostState.STOPPED
        try:
            self._refuse(code, str(failure))
            self._backlog.lost(code, str(failure))
            self._backlog.deliver()
            self._end_process()
        finally:
            self.discard()
            self._report(state, str(failure), failure=failure)

    def _end_process(self) -> None:
        process = self._process
        if process is None:
            return
        process.kill()
        if process.ended(REAP_S):
            self._bury(process)
        else:
            self._log(logging.ERROR, f"the killed engine process {process.pid} is not gone yet")
            self._detach(process)

    def _log(self, level: int, message: str) -> None:
        tell(self._on_log, level, message)
