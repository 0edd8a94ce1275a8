# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the sensors of a board are in its file tree.

hwmon and cooling-device numbers change at each boot, so everything is found by `name` or `type`.
Names of zones, rails and clocks: Jetson Orin (JetPack 5 to 7) and Thor (JetPack 7). What other
hosts share with these (thermal zones, cooling devices) is found by the same functions; `plain` has
the rest.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Collection, Mapping

from .files import FileTree
from .reading import HYSTERESIS_RANGE_C, TRIP_RANGE_C, Trips

THERMAL = "sys/class/thermal"
HWMON = "sys/class/hwmon"
DEVFREQ = "sys/class/devfreq"
FOLDERS = (THERMAL, HWMON, DEVFREQ)
MODEL = "proc/device-tree/model"
COMPATIBLE = "proc/device-tree/compatible"
MODE_STATUS = "var/lib/nvpmodel/status"
MODE_NAMES = "etc/nvpmodel.conf"

REDISCOVER_S = 30.0
"""A file that came late, or a trip point that was changed, is seen after this long at most."""

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

TEGRA_GPUS = r"gpu-gpc-\d+|17000000\.gpu|[0-9a-f]+\.(ga10b|gv11b|gp10b)"
"""Names of GPU clocks that only a Jetson has; other boards have a `.gpu` at another address."""

GPU_CLOCKS = r"gpu-gpc-\d+|[0-9a-f]+\.(gpu|ga10b|gv11b|gp10b)"
GPU_LOADS = ("sys/devices/platform/gpu.0/load", "sys/devices/gpu.0/load")
MEMORY_CLOCKS = ("sys/kernel/nvpmodel_clk_cap/emc", f"{DEVFREQ}/bwmgr/cur_freq")
"""Orin's cap of the power mode (the actual rate is for root alone); Thor's clock. Hz."""

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
    memory_clock: str | None  # Hz
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
    devices = listing(tree, FOLDERS)  # first: what comes while we look is then seen as new
    identities: dict[str, str] = {}
    coolers = named(tree, THERMAL, r"cooling_device\d+", "type", identities)
    zones, trips = thermal_zones(tree, [kind for _, kind in coolers], identities)
    monitors = named(tree, HWMON, r"hwmon\d+", "name", identities)
    clocks = tree.entries(DEVFREQ, GPU_CLOCKS)
    gpu_clock = f"{DEVFREQ}/{clocks[0]}" if clocks else None
    loads = [*GPU_LOADS, *([f"{gpu_clock}/device/load"] if gpu_clock else [])]
    return Layout(
        devices=devices,
        identities=identities,
        zones=zones,
        trips=trips,
        clock_cutters=tuple(
            (kind, f"{folder}/cur_state")
            for folder, kind in coolers
            if matches(kind, CLOCK_CUTTERS)
        ),
        rails=_rails(tree, [folder for folder, name in monitors if name == "ina3221"], identities),
        total_power=next(
            (f"{folder}/power1_input" for folder, n in monitors if n == "ina238"), None
        ),
        gpu_clock=gpu_clock,
        gpu_load=next((path for path in loads if tree.exists(path)), None),
        memory_clock=next((path for path in MEMORY_CLOCKS if tree.exists(path)), None),
        over_current=tuple(
            f"{folder}/{counter}"
            for folder, name in monitors
            if name == "soctherm_oc"
            for counter in tree.entries(folder, r"oc\d+_event_cnt")
        ),
    )


def moved(
    tree: FileTree,
    folders: tuple[str, ...],
    devices: tuple[list[str], ...],
    identities: Mapping[str, str],
) -> bool:
    """Whether a device came, left, or bears another name or label than when it was looked for."""
    return listing(tree, folders) != devices or any(
        tree.text(path) != name for path, name in identities.items()
    )


def is_jetson(tree: FileTree) -> bool:
    """Whether the tree is that of a Jetson, by its device tree, power modes or GPU clock."""
    return (
        "jetson" in (tree.text(MODEL) or "").lower()
        or "nvidia,tegra" in (tree.text(COMPATIBLE) or "")
        or tree.exists(MODE_STATUS)
        or tree.exists(MODE_NAMES)
        or bool(tree.entries(DEVFREQ, TEGRA_GPUS))
    )


def is_thor(layout: Layout) -> bool:
    """Whether the GPU's clock is that of a Thor."""
    return layout.gpu_clock is not None and "/gpu-gpc-" in layout.gpu_clock


def mode_names(tree: FileTree) -> dict[int, str]:
    """Power mode names by id, from lines such as `< POWER_MODEL ID=2 NAME=MAXN_SUPER >`."""
    text = tree.text(MODE_NAMES, limit=1 << 18) or ""
    lines = re.findall(r"^\s*<\s*POWER_MODEL\s+ID=(\d{1,9})\s+NAME=([^\s>]+)", text, re.MULTILINE)
    return {int(number): name for number, name in lines}


def mode_id(tree: FileTree) -> int | None:
    """Id of the power mode, from a status such as `pmode:0002 fmode:quiet`."""
    found = re.match(r"pmode:(\d{1,9})(\s|$)", tree.text(MODE_STATUS) or "")
    return int(found[1]) if found else None


def listing(tree: FileTree, folders: tuple[str, ...]) -> tuple[list[str], ...]:
    """What stands in each of the folders."""
    return tuple(tree.entries(folder, ".*") for folder in folders)


def matches(kind: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the shell patterns fits."""
    return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns)


def named(
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


def unique(name: str, taken: Collection[str]) -> str:
    """`name`, or `name#2` and so on where several bear it."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}#{number}"
    return unique


def thermal_zones(
    tree: FileTree, coolers: list[str], identities: dict[str, str]
) -> tuple[dict[str, str], dict[str, Trips]]:
    """The kernel's zones: name -> file in m degC, and name -> trip points."""
    zones: dict[str, str] = {}
    trips: dict[str, Trips] = {}
    for folder, kind in named(tree, THERMAL, r"thermal_zone\d+", "type", identities):
        name = unique(kind, zones)
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
            warns_only = all(matches(kind, NO_CLOCK_CUTTERS) for kind in kinds)
            if not kinds:
                warns_only = celsius <= HOT_SURFACE_TRIP_C and "hot-surface-alert" in coolers
            if not warns_only:
                hysteresis = tree.number(f"{folder}/{stem}_hyst", 1000, *HYSTERESIS_RANGE_C)
                throttles.append((celsius, hysteresis))
    throttle, hysteresis_c = min(throttles, key=lambda trip: trip[0], default=(None, None))
    return Trips(throttle, min(criticals, default=None), hysteresis_c)


def label(tree: FileTree, path: str, identities: dict[str, str]) -> str | None:
    """The text of a label file, which is noted among the `identities`."""
    text = tree.text(path)
    if text is not None:
        identities[path] = text
    return text


def _rails(
    tree: FileTree, folders: list[str], identities: dict[str, str]
) -> dict[str, tuple[str, str]]:
    rails: dict[str, tuple[str, str]] = {}
    for folder in folders:
        for channel in INA3221_CHANNELS:
            rail = label(tree, f"{folder}/in{channel}_label", identities)
            if rail is None or rail.upper() == "NC":
                continue
            rails[unique(rail, rails)] = (
                f"{folder}/in{channel}_input",
                f"{folder}/curr{channel}_input",
            )
    return rails
