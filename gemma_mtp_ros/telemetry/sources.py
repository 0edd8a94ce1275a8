# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Sources of readings, and the choice of one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .reading import Reading
from .sysfs import SysfsSource

__all__ = ["KINDS", "NullSource", "Source", "SysfsSource", "open_source"]

KINDS = ("auto", "sysfs", "none")
"""Values of parameter `telemetry.source`."""


class Source(Protocol):
    """Where readings come from. One thread reads; `close` comes after the last read.

    `read` leaves unknown what it cannot know. It may raise when the source as a whole fails; the
    watchdog then takes everything for unknown.
    """

    @property
    def name(self) -> str:
        """Value of `Reading.source`."""

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
        return Reading(stamp_s=self._clock(), wall_s=time.time())

    def close(self) -> None:
        """Nothing is held."""


def open_source(kind: str = "auto", root: str | os.PathLike[str] = "/") -> Source:
    """The source named `kind` (`KINDS`); `auto` is the best that this machine has.

    On a machine without sensors `auto` and `sysfs` give readings that know nothing, and keep
    looking, as a driver may load after the node.

    Raises:
        ValueError: an unknown kind, or a root that is no directory.
    """
    if kind not in KINDS:
        raise ValueError(
            f"telemetry.source {kind!r} is not one of {', '.join(KINDS)}; use auto to take the "
            "best that this machine has."
        )
    if kind == "none":
        return NullSource()
    if "\0" in os.fspath(root) or not Path(root).is_dir():
        raise ValueError(
            f"telemetry.root {os.fspath(root)!r} is not a directory; name the directory that holds "
            "sys/, proc/, etc/ and var/, which is / on the robot itself."
        )
    return SysfsSource(root)
