# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the sensors of a board are in its file tree.

hwmon and cooling-device numbers change at each boot, so everything is found by `name` or `type`.
Names of zones, rails and clocks: Jetson Orin (JetPack 5 to 7) and Thor (JetPack 7); other hosts
give what they share with these (thermal zones, CPU temperatures of hwmon).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection

from .files import FileTree
from .reading import TRIP_RANGE_C, Trips

THERMAL = "sys/class/thermal"
HWMON = "sys/class/hwmon"
DEVFREQ = "sys/class/devfreq"
MODEL = "proc/device-tree/model"
MODE_STATUS = "var/lib/nvpmodel/status"
MODE_NAMES = "etc/nvpmodel.conf"

CLOCK_CUTTERS = (
    "*-throttle-alert",
    "devfreq-*",
    "thermal-devfreq-*",
    "cpufreq-*",
    "thermal-cpufreq-*",
)
"""Types of cooling devices whose state above 0 means that a clock is being cut."""

NO_CLOCK_CUTTERS = ("hot-surface-alert", "pwm-fan", "*[Ff]an*")
"""Types of cooling devices that cut no clock; a trip point bound to these alone is no limit."""

HOT_SURFACE_TRIP_C = 70.0
"""Orin's passive trip for its hot-surface warning. A kernel that does not list the bindings of
trip points does not say so; then a passive trip up to here is the warning's."""

GPU_CLOCKS = r"gpu-gpc-\d+|[0-9a-f]+\.(gpu|ga10b|gv11b|gp10b)"
GPU_LOADS = ("sys/devices/platform/gpu.0/load", "sys/devices/gpu.0/load")
CPU_SENSORS = ("coretemp", "k10temp", "zenpower")
INA3221_CHANNELS = (1, 2, 3)  # in4..in6 are shunt voltages, in7 their sum
TOTAL_RAIL = "VDD_IN"
DISJOINT_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
"""AGX Orin has no rail for the whole; these three make it up."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Paths relative to the root.

    devices: what stood in the class folders.
    identities: what the devices' name and label files said.
    """

    devices: tuple[list[str], ...]
    identities: dict[str, str]
    zones: dict[str, str]  # zone name -> file in m degC
    trips: dict[str, Trips]
    clock_cutters: tuple[tuple[str, str], ...]  # (type, file with the state)
    rails: dict[str, tuple[str, str]]  # label -> (mV file, mA file)
    total_power: str | None  # uW file
    gpu_clock: str | None  # devfreq folder
    gpu_load: str | None  # per mille
    over_current: tuple[str, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to read."""
        return not (
            self.zones
            or self.clock_cutters
            or self.rails
            or self.total_power
            or self.gpu_clock
            or self.gpu_load
        )


def discover(tree: FileTree) -> Layout:
    """Look through the whole tree once."""
    devices = _devices(tree)  # first: what comes while we look is then seen as new
    identities: dict[str, str] = {}
    coolers = _named(tree, THERMAL, r"cooling_device\d+", "type", identities)
    zones, trips = _thermal_zones(tree, [kind for _, kind in coolers], identities)
    monitors = _named(tree, HWMON, r"hwmon\d+", "name", identities)
    for folder, name in monitors:
        if name in CPU_SENSORS:
            _cpu_sensors(tree, folder, name, identities, zones, trips)
    clocks = tree.entries(DEVFREQ, GPU_CLOCKS)
    gpu_clock = f"{DEVFREQ}/{clocks[0]}" if clocks else None
    loads = [*GPU_LOADS, *([f"{gpu_clock}/device/load"] if gpu_clock else [])]
    return Layout(
        devices=devices,
        identities=identities,
        zones=zones,
        trips=trips,
        clock_cutters=tuple(
            (kind, f"{folder}/cur_state") for folder, kind in coolers if _is(kind, CLOCK_CUTTERS)
        ),
        rails=_rails(tree, [folder for folder, name in monitors if name == "ina3221"], identities),
        total_power=next(
            (f"{folder}/power1_input" for folder, n in monitors if n == "ina238"), None
        ),
        gpu_clock=gpu_clock,
        gpu_load=next((path for path in loads if tree.exists(path)), None),
        over_current=tuple(
            f"{folder}/{counter}"
            for folder, name in monitors
            if name == "soctherm_oc"
            for counter in tree.entries(folder, r"oc\d+_event_cnt")
        ),
    )


def moved(tree: FileTree, layout: Layout) -> bool:
    """Whether a device came, left, or bears another name or label than when the layout was made."""
    return _devices(tree) != layout.devices or any(
        tree.text(path) != name for path, name in layout.identities.items()
    )


def mode_names(tree: FileTree) -> dict[int, str]:
    """Power mode names by id, from lines such as `< POWER_MODEL ID=2 NAME=MAXN_SUPER >`."""
    text = tree.text(MODE_NAMES, limit=1 << 18) or ""
    lines = re.findall(r"^\s*<\s*POWER_MODEL\s+ID=(\d{1,9})\s+NAME=([^\s>]+)", text, re.MULTILINE)
    return {int(number): name for number, name in lines}


def mode_id(tree: FileTree) -> int | None:
    """Id of the power mode, from a status such as `pmode:0002 fmode:quiet`."""
    found = re.match(r"pmode:(\d{1,9})(\s|$)", tree.text(MODE_STATUS) or "")
    return int(found[1]) if found else None


def _devices(tree: FileTree) -> tuple[list[str], ...]:
    return tuple(tree.entries(folder, ".*") for folder in (THERMAL, HWMON, DEVFREQ))


def _is(kind: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns)


def _named(
    tree: FileTree, folder: str, pattern: str, file: str, identities: dict[str, str]
) -> list[tuple[str, str]]:
    """(folder, name) of the numbered entries that say their name."""
    found = []
    for entry in tree.entries(folder, pattern):
        path = f"{folder}/{entry}"
        if (name := tree.text(f"{path}/{file}")) is not None:
            identities[f"{path}/{file}"] = name
            found.append((path, name))
    return found


def _unique(name: str, taken: Collection[str]) -> str:
    """`name`, or `name#2` and so on where several bear it."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}#{number}"
    return unique


def _thermal_zones(
    tree: FileTree, coolers: list[str], identities: dict[str, str]
) -> tuple[dict[str, str], dict[str, Trips]]:
    zones: dict[str, str] = {}
    trips: dict[str, Trips] = {}
    for folder, kind in _named(tree, THERMAL, r"thermal_zone\d+", "type", identities):
        name = _unique(kind, zones)
        zones[name] = f"{folder}/temp"
        trips[name] = _zone_trips(tree, folder, coolers)
    return zones, trips


def _zone_trips(tree: FileTree, folder: str, coolers: list[str]) -> Trips:
    bound: dict[int, list[str]] = {}
    for link in tree.entries(folder, r"cdev\d+"):
        kind = tree.text(f"{folder}/{link}/type")
        trip = tree.integer(f"{folder}/{link}_trip_point")
        if kind is not None and trip is not None:
            bound.setdefault(trip, []).append(kind)
    throttles: list[tuple[float, float | None]] = []
    criticals: list[float] = []
    for entry in tree.entries(folder, r"trip_point_\d+_temp"):
        stem = entry.removesuffix("_temp")
        celsius = tree.number(f"{folder}/{entry}", 1000, *TRIP_RANGE_C)
        kind = tree.text(f"{folder}/{stem}_type")
        if celsius is None:
            continue
        if kind == "critical":
            criticals.append(celsius)
        elif kind == "passive":
            kinds = bound.get(int(stem.removeprefix("trip_point_")), [])
            warns_only = all(_is(kind, NO_CLOCK_CUTTERS) for kind in kinds)
            if not kinds:
                warns_only = celsius <= HOT_SURFACE_TRIP_C and "hot-surface-alert" in coolers
            if not warns_only:
                hysteresis = tree.number(f"{folder}/{stem}_hyst", 1000, 0.0, 20.0)
                throttles.append((celsius, hysteresis))
    throttle, hysteresis_c = min(throttles, key=lambda trip: trip[0], default=(None, None))
    return Trips(throttle, min(criticals, default=None), hysteresis_c)


def _label(tree: FileTree, path: str, identities: dict[str, str]) -> str | None:
    label = tree.text(path)
    if label is not None:
        identities[path] = label
    return label


def _cpu_sensors(
    tree: FileTree,
    folder: str,
    name: str,
    identities: dict[str, str],
    zones: dict[str, str],
    trips: dict[str, Trips],
) -> None:
    """Temperatures of an x86 CPU; its `crit` is where the processor cuts its own clocks."""
    for entry in tree.entries(folder, r"temp\d+_input"):
        stem = entry.removesuffix("_input")
        label = _label(tree, f"{folder}/{stem}_label", identities)
        zone = _unique(f"{name}:{label or stem}", zones)
        zones[zone] = f"{folder}/{entry}"
        trips[zone] = Trips(throttle_c=tree.number(f"{folder}/{stem}_crit", 1000, *TRIP_RANGE_C))


def _rails(
    tree: FileTree, folders: list[str], identities: dict[str, str]
) -> dict[str, tuple[str, str]]:
    rails: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for channel in INA3221_CHANNELS:
            label = _label(tree, f"{folder}/in{channel}_label", identities)
            if label is None or label.upper() == "NC":
                continue
            rails[_unique(label, rails)] = (
                f"{folder}/in{channel}_input",
                f"{folder}/curr{channel}_input",
            )
    return rails
