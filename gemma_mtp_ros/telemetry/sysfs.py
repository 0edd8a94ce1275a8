# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A board read through its files: what `cat` would show, without root and without tools."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

from .discover import (
    DISJOINT_RAILS,
    FOLDERS,
    MODEL,
    REDISCOVER_S,
    TOTAL_RAIL,
    Layout,
    discover,
    is_thor,
    mode_id,
    mode_names,
    moved,
)
from .files import FileTree
from .rates import Rate
from .reading import TEMPERATURE_RANGE_C, Reading, Throttle, plausible, summarise

NOTHING = "No sensor of a Jetson was found below {}."


class SysfsSource:
    """Reads /sys and /proc below `root`.

    The places are found once and kept. They are looked for again when a device came, left or bears
    another name or label than before, and every `REDISCOVER_S`.
    A tree without sensors gives readings that know nothing, with source "none".

    gpu_load: where a Thor's load comes from, 0..1, as no file of it has it. On other boards it is
    not asked.
    """

    name = "sysfs"

    def __init__(
        self,
        root: str | os.PathLike[str] = "/",
        clock: Callable[[], float] = time.monotonic,
        gpu_load: Callable[[], float | None] | None = None,
    ) -> None:
        self._tree = FileTree(root)
        self._clock = clock
        self._gpu_load = gpu_load
        self._over_current = Rate()
        self._layout: Layout | None = None
        self._discovered_s = 0.0
        self._board: str | None = None
        self._mode_names: dict[int, str] = {}

    def read(self) -> Reading:
        """What the files say now. Raises nothing for what they hold."""
        now_s = self._clock()
        layout = self._layout
        if (
            layout is None
            or now_s - self._discovered_s >= REDISCOVER_S
            or moved(self._tree, FOLDERS, layout.devices, layout.identities)
        ):
            layout = self._discover(now_s)
        return self._read(layout, now_s)

    def close(self) -> None:
        """Nothing is held open between readings."""

    def _discover(self, now_s: float) -> Layout:
        self._layout = discover(self._tree)
        self._discovered_s = now_s
        self._board = self._tree.text(MODEL)
        self._mode_names = mode_names(self._tree)
        return self._layout

    def _read(self, layout: Layout, now_s: float) -> Reading:
        tree = self._tree
        zones = {
            zone: tree.number(path, 1000, *TEMPERATURE_RANGE_C)
            for zone, path in layout.zones.items()
        }
        heat = summarise(zones, layout.trips)
        rails = {
            label: self._rail_power(volts, amperes)
            for label, (volts, amperes) in layout.rails.items()
        }
        throttle, throttle_reason = self._throttle(layout)
        events = self._events(layout)
        clock = layout.gpu_clock
        power_mode = self._power_mode()
        nothing = layout.empty and power_mode is None
        return Reading(
            stamp_s=now_s,
            wall_s=time.time(),
            source="none" if nothing else self.name,
            note=NOTHING.format(tree.root) if nothing else "",
            board=self._board,
            zones=zones,
            trips=layout.trips,
            **dataclasses.asdict(heat),
            rails=rails,
            power_w=self._power(layout, rails),
            gpu_clock_mhz=tree.number(f"{clock}/cur_freq", 10**6, 0, 1e4) if clock else None,
            gpu_max_clock_mhz=tree.number(f"{clock}/max_freq", 10**6, 0, 1e4) if clock else None,
            gpu_load=self._load(layout),
            memory_clock_mhz=tree.number(layout.memory_clock, 10**6, 0, 1e5)
            if layout.memory_clock
            else None,
            throttle=throttle,
            throttle_reason=throttle_reason,
            over_current_events=events,
            over_current_per_s=self._over_current.update(events, now_s),
            power_mode=power_mode,
        )

    def _events(self, layout: Layout) -> int | None:
        counts = [self._tree.integer(path) for path in layout.over_current]
        known = [count for count in counts if count is not None and count >= 0]
        return sum(known) if known and len(known) == len(counts) else None

    def _load(self, layout: Layout) -> float | None:
        if layout.gpu_load is not None:
            return self._tree.number(layout.gpu_load, 1000, 0, 1)
        if self._gpu_load is not None and is_thor(layout):
            return plausible(self._gpu_load(), 0.0, 1.0)
        return None

    def _rail_power(self, millivolts: str, milliamperes: str) -> float | None:
        """W. A shunt without load reads a few mA below zero: no power."""
        voltage = self._tree.number(millivolts, 1000, 0, 100)
        current = self._tree.number(milliamperes, 1000, -0.1, 100)
        if voltage is None or current is None:
            return None
        return voltage * max(current, 0.0)

    def _power(self, layout: Layout, rails: dict[str, float | None]) -> float | None:
        """W of the whole board; parts are summed only where they are known to make up the whole."""
        if layout.total_power is not None:
            return self._tree.number(layout.total_power, 10**6, 0, 1000)
        if TOTAL_RAIL in rails:
            return rails[TOTAL_RAIL]
        parts = [rails.get(label) for label in DISJOINT_RAILS]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _throttle(self, layout: Layout) -> tuple[Throttle, str]:
        states = [(kind, self._tree.integer(path)) for kind, path in layout.clock_cutters]
        at_work = [f"{kind} {state}" for kind, state in states if state is not None and state > 0]
        if at_work:
            return Throttle.YES, ", ".join(at_work[:3]) + (", ..." if len(at_work) > 3 else "")
        if states and all(state == 0 for _, state in states):
            return Throttle.NO, ""
        return Throttle.UNKNOWN, ""

    def _power_mode(self) -> str | None:
        number = mode_id(self._tree)
        if number is None:
            return None
        if number not in self._mode_names:
            self._mode_names = mode_names(self._tree)
        return self._mode_names.get(number)
