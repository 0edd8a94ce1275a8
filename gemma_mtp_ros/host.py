# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine as the rest of the program sees it: a thread-safe object that takes requests.

The engine itself is another process (:mod:`gemma_mtp_ros.engine.worker`). Nothing here but
:meth:`EngineHost.start` and :meth:`EngineHost.stop` waits for it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
import threading
import time
from collections.abc import Callable

from .api import (
    Counted,
    EngineConfig,
    ErrorCode,
    FinishReason,
    GemmaMtpError,
    MemoryUse,
    Message,
    ModelInfo,
    Progress,
    Request,
    SessionReset,
    Warmed,
)
from .backlog import Backlog, Event, Sink, tell
from .calls import Calls
from .control import Control, ControlDesk
from .process import memory_mib
from .scheduling import BusyPolicy
from .supervisor import HostState, Supervisor

__all__ = ["BusyPolicy", "EngineHost", "Event", "HostState", "Sink"]

_log = logging.getLogger("gemma_mtp_ros.engine")

STOP_S = 1.5
"""How long an engine may take to end its request and itself. With the time that a killed process
may take to be gone (``supervisor.REAP_S``) it fits into the time that a node has to leave."""


class EngineHost:
    """Starts, feeds, cancels, watches, kills and restarts an engine process.

    All methods may be called from any thread, from sinks and callbacks too, but not from a signal
    handler. Sinks and callbacks are called one at a time on the host's own thread (a refusal on
    the thread that submits) and must be quick: while one runs, the engine is not looked after.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        queue_size: int = 4,
        busy_policy: BusyPolicy = BusyPolicy.QUEUE,
        on_log: Callable[[int, str], None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        on_state: Callable[[HostState, str], None] | None = None,
    ) -> None:
        """Make a stopped host.

        Args:
            config: what the engine process is to load, and its bounds.
            queue_size: how many requests may wait, the running one not counted.
            busy_policy: what becomes of a request that comes while another one runs.
            on_log: takes level (as in :mod:`logging`) and text of each log line of engine and host;
                default: the logger ``gemma_mtp_ros.engine``.
            on_progress: takes the signs of life of a load.
            on_state: takes each change of state, with a sentence.
        """
        self._config = config
        self._on_log = on_log or _log.log
        self._on_progress = on_progress or (lambda progress: None)
        self._on_state = on_state or (lambda state, sentence: None)
        self._changed = threading.Condition()
        self._state = HostState.STOPPED
        self._info: ModelInfo | None = None
        self._failure: GemmaMtpError | None = None
        self._supervisor: Supervisor | None = None
        self._backlog = Backlog(queue_size, self._wake, busy_policy)
        self._calls = Calls(self._wake)
        self._max_duty_cycle = config.max_duty_cycle
        self._duty = 1.0
        self._desk = ControlDesk(Control(max_duty_cycle=config.max_duty_cycle))

    def start(self, timeout_s: float | None = None) -> ModelInfo:
        """Start the engine process and wait until the model is loaded.

        A host that is loading or ready is waited for; one that failed starts afresh.

        Args:
            timeout_s: give up, and stop the engine, after this time; None: wait as long as the
                engine shows signs of life (``engine.load_timeout_s``).

        Raises:
            EngineLostError: the process died or hung while it was loading.
            GemmaMtpError: the model cannot be loaded, the time is over, or :meth:`stop` came.
            RuntimeError: called from a sink or callback of a host that runs.
        """
        supervisor = self._launch()
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._supervisor is supervisor and self._state is HostState.LOADING:
                left_s = None if give_up_s is None else give_up_s - time.monotonic()
                if left_s is not None and left_s <= 0.0:
                    break
                self._changed.wait(left_s)
            state, failure = self._state, self._failure
            if self._supervisor is not supervisor:
                raise GemmaMtpError("the engine was stopped", ErrorCode.NOT_ACTIVE)
            if state is HostState.READY and self._info is not None:
                return self._info
        if state is HostState.LOADING:
            self.stop()
            raise GemmaMtpError(
                f"the model was not loaded within {timeout_s:g} s; allow more time",
                ErrorCode.BACKEND_UNAVAILABLE,
            )
        assert failure is not None
        raise type(failure)(str(failure), failure.code)

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End all requests (NOT_ACTIVE, with their text so far) and the engine process.

        The engine is given ``timeout_s`` to end its request and itself, then it is killed. When
        this returns, process, thread and descriptors are gone and each request has its Finish.
        Idempotent. On the host's own thread (in a sink) it only asks, and returns at once.
        """
        with self._changed:  # so that it is this life of the host that ends, not a later one
            supervisor = self._supervisor
            if supervisor is None:
                return
            supervisor.request_stop(timeout_s)
        if threading.current_thread() is supervisor.thread:
            return
        supervisor.thread.join()
        with self._changed:
            failed = self._supervisor is supervisor and self._state is HostState.FAILED
            if failed:
                self._state = HostState.STOPPED
        if failed:
            tell(self._on_state, HostState.STOPPED, "the engine is stopped")

    def submit(self, request: Request, sink: Sink) -> None:
        """Take a request; never blocks. ``sink`` is told of all that comes of it, Finish last.

        A refusal is a Finish too: QUEUE_FULL, NOT_ACTIVE, BACKEND_UNAVAILABLE, INVALID_GOAL.
        """
        self._backlog.submit(request, sink)

    def cancel(
        self,
        request_id: str,
        finish_reason: FinishReason = FinishReason.CANCELED,
        error_code: ErrorCode = ErrorCode.CANCELED,
        error_msg: str = "the goal was canceled by its client",
    ) -> bool:
        """End a request: at once if it waits, else within one round or prefill chunk.

        Never blocks. False: no such request is here; it has ended, or never was.
        """
        return self._backlog.cancel(request_id, finish_reason, error_code, error_msg)

    def cancel_all(self, finish_reason: FinishReason, error_code: ErrorCode, error_msg: str) -> int:
        """End all requests as :meth:`cancel` does; return how many there were."""
        return self._backlog.cancel_all(finish_reason, error_code, error_msg)

    def set_control(
        self,
        *,
        draft_cap: int,
        halt: bool,
        reason: str,
        pause_s: float = 0.0,
        duty: float = 1.0,
        longest_pause_s: float = math.inf,
        power_mode: str = "",
    ) -> None:
        """Write a decision of the watchdog, in force from the engine's next round on.

        ``duty`` counts where it is below ``engine.max_duty_cycle``, and ``longest_pause_s`` bounds
        the pauses that it asks for; ``power_mode`` is what the
        engine remembers its costs by.

        The first one puts the engine under supervision: from then on a decision older than
        ``stale_after_s`` is not trusted. A host that never gets one drafts without a cap.
        """
        self._duty = duty
        self._desk.update(
            draft_cap=draft_cap,
            pause_s=pause_s,
            halt=halt,
            halt_reason=reason,
            power_mode=power_mode,
            max_duty_cycle=min(self._max_duty_cycle, self._duty),
            longest_pause_s=longest_pause_s if duty < self._max_duty_cycle else math.inf,
            stamp_s=time.monotonic(),
        )

    def set_live(
        self,
        *,
        draft_max_length: int | None = None,
        stale_after_s: float | None = None,
        stale_draft_cap: int | None = None,
        queue_size: int | None = None,
        busy_policy: BusyPolicy | None = None,
        max_duty_cycle: float | None = None,
    ) -> None:
        """Change parameters while the engine runs; those not given stay."""
        if max_duty_cycle is not None:
            self._max_duty_cycle = max_duty_cycle
            max_duty_cycle = min(max_duty_cycle, self._duty)
        given = {
            "draft_max_length": draft_max_length,
            "stale_after_s": stale_after_s,
            "stale_draft_cap": stale_draft_cap,
            "max_duty_cycle": max_duty_cycle,
        }
        self._desk.update(**{name: value for name, value in given.items() if value is not None})
        if queue_size is not None:
            self._backlog.resize(queue_size)
        if busy_policy is not None:
            self._backlog.set_policy(busy_policy)

    def count_tokens(
        self, messages: tuple[Message, ...], raw_prompt: str | None, timeout_s: float
    ) -> concurrent.futures.Future[Counted]:
        """Ask how many tokens a prompt has; answered between two rounds if a request runs.

        The future always completes: with ``success`` False where the engine gave no answer.
        """
        return self._calls.count_tokens(messages, raw_prompt, timeout_s)

    def reset_session(
        self, session_id: str, timeout_s: float
    ) -> concurrent.futures.Future[SessionReset]:
        """Have the engine forget what it cached of a session, whatever it is doing.

        The future always completes: with ``success`` False where the engine gave no answer.
        """
        return self._calls.reset_session(session_id, timeout_s)

    def warm(self, system_prompt: str) -> concurrent.futures.Future[Warmed]:
        """Have the engine prefill a system prompt, before the requests that wait.

        The future always completes: with ``success`` False where the engine gave no answer.
        """
        return self._calls.warm(system_prompt)

    @property
    def config(self) -> EngineConfig:
        """What the engine process was made with."""
        return self._config

    @property
    def state(self) -> HostState:
        """What the host is about."""
        return self._state

    @property
    def info(self) -> ModelInfo | None:
        """What was loaded last, and what it holds now; None before the first load, and after
        :meth:`stop`."""
        return self._info

    @property
    def queue_depth(self) -> int:
        """How many requests wait."""
        return self._backlog.depth

    @property
    def running_id(self) -> str | None:
        """The request that the engine holds."""
        return self._backlog.running_id

    @property
    def restarts(self) -> int:
        """How often the engine was lost and replaced since :meth:`start`."""
        supervisor = self._supervisor
        return 0 if supervisor is None else supervisor.restarts

    @property
    def pid(self) -> int | None:
        """Process id of the engine, if there is one."""
        supervisor = self._supervisor
        return None if supervisor is None else supervisor.pid

    @property
    def memory_mib(self) -> float | None:
        """Resident memory of the engine process in MiB (not what a GPU of its own holds)."""
        pid = self.pid
        return None if pid is None else memory_mib(pid)

    def _launch(self) -> Supervisor:
        """Return the supervisor at work; make one if there is none."""
        while True:
            with self._changed:
                old = self._supervisor
                over = self._state in (HostState.STOPPED, HostState.FAILED)
                if old is None:
                    return self._make()
                own = old.thread is threading.current_thread()
                if over and (own or not old.thread.is_alive()):
                    return self._make()
                if own:
                    raise RuntimeError("start() was called where it would wait for itself")
                if not over and not old.stopping:
                    return old
            old.thread.join()

    def _make(self) -> Supervisor:
        supervisor = Supervisor(
            self._config,
            self._backlog,
            self._calls,
            self._desk,
            self._report,
            self._on_log,
            self._on_progress,
            self._hold,
        )
        try:
            supervisor.thread.start()
        except RuntimeError:
            supervisor.discard()
            raise
        self._supervisor = supervisor
        self._state = HostState.LOADING
        self._failure = None
        self._backlog.open()
        self._calls.open()
        return supervisor

    def _hold(self, memory: MemoryUse) -> None:
        with self._changed:
            if self._info is not None:
                held = {"memory": memory, "bytes": memory.total}
                self._info = self._info.model_copy(update=held)

    def _report(
        self,
        state: HostState,
        sentence: str,
        info: ModelInfo | None = None,
        failure: GemmaMtpError | None = None,
    ) -> None:
        with self._changed:
            self._state = state
            self._info = info or (None if failure else self._info)
            self._failure = failure
            self._changed.notify_all()
        tell(self._on_state, state, sentence)

    def _wake(self) -> None:
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.wake()
