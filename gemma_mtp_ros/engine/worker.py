# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Main of the engine process: ``python -m gemma_mtp_ros.engine.worker``, started by the host.

One thread reads messages, runs the engine and beats. torch is imported only once the first message
has been read and the bounds are set. The process ends with its host, whatever becomes of that: at
the end of file of the socket, or by the kernel (PR_SET_PDEATHSIG) while it cannot look.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from ..api import (
    Cancel,
    Channel,
    Configure,
    Counted,
    CountTokens,
    EngineConfig,
    ErrorCode,
    Failed,
    Finish,
    FinishReason,
    GemmaMtpError,
    Generate,
    Held,
    MemoryUse,
    Piece,
    Progress,
    Ready,
    Request,
    ResetSession,
    SessionReset,
    Started,
    Stats,
    Warm,
    Warmed,
)
from ..control import Control, ControlBlock, Stage
from . import bounds
from .link import Link, LinkHandler, die_with_parent, run

if TYPE_CHECKING:
    from .decode import Engine, RoundControl

IDLE_BEAT_S = 0.5
PAUSE_SLICE_S = 0.1
PROGRESS_INTERVAL_S = 0.1


class Poll:
    """What the engine calls before each prefill chunk and round of one piece of work."""

    def __init__(self, worker: Worker, request: Request | None) -> None:
        self._worker = worker
        self._link = worker.link
        self._request = request
        self._cancel: Cancel | None = None
        self._first = True
        self._worked_from_s = time.monotonic()
        self.stage = Stage.PREFILL

    def __call__(self) -> RoundControl:
        """Beat, read messages and control record, pause if due; say how to go on."""
        from .decode import RoundControl

        self._account()
        began_s = now_s = self._worked_from_s
        self._link.block.beat(self.stage)
        self._link.receive()
        while True:
            control = self._link.block.read()
            end = self._end(control, now_s)
            self._worker.answer_calls()
            # What a watchdog asks for is between rounds: the first one begins at once.
            pause_s = 0.0 if self._first else control.pause_s
            owed_s = self._worker.duty.owed_s(control.max_duty_cycle)
            left_s = max(began_s + pause_s - now_s, owed_s)
            if end is not None or left_s <= 0.0:
                break
            self._link.block.beat(Stage.PAUSED)
            self._link.receive(min(left_s, PAUSE_SLICE_S))
            now_s = self._rest()
        self._first = False
        paused_s = now_s - began_s
        return RoundControl(control.draft_limit(now_s), end, paused_s, control.power_mode)

    def _account(self) -> None:
        """Charge the time since the last call to the duty cycle."""
        now_s = time.monotonic()
        control = self._link.block.read()
        self._worker.duty.worked(now_s - self._worked_from_s, control.max_duty_cycle)
        self._worker.duty.let_off(control.longest_pause_s, control.max_duty_cycle)
        self._worked_from_s = now_s

    def _rest(self) -> float:
        now_s = time.monotonic()
        share = self._link.block.read().max_duty_cycle
        self._worker.duty.rested(now_s - self._worked_from_s, share)
        self._worked_from_s = now_s
        return now_s

    def close(self) -> None:
        """The work is done."""
        self._account()
        self._worker.idle_from_s = self._worked_from_s

    def _end(self, control: Control, now_s: float) -> Cancel | None:
        request = self._request
        request_id = "" if request is None else request.id
        for message in self._link.take(lambda message: isinstance(message, Cancel)):
            assert isinstance(message, Cancel)
            if self._cancel is None and message.request_id == request_id:
                self._cancel = message
        if self._cancel is not None:
            return self._cancel
        if control.halt:
            return Cancel(
                request_id=request_id,
                finish_reason=FinishReason.THERMAL,
                error_code=ErrorCode.THERMAL_LIMIT,
                error_msg=control.halt_reason or "the board is too hot; let it cool down",
            )
        if request is not None and request.deadline_s is not None and request.deadline_s <= now_s:
            return Cancel(
                request_id=request_id,
                finish_reason=FinishReason.TIMEOUT,
                error_code=ErrorCode.TIMEOUT,
                error_msg="the goal's timeout passed; allow more time or ask for fewer tokens",
            )
        return None


class Worker:
    """Serves messages with a loaded engine."""

    def __init__(self, link: Link, config: EngineConfig, engine: Engine) -> None:
        self.link = link
        self.duty = bounds.DutyCycle()
        self.idle_from_s = time.monotonic()
        self._config = config
        self._engine = engine
        self._told_memory: MemoryUse = engine.info.memory

    def serve(self) -> NoReturn:
        """Answer messages until the host hangs up."""
        beat_s = min(IDLE_BEAT_S, self._config.stall_timeout_s / 4)
        while True:
            self.link.block.beat(Stage.IDLE)
            self.answer_calls()
            if not self.link.inbox:
                self.link.receive(beat_s)
                continue
            message = self.link.inbox.popleft()
            share = self.link.block.read().max_duty_cycle
            self.duty.rested(time.monotonic() - self.idle_from_s, share)
            if isinstance(message, Generate):
                self._generate(message.request)
            elif isinstance(message, Warm):
                self._warm(message)
            # A Cancel is of a request that has ended in the meantime.

    def answer_calls(self) -> None:
        """Answer those messages in the inbox that need no round."""
        for message in self.link.take(lambda message: isinstance(message, ResetSession)):
            assert isinstance(message, ResetSession)
            found = self._engine.reset_session(message.session_id)
            self.link.send(SessionReset(id=message.id, success=True, found=found))
            self._tell_memory()
        for message in self.link.take(lambda message: isinstance(message, CountTokens)):
            assert isinstance(message, CountTokens)
            largest = self._engine.info.context
            try:
                tokens = self._engine.count_tokens(message.messages, message.raw_prompt)
                answer = Counted(id=message.id, success=True, tokens=tokens, max_context=largest)
            except Exception as error:
                answer = Counted(
                    id=message.id, success=False, message=self._told(error), max_context=largest
                )
            self.link.send(answer)

    def _tell_memory(self) -> None:
        """Say what is held, where that has changed."""
        memory = self._engine.memory
        if memory != self._told_memory:
            self._told_memory = memory
            self.link.send(Held(memory=memory))

    def _warm(self, message: Warm) -> None:
        poll = Poll(self, None)
        try:
            self._engine.warm(message.system_prompt, poll)
            answer = Warmed(id=message.id, success=True)
        except Exception as error:
            answer = Warmed(id=message.id, success=False, message=self._told(error))
        poll.close()
        self._tell_memory()
        self.link.send(answer)

    def _generate(self, request: Request) -> None:
        self.link.block.beat(Stage.PREFILL)
        poll = Poll(self, request)
        started: Started | None = None
        pieces: list[Piece] = []
        finish: Finish | None = None
        try:
            for event in self._engine.generate(request, poll):
                if isinstance(event, Finish):
                    finish = event
                    continue
                if isinstance(event, Started):
                    started = event
                else:
                    pieces.append(event)
                    poll.stage = Stage.DECODING
                self.link.send(event)
            if finish is None:
                raise RuntimeError("the engine ended a request without saying how")
        except Exception as error:
            code, sentence = classify(error), self._told(error)
            if finish is None:
                finish = _broken_off(request, started, pieces, code, sentence)
        poll.close()
        self._tell_memory()
        self.link.send(finish)

    def _told(self, error: Exception) -> str:
        """Return the sentence for the client; what is no one's fault but ours is logged in full."""
        if device_lost(error):
            raise error
        if isinstance(error, GemmaMtpError):
            return str(error)
        logging.getLogger(__name__).error("the engine failed", exc_info=error)
        if classify(error) is ErrorCode.OUT_OF_MEMORY:
            return "the engine ran out of memory; shorten the prompt or lower engine.max_context"
        return f"the engine failed: {type(error).__name__}: {error}; the log has the traceback"


def _broken_off(
    request: Request,
    started: Started | None,
    pieces: list[Piece],
    code: ErrorCode,
    sentence: str,
) -> Finish:
    """Return the end of a request that an exception ended, with the text so far."""
    texts = {
        channel: "".join(piece.text for piece in pieces if piece.channel is channel)
        for channel in Channel
    }
    return Finish(
        request_id=request.id,
        finish_reason=FinishReason.ERROR,
        error_code=code,
        error_msg=sentence,
        text=texts[Channel.TEXT],
        reasoning=texts[Channel.REASONING],
        seed=(started.seed if started else request.sampling.seed) or 0,
        stats=Stats(
            prompt_tokens=started.prompt_tokens if started else 0,
            cached_tokens=started.cached_tokens if started else 0,
            completion_tokens=pieces[-1].completion_tokens if pieces else 0,
            tokens_per_second=pieces[-1].tokens_per_second if pieces else 0.0,
        ),
    )


def classify(error: BaseException) -> ErrorCode:
    """Return the code of an exception. torch's classes are told by name: it may not be loaded."""
    if isinstance(error, GemmaMtpError):
        return error.code
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or of_torch:
        return ErrorCode.OUT_OF_MEMORY
    return ErrorCode.UNKNOWN


def device_lost(error: BaseException) -> bool:
    """Whether the GPU's context is broken: nothing works in this process from here on."""
    if classify(error) is ErrorCode.OUT_OF_MEMORY:
        return False
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)


def explain(error: Exception) -> str:
    """Return the sentence for a model that could not be loaded."""
    if isinstance(error, GemmaMtpError):
        return str(error)
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        return f"{sys.executable} cannot load the engine ({what}); install its requirements there"
    if classify(error) is ErrorCode.OUT_OF_MEMORY:
        return f"memory ran out while the model was loaded ({what}); take a smaller one"
    return f"the model could not be loaded ({what}); the log has the traceback"


def load(link: Link, config: EngineConfig) -> Engine:
    """Load the model, beating at each tensor; end the process, with the reason, if that fails."""
    told_s = 0.0

    def progress(stage: str, fraction: float) -> None:
        nonlocal told_s
        link.block.beat(Stage.LOADING)
        link.receive()
        now_s = time.monotonic()
        if now_s - told_s >= PROGRESS_INTERVAL_S or fraction >= 1.0:
            told_s = now_s
            link.send(Progress(stage=stage, fraction=fraction))

    try:
        for warning in bounds.apply(config):
            logging.getLogger(__name__).warning(warning)
        progress("importing torch", 0.0)
        bounds.apply_to_torch(config)
        from .decode import Engine

        return Engine.load(config, progress)
    except Exception as error:
        if not isinstance(error, GemmaMtpError):
            logging.getLogger(__name__).exception("the model could not be loaded")
        code = ErrorCode.BACKEND_UNAVAILABLE if isinstance(error, ImportError) else classify(error)
        link.send(Failed(error_code=code, error_msg=explain(error)))
        raise SystemExit(1) from error


def connect(arguments: list[str]) -> tuple[Link, EngineConfig]:
    """Tie this process to the host that started it; return the link and what is to be loaded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--directory", required=True)
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    faulthandler.enable()
    with contextlib.suppress(OSError):
        os.chdir(given.directory)
    os.set_inheritable(given.socket, False)
    link = Link(socket.socket(fileno=given.socket), ControlBlock(given.control))
    os.close(given.control)
    logging.basicConfig(level=logging.INFO, handlers=[LinkHandler(link)], format="%(message)s")
    logging.captureWarnings(True)
    link.block.beat(Stage.STARTING)
    while not link.inbox:
        link.receive(IDLE_BEAT_S)
    first = link.inbox.popleft()
    if not isinstance(first, Configure):
        raise ValueError(f"the first message is {first.kind!r} and should be 'configure'")
    return link, first.config


def main() -> NoReturn:
    """Serve the host that started this process."""
    link, config = connect(sys.argv[1:])
    engine = load(link, config)
    link.block.beat(Stage.IDLE)
    link.send(Ready(info=engine.info))
    Worker(link, config, engine).serve()


if __name__ == "__main__":
    run(main)
