# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""An engine process that fails in one chosen way, for what the real one does not do on demand.

The tests put this module's name in place of the worker's; GEMMA_MTP_TEST_SCRIPT names the script.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemma_mtp_ros.api import (
    Cancel,
    EngineConfig,
    ErrorCode,
    Failed,
    Finish,
    FinishReason,
    Generate,
    Log,
    ModelInfo,
    Piece,
    Ready,
    Request,
    Started,
    ToEngine,
)
from gemma_mtp_ros.control import Stage
from gemma_mtp_ros.engine.link import Link, run
from gemma_mtp_ros.engine.worker import Worker, connect
from gemma_mtp_ros.framing import encode

INFO = ModelInfo(
    model="scripted", precision="none", context=64, vocabulary=8, bytes=0, reproducible="off"
)


def messages(link: Link) -> Iterator[ToEngine]:
    """Beat, and give each message as it comes."""
    while True:
        link.block.beat(Stage.IDLE)
        while link.inbox:
            yield link.inbox.popleft()
        link.receive(0.02)


def begin(link: Link) -> str:
    """Get ready, take a request, say a first word; return the request's id."""
    link.send(Ready(info=INFO))
    for message in messages(link):
        if isinstance(message, Generate):
            say(link, message.request.id)
            return message.request.id
    raise AssertionError


def say(link: Link, request_id: str) -> None:
    link.send(Started(request_id=request_id, prompt_tokens=3))
    link.send(hello(request_id))


def hello(request_id: str) -> Piece:
    return Piece(
        request_id=request_id,
        text="Hello",
        token_ids=(5,),
        completion_tokens=1,
        tokens_per_second=0.0,
        draft_length=0,
    )


def hang() -> None:
    """Do nothing more, not even beat."""
    while True:
        time.sleep(1000)


def holds(link: Link) -> None:
    """Serve well; a request ends when it is canceled."""
    link.send(Ready(info=INFO))
    for message in messages(link):
        if isinstance(message, Generate):
            say(link, message.request.id)
        elif isinstance(message, Cancel):
            link.send(
                Finish(
                    request_id=message.request_id,
                    finish_reason=message.finish_reason,
                    error_code=message.error_code,
                    error_msg=message.error_msg,
                    text="Hello",
                )
            )


def stubborn(link: Link) -> None:
    """Beat, but never end a request."""
    begin(link)
    for _ in messages(link):
        pass


def silent(link: Link) -> None:
    """Stop beating in mid-answer."""
    begin(link)
    link.block.beat(Stage.DECODING)
    hang()


def silent_load(link: Link) -> None:
    """Never get ready."""
    hang()


def clings(link: Link) -> None:
    """Get ready, then notice nothing, not even that the host hung up."""
    link.send(Ready(info=INFO))
    while True:
        link.block.beat(Stage.IDLE)
        time.sleep(0.02)


def notes(link: Link) -> None:
    """Say what comes in, and answer nothing."""
    link.send(Ready(info=INFO))
    for message in messages(link):
        link.send(Log(level=20, message=message.kind))


def no_frame(link: Link) -> None:
    """Send bytes that are no frame."""
    begin(link)
    link._socket.sendall(b"\xff" * 64)
    hang()


def no_json(link: Link) -> None:
    """Send a frame that is no message, and a good one after it."""
    request_id = begin(link)
    late = Finish(request_id=request_id, finish_reason=0)
    link._socket.sendall(b"\x03\0\0\0{ ]" + encode(late))
    hang()


def wrong_id(link: Link) -> None:
    """End a request that nobody sent."""
    begin(link)
    link.send(Finish(request_id="another", finish_reason=0))
    hang()


def hangs_up(link: Link) -> None:
    """Close the connection and live on."""
    begin(link)
    link._socket.close()
    hang()


def raises(link: Link) -> None:
    """End with a traceback."""
    begin(link)
    raise ArithmeticError("the sum is wrong")


def aborts(link: Link) -> None:
    """Crash as C code does."""
    begin(link)
    os.abort()


def last_words(link: Link) -> None:
    """Say much in one go and end at once."""
    request_id = begin(link)
    for i in range(200):
        link.send(
            Piece(
                request_id=request_id,
                text=f" {i}" + "x" * 5000,
                token_ids=(i,),
                completion_tokens=2 + i,
                tokens_per_second=1.0,
                draft_length=0,
            )
        )
    os._exit(0)


def refuses(link: Link) -> None:
    """Say that the model does not fit."""
    sys.stderr.write("trying hard\n")
    link.send(Failed(error_code=ErrorCode.OUT_OF_MEMORY, error_msg="it does not fit"))
    sys.exit(1)


def loads_once(link: Link) -> None:
    """Serve the first time, fail to load after that."""
    marker = Path(os.environ["GEMMA_MTP_TEST_MARKER"])
    if marker.exists():
        refuses(link)
    marker.touch()
    holds(link)


class FailingEngine:
    """Serves by the real worker; the first request meets an exception in mid-answer."""

    info = INFO
    memory = INFO.memory

    def __init__(self) -> None:
        self.failed = False

    def generate(self, request: Request, poll: object) -> Iterator[Started | Piece | Finish]:
        """Say a word, then fail once."""
        yield Started(request_id=request.id, prompt_tokens=3, seed=11)
        yield hello(request.id)
        if not self.failed:
            self.failed = True
            raise ArithmeticError("the sum is wrong")
        yield Finish(request_id=request.id, finish_reason=FinishReason.STOP, text="Hello")


def fails_once(link: Link) -> None:
    """Meet an exception in the first request, and serve on."""
    link.send(Ready(info=INFO))
    engine: Any = FailingEngine()
    Worker(link, EngineConfig(model="scripted"), engine).serve()


def chatters(link: Link) -> None:
    """Fill the output, bars and half lines too, before serving."""
    for i in range(20000):
        sys.stdout.write(f"line {i}\n")
    sys.stdout.write("\r50 %\r100 %\n" + "y" * 50000)
    sys.stdout.flush()
    holds(link)


def stops_in_load(link: Link) -> None:
    """Beat while loading, for ever."""
    while True:
        link.block.beat(Stage.LOADING)
        link.receive(0.02)


if __name__ == "__main__":
    run(lambda: globals()[os.environ["GEMMA_MTP_TEST_SCRIPT"]](connect(sys.argv[1:])[0]))
