# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Reading small files of /sys and /proc that may block, fail, vanish or hold rubbish."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .reading import plausible

VALUE_LIMIT = 256
"""Bytes read of a file that holds one value."""

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_INTEGER = re.compile(rb"[+-]?[0-9]+")


class FileTree:
    """The files below one root. Nothing here raises for a file's content or absence.

    Files are opened non-blocking and read as bytes: a text-mode read that meets EAGAIN, as
    power-gated thermal zones answer, raises TypeError in Python 3.10 to 3.13.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root)
        self._prefix = os.path.join(os.fspath(root), "")  # joining Paths would double the cost

    def exists(self, path: str) -> bool:
        """Whether `path`, relative to the root, is there (readable or not)."""
        return os.path.exists(self._prefix + path)

    def entries(self, folder: str, pattern: str) -> list[str]:
        """Names in `folder` matching `pattern` in full, ordered by the number they end in."""
        wanted = re.compile(pattern)
        try:
            names = os.listdir(self._prefix + folder)
        except OSError:
            return []
        found = [name for name in names if wanted.fullmatch(name)]
        return sorted(found, key=lambda name: (int("0" + re.findall(r"\d*$", name)[0]), name))

    def read(self, path: str, limit: int = VALUE_LIMIT) -> bytes | None:
        """At most `limit` bytes of `path`; None if it cannot be read now."""
        try:
            file = os.open(self._prefix + path, _FLAGS)
            try:
                return os.read(file, limit)
            finally:
                os.close(file)
        except OSError:  # BlockingIOError (EAGAIN) is one
            return None

    def text(self, path: str, limit: int = VALUE_LIMIT) -> str | None:
        """The file as text without surrounding blanks and NULs; None if unreadable or empty."""
        content = self.read(path, limit)
        if content is None:
            return None
        return content.decode("utf-8", "replace").strip(" \t\r\n\0") or None

    def integer(self, path: str) -> int | None:
        """The integer in the file; None if unreadable or anything else."""
        content = self.read(path)
        if content is None or _INTEGER.fullmatch(content := content.strip(b" \t\r\n\0")) is None:
            return None
        return int(content)

    def number(self, path: str, divisor: int, low: float, high: float) -> float | None:
        """The integer in the file over `divisor`; None if unreadable or outside [low, high]."""
        value = self.integer(path)
        return None if value is None else plausible(value / divisor, low, high)
