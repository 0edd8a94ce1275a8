# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of readings, and the choice of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol

from .auto import AutoSource
from .nvml import NvmlSource
from .plain import PlainSource
from .reading import Reading, unknown
from .sysfs import SysfsSource

__all__ = [
    "KINDS",
    "AutoSource",
    "NullSource",
    "NvmlSource",
    "PlainSource",
    "Source",
    "SysfsSource",
    "open_source",
]

KINDS = ("auto", "sysfs", "nvml", "replay", "plain", "none")
"""Values of parameter `telemetry.source`."""


class Source(Protocol):
    """Where readings come from. One thread at a time calls it.

    `read` leaves unknown what it cannot know. It may raise when the source as a whole fails, and it
    may block, as a sensor's driver can; the watchdog then takes everything for unknown. A `read`
    after `close` takes again what `close` gave back.
    """

    @property
    def name(self) -> str:
        """Value of `Reading.source`, while there is something to read."""

    def read(self) -> Reading:
        """The board now."""

    def close(self) -> None:
        """Give back what is held."""


class NullSource:
    """No sensors: nothing is known."""

    name = "none"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def read(self) -> Reading:
        """A reading with its time stamps alone."""
        return unknown(self._clock(), self.name, "telemetry.source is none.")

    def close(self) -> None:
        """Nothing is held."""


def open_source(
    kind: str = "auto",
    root: str | os.PathLike[str] = "/",
    *,
    trace: str | os.PathLike[str] = "",
    speed: float = 1.0,
    loop: bool = False,
) -> Source:
    """The source named `kind` (`KINDS`); `auto` is the best that this machine has.

    root: where the file tree begins, for auto, sysfs and plain. trace: the recording that replay
    reads, `speed` times as fast as it was recorded, over and over if `loop`.
    On a machine without sensors the readings know nothing and say so (source "none"), and what may
    come, as a driver that loads after the node, is looked for again and again.

    Raises:
        ValueError: an unknown kind, a root that is no directory, or a trace that cannot be
            replayed (`trace.TraceError`).
    """
    if kind not in KINDS:
        raise ValueError(
            f"telemetry.source {kind!r} is not one of {', '.join(KINDS)}; use auto to take the "
            "best that this machine has."
        )
    if kind == "none":
        return NullSource()
    if kind == "nvml":
        return NvmlSource()
    if kind == "replay":
        if not os.fspath(trace):
            raise ValueError(
                "telemetry.source replay needs telemetry.trace; name a file that gemma-mtp record "
                "wrote."
            )
        from .replay import ReplaySource  # brings pydantic, which no other source needs

        return ReplaySource(trace, speed=speed, loop=loop)
    if "\0" in os.fspath(root) or not os.path.isdir(root):
        raise ValueError(
            f"telemetry.root {os.fspath(root)!r} is not a directory; name the directory that holds "
            "sys/, proc/, etc/ and var/, which is / on the robot itself."
        )
    if kind == "sysfs":
        return SysfsSource(root)
    if kind == "plain":
        return PlainSource(root)
    return AutoSource(root, nvml=NvmlSource() if os.path.samefile(root, "/") else None)
