# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""One engine process as its host sees it: started, spoken to, watched, killed, reaped."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from .api import FromEngine, from_engine
from .control import Control, ControlBlock, Stage
from .framing import FrameError, FrameReader, FrameWriter, encode

WORKER = "gemma_mtp_ros.engine.worker"
_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_READ_BYTES = 256 * 1024
_MAX_LINE_BYTES = 8192


class ProtocolError(Exception):
    """The engine sent what is no message."""


class LineReader:
    """Cuts the output of a process into lines; progress bars (carriage returns) count as lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Take more output; return the lines that are now whole, empty ones left out."""
        *lines, self._rest = re.split(rb"[\r\n]", self._rest + data)
        if len(self._rest) > _MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    def end(self) -> list[str]:
        """Return what is left without a line end."""
        return self.feed(b"\n")


class EngineProcess:
    """A child process that runs :mod:`gemma_mtp_ros.engine.worker`.

    Used by the thread that made it, and no other. That thread has to outlive the child: the kernel
    kills the child when the thread ends.

    Attributes:
        pid: process id, and id of its session and process group.
        block: its control block; the record in it is written through a :class:`ControlDesk`.
        socket, log_pipe, pidfd: what to poll: messages, output, end of the process.
        eof, output_ended: whether the child closed its end of the socket, and of the pipe.
        last_line: the latest line that the child wrote to its output.
    """

    def __init__(self, control: Control) -> None:
        """Start the process.

        Raises:
            OSError: no process, memory or descriptors left.
        """
        self._reader = FrameReader()
        self._writer = FrameWriter()
        self._lines = LineReader()
        self._code: int | None = None
        self.eof = False
        self.output_ended = False
        self.last_line = ""
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as given_away:
            self.block, control_fd = ControlBlock.create(control)
            undo.callback(self.block.close)
            given_away.callback(os.close, control_fd)
            self.socket, theirs = socket.socketpair()
            undo.callback(self.socket.close)
            given_away.callback(theirs.close)
            self.log_pipe, log_fd = os.pipe()
            undo.callback(os.close, self.log_pipe)
            given_away.callback(os.close, log_fd)
            self.socket.setblocking(False)
            os.set_blocking(self.log_pipe, False)
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    WORKER,
                    f"--parent={os.getpid()}",
                    f"--socket={theirs.fileno()}",
                    f"--control={control_fd}",
                    f"--directory={_working_directory()}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=(theirs.fileno(), control_fd),
                start_new_session=True,
                # "-m" looks for modules in the working directory first. A user's files there must
                # not stand in for modules of the engine, so the worker goes there later.
                cwd="/",
                env=_environment(),
            )
            self.pid = self._popen.pid
            try:
                self.pidfd = os.pidfd_open(self.pid)
            except OSError:
                self.kill()
                self.reap()
                raise
            undo.callback(os.close, self.pidfd)
            self._undo = undo.pop_all()

    def send(self, message: BaseModel) -> None:
        """Put a message in line for the engine, and send what goes now; never blocks."""
        self.send_frame(encode(message))

    def send_frame(self, frame: bytes) -> None:
        """As :meth:`send`, for a message that is framed already."""
        self._writer.add(frame)
        self.flush()

    def flush(self) -> None:
        """Send what goes now. A child that is gone shows at its end of file, not here."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._writer.flush(self.socket)

    @property
    def pending(self) -> bool:
        """Whether messages wait for the socket to take them."""
        return bool(self._writer)

    def receive(self) -> Iterator[FromEngine] | None:
        """Read once; give the messages that are now whole. None: there was nothing to read.

        Raises:
            ProtocolError: not a frame, or not a message of the engine's; while iterating, after
                the good messages before it.
        """
        if self.eof:
            return None
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        self.eof = not data
        return self._messages(data)

    def _messages(self, data: bytes) -> Iterator[FromEngine]:
        try:
            for body in self._reader.feed(data):
                yield from_engine.validate_json(body)
        except FrameError as error:
            raise ProtocolError(str(error)) from error
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, found["loc"])) or "message"
            raise ProtocolError(f"{where}: {found['msg']}") from error

    def output(self) -> list[str] | None:
        """Read once; return the lines that are now whole. None: there was nothing to read."""
        if self.output_ended:
            return None
        try:
            data = os.read(self.log_pipe, _READ_BYTES)
        except BlockingIOError:
            return None
        self.output_ended = not data
        lines = self._lines.feed(data) if data else self._lines.end()
        if lines:
            self.last_line = lines[-1].strip()
        return lines

    def hang_up(self) -> None:
        """Close the connection: the engine ends by itself, unless it hangs."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """Send SIGKILL to the process and to what it may have started; idempotent."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def ended(self, timeout_s: float) -> bool:
        """Whether the process has ended, waiting for it up to ``timeout_s``."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def reap(self) -> str:
        """Take the exit status of the ended process; say in words how it ended."""
        self.kill()
        self._code = self._popen.wait()
        if self._code >= 0:
            return f"ended with exit status {self._code}"
        try:
            return f"was killed by {signal.Signals(-self._code).name}"
        except ValueError:
            return f"was killed by signal {-self._code}"

    def stage(self) -> Stage:
        """What the engine was doing at its latest heartbeat."""
        return self.block.stage()

    def close(self) -> None:
        """Close all descriptors; the process is to be reaped before."""
        self._undo.close()


def memory_mib(pid: int) -> float | None:
    """Resident memory of a process in MiB; None: it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _environment() -> dict[str, str]:
    """Return the environment with this process's import path, so that both import the same."""
    path = [os.path.join(_working_directory(), entry) for entry in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*path, _PACKAGE_ROOT]),
        "PYTHONUNBUFFERED": "1",
    }
