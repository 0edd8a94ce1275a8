# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A host that is no Jetson: CPU temperatures, RAPL energy counters, counts of thermal throttling.

Files and units as the Linux kernel's documentation has them: Documentation/hwmon/coretemp.rst,
k10temp.rst and sysfs-interface.rst, Documentation/power/powercap/powercap.rst, and
Documentation/ABI/testing/sysfs-devices-system-cpu for the counts of throttling.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping

from .discover import (
    CLOCK_CUTTERS,
    HWMON,
    REDISCOVER_S,
    THERMAL,
    label,
    listing,
    matches,
    moved,
    named,
    thermal_zones,
    unique,
)
from .files import FileTree
from .rates import Rate
from .reading import (
    TEMPERATURE_RANGE_C,
    TRIP_RANGE_C,
    Reading,
    Throttle,
    Trips,
    plausible,
    summarise,
)

POWERCAP = "sys/class/powercap"
CPUS = "sys/devices/system/cpu"
PRODUCT = "sys/class/dmi/id/product_name"
FOLDERS = (THERMAL, HWMON, POWERCAP)

CPU_CHIPS = ("coretemp", "k10temp", "zenpower")
"""hwmon drivers of a processor's own sensors. `crit` is where it cuts its clocks (coretemp: the
junction limit; k10temp: hardware temperature control), so no shutdown trip is stated. coretemp's
`max` stands in for a `crit` that is missing; k10temp's is a fixed 70 on a scale of its own."""

FIRMWARE_CHIPS = ("acpitz", "cpu_thermal", "soc_thermal")
"""hwmon copies of thermal zones, of use where the zone itself is not shown. `crit` is the zone's
shutdown trip, `max` is not set by the kernel."""

FOREIGN_ZONES = ("iwlwifi*", "ath??k*", "mt79*", "nvme*", "INT340*", "*battery*", "*charger*")
"""Thermal zones of parts that say nothing about the processor, or of none (INT3400 is virtual)."""

CLOCK_CUTTERS_TOO = (*CLOCK_CUTTERS, "Processor")
"""On x86 the ACPI processor driver is a cooling device too."""

POWER_RANGE_W = (0.0, 3000.0)
UNREADABLE = (
    "The power is unknown: the RAPL counters can be read by root alone "
    "({}; a udev rule that opens energy_uj to a group helps)."
)
NOTHING = "No temperature and no power can be read below {}."


@dataclasses.dataclass(frozen=True)
class Domain:
    """A RAPL domain: its energy counter in uJ, and where that wraps around."""

    energy: str
    range_uj: int | None


@dataclasses.dataclass(frozen=True)
class Places:
    """Where things are; paths relative to the root. See `discover.Layout`."""

    devices: tuple[list[str], ...]
    identities: dict[str, str]
    zones: dict[str, str]
    trips: dict[str, Trips]
    clock_cutters: tuple[tuple[str, str], ...]
    domains: dict[str, Domain]
    throttle_counts: dict[str, str]  # "cpu0 core" -> file

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.zones or self.domains or self.throttle_counts or self.clock_cutters)


class PlainSource:
    """Reads what an ordinary Linux host shows of itself below `root`.

    Power is known from the second reading on. `power_w` is the platform's (RAPL psys) where the
    host has it, else that of the processor packages and their memory; the rest of the machine, a
    graphics card included, is then not in it. `throttle` is YES while a cooling device that cuts
    clocks is at work or a count of throttling grows.
    """

    name = "plain"

    def __init__(
        self, root: str | os.PathLike[str] = "/", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tree = FileTree(root)
        self._clock = clock
        self._places: Places | None = None
        self._looked_s = 0.0
        self._board: str | None = None
        self._energies: dict[str, Rate] = {}
        self._throttlings: dict[str, Rate] = {}

    def read(self) -> Reading:
        """What the files say now. Raises nothing for what they hold."""
        now_s = self._clock()
        places = self._places
        if (
            places is None
            or now_s - self._looked_s >= REDISCOVER_S
            or moved(self._tree, FOLDERS, places.devices, places.identities)
        ):
            places = self._look(now_s)
        return self._read(places, now_s)

    def close(self) -> None:
        """Nothing is held open between readings."""

    def _look(self, now_s: float) -> Places:
        self._places = places = find(self._tree)
        self._looked_s = now_s
        self._board = self._tree.text(PRODUCT) or self._tree.text("proc/device-tree/model")
        self._energies = {name: self._energies.get(name, Rate()) for name in places.domains}
        self._throttlings = {
            name: self._throttlings.get(name, Rate()) for name in places.throttle_counts
        }
        return places

    def _read(self, places: Places, now_s: float) -> Reading:
        tree = self._tree
        zones = {
            zone: tree.number(path, 1000, *TEMPERATURE_RANGE_C)
            for zone, path in places.zones.items()
        }
        heat = summarise(zones, places.trips)
        counts = {name: tree.integer(domain.energy) for name, domain in places.domains.items()}
        rails = {name: self._power(name, places.domains[name], counts, now_s) for name in counts}
        throttle, throttle_reason = self._throttle(places, now_s)
        note = NOTHING.format(tree.root) if places.empty else ""
        if counts and all(count is None for count in counts.values()):
            note = UNREADABLE.format(tree.root / next(iter(places.domains.values())).energy)
        return Reading(
            stamp_s=now_s,
            wall_s=time.time(),
            source="none" if places.empty else self.name,
            note=note,
            board=self._board,
            zones=zones,
            trips=places.trips,
            **dataclasses.asdict(heat),
            rails=rails,
            power_w=total_power(rails),
            power_is_mean=bool(rails),
            throttle=throttle,
            throttle_reason=throttle_reason,
        )

    def _power(
        self, name: str, domain: Domain, counts: Mapping[str, int | None], now_s: float
    ) -> float | None:
        """W over the time since the last reading."""
        count = counts[name]
        if count is not None and count < 0:
            count = None
        rate = self._energies[name].update(count, now_s, domain.range_uj)
        return None if rate is None else plausible(rate / 1e6, *POWER_RANGE_W)

    def _throttle(self, places: Places, now_s: float) -> tuple[Throttle, str]:
        states = [(kind, self._tree.integer(path)) for kind, path in places.clock_cutters]
        rates = [
            (name, self._throttlings[name].update(self._tree.integer(path), now_s))
            for name, path in places.throttle_counts.items()
        ]
        signs = [f"{kind} {state}" for kind, state in states if state is not None and state > 0]
        signs += [f"{name} throttled {rate:.3g}/s" for name, rate in rates if rate]
        if signs:
            return Throttle.YES, ", ".join(signs[:3]) + (", ..." if len(signs) > 3 else "")
        values = [*(state for _, state in states), *(rate for _, rate in rates)]
        if values and None not in values:
            return Throttle.NO, ""
        return Throttle.UNKNOWN, ""


def total_power(rails: Mapping[str, float | None]) -> float | None:
    """W of the platform (psys), else of all packages and their memory; cores are parts of these.

    A psys that reads 0 is not connected.
    """
    platform = rails.get("psys")
    if platform:
        return platform
    parts = [power for name, power in rails.items() if name.startswith(("package-", "dram"))]
    known = [power for power in parts if power is not None]
    return sum(known) if known and len(known) == len(parts) else None


def find(tree: FileTree) -> Places:
    """Look through the whole tree once."""
    devices = listing(tree, FOLDERS)
    identities: dict[str, str] = {}
    coolers = named(tree, THERMAL, r"cooling_device\d+", "type", identities)
    zones, trips = thermal_zones(tree, [kind for _, kind in coolers], identities)
    for zone in [zone for zone in zones if matches(zone, FOREIGN_ZONES)]:
        del zones[zone], trips[zone]
    shown = {zone.partition("#")[0].replace("-", "_") for zone in zones}
    for folder, name in named(tree, HWMON, r"hwmon\d+", "name", identities):
        if name in CPU_CHIPS or (name in FIRMWARE_CHIPS and name not in shown):
            _chip(tree, folder, name, identities, zones, trips)
    return Places(
        devices=devices,
        identities=identities,
        zones=zones,
        trips=trips,
        clock_cutters=tuple(
            (kind, f"{folder}/cur_state")
            for folder, kind in coolers
            if matches(kind, CLOCK_CUTTERS_TOO)
        ),
        domains=_domains(tree, identities),
        throttle_counts=_throttle_counts(tree),
    )


def _chip(
    tree: FileTree,
    folder: str,
    name: str,
    identities: dict[str, str],
    zones: dict[str, str],
    trips: dict[str, Trips],
) -> None:
    for entry in tree.entries(folder, r"temp\d+_input"):
        stem = entry.removesuffix("_input")
        text = label(tree, f"{folder}/{stem}_label", identities)
        zone = unique(f"{name}:{text or stem}", zones)
        zones[zone] = f"{folder}/{entry}"
        limit = tree.number(f"{folder}/{stem}_crit", 1000, *TRIP_RANGE_C)
        if name in FIRMWARE_CHIPS:
            trips[zone] = Trips(critical_c=limit)
            continue
        if limit is None and name == "coretemp":
            limit = tree.number(f"{folder}/{stem}_max", 1000, *TRIP_RANGE_C)
        trips[zone] = Trips(throttle_c=limit)


def _domains(tree: FileTree, identities: dict[str, str]) -> dict[str, Domain]:
    """RAPL domains by name. The control type intel-rapl-mmio repeats the package and is left out;
    AMD processors are listed under intel-rapl too."""
    domains: dict[str, Domain] = {}
    for folder, name in named(tree, POWERCAP, r"intel-rapl(:\d+){1,2}", "name", identities):
        range_uj = tree.integer(f"{folder}/max_energy_range_uj")
        domains[unique(name, domains)] = Domain(f"{folder}/energy_uj", range_uj)
    return domains


def _throttle_counts(tree: FileTree) -> dict[str, str]:
    """Files that count how often a core, and its package, cut clocks for heat since boot.

    Threads of a core share its count and cores of a package share that one: each is read once.
    """
    counts: dict[str, str] = {}
    seen: set[tuple[str, ...]] = set()
    for cpu in tree.entries(CPUS, r"cpu\d+"):
        package = tree.text(f"{CPUS}/{cpu}/topology/physical_package_id") or "?"
        core = tree.text(f"{CPUS}/{cpu}/topology/core_id") or cpu
        for kind, unit in (("core", (package, core)), ("package", (package,))):
            path = f"{CPUS}/{cpu}/thermal_throttle/{kind}_throttle_count"
            if (kind, *unit) not in seen and tree.exists(path):
                seen.add((kind, *unit))
                counts[f"{cpu} {kind}"] = path
    return counts
