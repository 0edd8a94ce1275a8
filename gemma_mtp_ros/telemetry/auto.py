# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The best source that a machine has, looked for until there is one."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

from .discover import REDISCOVER_S, is_jetson
from .files import FileTree
from .nvml import NvmlSource
from .plain import PlainSource
from .reading import Reading
from .sysfs import SysfsSource

DRIVER = "proc/driver/nvidia/version"


class AutoSource:
    """A Jetson's files, else a discrete NVIDIA GPU, else what a plain host shows.

    A Thor's files are joined by the GPU's load from NVML. The first two are kept once found. While
    there is neither, they are looked for every `REDISCOVER_S` (at each reading, files alone, while
    nothing at all can be read), as a driver may load after the node.

    nvml: None where `root` is not this machine's, as NVML knows no other.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        clock: Callable[[], float] = time.monotonic,
        nvml: NvmlSource | None = None,
    ) -> None:
        self._tree = FileTree(root)
        self._clock = clock
        self._nvml = nvml
        self._plain = PlainSource(root, clock)
        self._kept: SysfsSource | NvmlSource | None = None
        self._looked_s: float | None = None
        self._nothing = False

    @property
    def name(self) -> str:
        """The kind of the source in use."""
        return self._plain.name if self._kept is None else self._kept.name

    def read(self) -> Reading:
        """The board now, from the source in use."""
        now_s = self._clock()
        if self._kept is None:
            if self._looked_s is None or now_s - self._looked_s >= REDISCOVER_S:
                self._looked_s = now_s
                self._look()
            elif self._nothing:
                self._look_for_jetson()
        if self._kept is not None:
            return self._kept.read()
        reading = self._plain.read()
        self._nothing = reading.source == "none"
        if self._nvml is not None and self._nvml.failure and self._tree.exists(DRIVER):
            note = f"{reading.note} An NVIDIA driver is loaded, but {self._nvml.failure}".strip()
            reading = dataclasses.replace(reading, note=note)
        return reading

    def close(self) -> None:
        """Give back what is held."""
        if self._nvml is not None:
            self._nvml.close()

    def _look(self) -> None:
        self._look_for_jetson()
        if self._kept is None and self._nvml is not None and self._nvml.device() is not None:
            self._kept = self._nvml

    def _look_for_jetson(self) -> None:
        if is_jetson(self._tree):
            load = None if self._nvml is None else self._nvml.load
            self._kept = SysfsSource(self._tree.root, self._clock, load)
