# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Frames between host and engine: four bytes of length (little endian), then a message as JSON."""

from __future__ import annotations

import collections
import socket
import struct
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Longest frame; a prompt of ``api.MAX_PROMPT_BYTES`` fits even if JSON escapes all of it."""

_LENGTH = struct.Struct("<I")


class FrameError(ValueError):
    """Bytes that are no frame, or a message that cannot be framed."""


def encode(message: BaseModel) -> bytes:
    """Return ``message`` as one frame.

    Raises:
        FrameError: the message is too long, or holds text that is not Unicode (a lone surrogate).
    """
    try:
        body = message.model_dump_json().encode()
    except PydanticSerializationError as error:
        raise FrameError(f"text is not valid Unicode: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"{len(body)} bytes are more than {MAX_FRAME_BYTES}; send less text")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes, however it is chopped, into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take more of the stream; give the bodies that are now whole, to be used to the end.

        Raises:
            FrameError: a length beyond :data:`MAX_FRAME_BYTES`, after the good frames before it;
                the stream cannot be used further.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise FrameError(f"a frame of {length} bytes is more than {MAX_FRAME_BYTES}")
                end = start + _LENGTH.size + length
                if len(self._buffer) < end:
                    break
                body = bytes(self._buffer[start + _LENGTH.size : end])
                start = end
                yield body
        finally:
            del self._buffer[:start]


class FrameWriter:
    """Frames on their way out through a non-blocking socket."""

    def __init__(self) -> None:
        self._frames: collections.deque[memoryview] = collections.deque()

    def __bool__(self) -> bool:
        """Whether anything still waits to be sent."""
        return bool(self._frames)

    def add(self, frame: bytes) -> None:
        """Append a frame; nothing is sent yet."""
        self._frames.append(memoryview(frame))

    def flush(self, sock: socket.socket) -> None:
        """Send as much as the socket takes now.

        Raises:
            OSError: the other end is gone; what was not sent is dropped.
        """
        while self._frames:
            view = self._frames[0]
            try:
                sent = sock.send(view)
            except BlockingIOError:
                return
            except OSError:
                self._frames.clear()
                raise
            if sent == len(view):
                self._frames.popleft()
            else:
                self._frames[0] = view[sent:]
