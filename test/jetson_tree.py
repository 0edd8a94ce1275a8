# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Lays a board's file tree out in a directory, and changes it while it is being read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType

FIXTURES = Path(__file__).resolve().parent / "fixtures"

ORIN_NANO = "orin_nano_super_r36"
AGX_ORIN = "agx_orin_r36"
AGX_THOR = "agx_thor_r38"


class JetsonTree:
    """The files of `board` (a JSON file of `fixtures/`; None: no files) below `root`.

    A context manager: EAGAIN needs open FIFOs, which are closed at the end.
    """

    def __init__(self, root: str | os.PathLike[str], board: str | None = None) -> None:
        self.root = Path(root)
        self._fifos: dict[Path, int] = {}
        if board is not None:
            for path, content in json.loads((FIXTURES / f"{board}.json").read_text()).items():
                if isinstance(content, str):
                    self.write(path, content)
                elif content == {"errno": "EAGAIN"}:
                    self.never_ready(path)
                else:
                    raise ValueError(f"{board}.json: {path} holds {content!r}, which is no file")

    def write(self, path: str, content: str | bytes | int) -> None:
        """Replace a file in one step, so that a reader never sees half of it."""
        place = self._clear(path)
        new = place.with_name(f".{place.name}.new")
        new.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        os.replace(new, place)

    def never_ready(self, path: str) -> None:
        """Let non-blocking reads of the file fail with EAGAIN (blocking ones would hang)."""
        place = self._clear(path)
        place.unlink(missing_ok=True)
        os.mkfifo(place)
        # Without a writer, a read of a FIFO would say end of file.
        self._fifos[place] = os.open(place, os.O_RDWR | os.O_NONBLOCK)

    def answer(self, path: str, content: bytes) -> None:
        """Let one read of a file that was `never_ready` end with `content`."""
        os.write(self._fifos[self.root / path], content)

    def remove(self, path: str) -> None:
        """Take a file or folder away."""
        place = self.root / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()

    def move(self, path: str, to: str) -> None:
        """Rename a file or folder."""
        (self.root / path).rename(self.root / to)

    def bind(self, zone: int, link: int, cooling_device: int, trip: int) -> None:
        """Say as the kernel does that a zone's trip point drives a cooling device."""
        folder = self.root / f"sys/class/thermal/thermal_zone{zone}"
        (folder / f"cdev{link}").symlink_to(f"../cooling_device{cooling_device}")
        (folder / f"cdev{link}_trip_point").write_text(f"{trip}\n")

    def close(self) -> None:
        """Close the FIFOs."""
        while self._fifos:
            os.close(self._fifos.popitem()[1])

    def __enter__(self) -> JetsonTree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _clear(self, path: str) -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place in self._fifos:
            os.close(self._fifos.pop(place))
            place.unlink()
        return place
