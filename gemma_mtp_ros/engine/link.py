# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's end of the connection to its host, and the rule that it does not outlive it."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from pydantic import BaseModel

from ..api import Log, ToEngine, to_engine
from ..control import ControlBlock
from ..framing import FrameReader, encode

_PR_SET_PDEATHSIG = 1
_READ_BYTES = 256 * 1024


def leave(code: int = 0) -> NoReturn:
    """End the process now, from any thread and any depth."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def run(main: Callable[[], object]) -> NoReturn:
    """Call ``main``, then end the process at once, with a traceback if it failed.

    The interpreter's own way to end would close the connection first and then take its time, or
    hang where the GPU is in disorder; the host could not tell that from an engine that hangs.
    """
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else code
    except BaseException:
        traceback.print_exc()
    leave(code)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the line above
        leave()


class Link:
    """The engine's end of socket and control block."""

    def __init__(self, sock: socket.socket, block: ControlBlock) -> None:
        self.block = block
        self.inbox: collections.deque[ToEngine] = collections.deque()
        self._socket = sock
        self._reader = FrameReader()
        self._sending = threading.RLock()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: BaseModel) -> None:
        """Send a message; blocks while the host does not read. Without a host the process ends."""
        frame = encode(message)
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError:
            leave()

    def receive(self, wait_s: float = 0.0) -> None:
        """Put what has arrived into the inbox, after waiting up to ``wait_s`` for it to come."""
        if not self._poll.poll(wait_s * 1000):
            return
        while True:
            try:
                data = self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                leave()
            self.inbox.extend(map(to_engine.validate_json, self._reader.feed(data)))

    def take(self, wanted: Callable[[ToEngine], bool]) -> list[ToEngine]:
        """Take those messages out of the inbox, in order."""
        taken = [message for message in self.inbox if wanted(message)]
        if taken:
            self.inbox = collections.deque(m for m in self.inbox if not wanted(m))
        return taken


class LinkHandler(logging.Handler):
    """Sends log records to the host."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record, its traceback included."""
        try:
            self._link.send(Log(level=record.levelno, message=self.format(record)))
        except Exception:
            self.handleError(record)
