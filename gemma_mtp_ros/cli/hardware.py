# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of ``gemma-mtp doctor`` on the board: sensors, devices, power mode, memory, disk."""

from __future__ import annotations

import getpass
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..telemetry import plain
from ..telemetry.discover import MODE_NAMES, MODE_STATUS, discover, is_jetson, mode_names
from ..telemetry.files import FileTree
from ..telemetry.reader import SourceReader
from ..telemetry.reading import Reading, Throttle
from ..telemetry.sources import open_source
from .finding import Finding, Machine, error, ok, warning

READING_S = 5.0
LEAST_MIB, ENOUGH_MIB = 1024, 4096
"""Free memory below which the engine cannot start, and below which no released pair fits."""
LEAST_BYTES, ENOUGH_BYTES = 10**9, 12 * 10**9
"""Free disk: below the first little can be kept, below the second no released pair fits (E2B in
bfloat16 is the smallest, about 10 GB)."""
SMALL_BOARD_MIB = 16 * 1024
SWAPPED_MIB = 256
DEVICES = (
    ("dev", r"nvmap|nvhost-.*|nvgpu|nvidia\d+|nvidiactl|nvidia-uvm"),
    ("dev/dri", r"renderD\d+"),
)
RELEASE = "etc/nv_tegra_release"
JETPACKS = {"35": "JetPack 5", "36": "JetPack 6", "38": "JetPack 7", "39": "JetPack 7"}


def sensor_files(tree: FileTree) -> list[str]:
    """Every file that the sources of this machine read, from their own discovery."""
    if is_jetson(tree):
        layout = discover(tree)
        files: list[str | None] = [
            *layout.zones.values(),
            *(file for _, file in layout.clock_cutters),
            *(file for pair in layout.rails.values() for file in pair),
            layout.total_power,
            layout.gpu_clock and f"{layout.gpu_clock}/cur_freq",
            layout.gpu_load,
            layout.memory_clock,
            *layout.over_current,
            *(file for file in (MODE_STATUS, MODE_NAMES) if tree.exists(file)),
        ]
    else:
        places = plain.find(tree)
        files = [
            *places.zones.values(),
            *(file for _, file in places.clock_cutters),
            *(domain.energy for domain in places.domains.values()),
            *places.throttle_counts.values(),
        ]
    return [file for file in files if file]


def forbidden(tree: FileTree, files: Iterable[str]) -> list[str]:
    """Those of the files that this user may not read."""
    found = []
    for file in files:
        try:
            os.close(os.open(tree.root / file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
        except PermissionError:
            found.append(file)
        except OSError:
            pass  # not there, or not now: the reading says so
    return found


def take_reading(root: Path) -> tuple[Reading | None, str]:
    """A reading of the best source, and why there is none."""
    reader = SourceReader(open_source("auto", root))
    try:
        reader.ask()
        if not reader.wait(READING_S):
            return None, f"a sensor did not answer within {READING_S:g} s"
        answer = reader.answer
        if answer is None or answer.reading is None:
            return None, f"the source failed ({answer and answer.error!r})"
        return answer.reading, ""
    finally:
        reader.close(0.1)


def judge_reading(reading: Reading) -> list[Finding]:
    """What the watchdog will know."""
    zones = [zone for zone, celsius in reading.zones.items() if celsius is not None]
    silent = [zone for zone in reading.zones if zone not in zones]
    findings = []
    if reading.temperature_c is None:
        why = f" ({reading.note.rstrip('.')})" if reading.note else ""
        findings.append(
            warning(
                f"no temperature can be read{why}",
                "the watchdog's level stays UNKNOWN; in a container mount /sys and /proc of the "
                "host read-only",
            )
        )
    else:
        said = f"source {reading.source}: {len(zones)} zones"
        said += f" ({', '.join(silent)} silent)" if silent else ""
        margin = "" if reading.margin_c is None else f", {reading.margin_c:.0f} K below its limit"
        said += f", {reading.hottest_zone} {reading.temperature_c:.1f} degC{margin}"
        if reading.power_w is not None:
            said += f", {reading.power_w:.1f} W"
        findings.append(ok(said))
        if reading.note:
            findings.append(warning(reading.note.rstrip("."), "the rest is read without it"))
    if reading.throttle is Throttle.YES:
        findings.append(
            warning(
                f"the clocks are being cut now ({reading.throttle_reason})",
                "cool the board: a fan, more air, a lower power mode",
            )
        )
    return findings


def sensors(machine: Machine) -> list[Finding]:
    """What the watchdog can read here."""
    tree = machine.tree
    findings = []
    closed = forbidden(tree, sensor_files(tree))
    if closed:
        shown = ", ".join(f"{tree.root / file}" for file in closed[:3])
        findings.append(
            warning(
                f"{len(closed)} files of sensors may not be read by {user()}: {shown}"
                f"{', ...' if len(closed) > 3 else ''}",
                "open them to a group of this user with a udev rule (GROUP, MODE 0440)",
            )
        )
    reading, why = take_reading(machine.root)
    if reading is None:
        findings.append(error(why, "dmesg says which driver hangs; name another telemetry.source"))
        return findings
    return findings + judge_reading(reading)


def user() -> str:
    """Who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def board(machine: Machine) -> list[Finding]:
    """Which board and which release of its system."""
    tree = machine.tree
    model = tree.text("proc/device-tree/model") or tree.text(plain.PRODUCT) or "an unnamed machine"
    if not is_jetson(tree):
        return [ok(f"{model}: no Jetson")]
    text = tree.text(RELEASE) or ""
    found = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text)
    if found is None:
        return [ok(f"{model}")]
    jetpack = JETPACKS.get(found[1], "a JetPack that is not known here")
    return [ok(f"{model}, L4T {found[1]}.{found[2]} ({jetpack})")]


def power_mode(machine: Machine) -> list[Finding]:
    """The power mode, as the watchdog reads it."""
    if not is_jetson(machine.tree):
        return [ok("no power modes: this is no Jetson")]
    reading, why = take_reading(machine.root)
    modes = list(mode_names(machine.tree).values())
    if reading is None or reading.power_mode is None:
        return [
            warning(
                f"the power mode is unknown{f': {why}' if why else ''}",
                f"{machine.root / MODE_STATUS} and {machine.root / MODE_NAMES} say it; in a "
                "container mount both read-only",
            )
        ]
    others = [mode for mode in modes if mode != reading.power_mode]
    return [ok(f"power mode {reading.power_mode} (others: {', '.join(others) or 'none'})")]


def devices(machine: Machine) -> list[Finding]:
    """Whether this user may use the GPU."""
    tree = machine.tree
    files = [
        f"{folder}/{name}" for folder, names in DEVICES for name in tree.entries(folder, names)
    ]
    if not files:
        if not is_jetson(tree):
            return [ok("no GPU of NVIDIA")]
        return [
            warning(
                f"there are no device files of a GPU below {tree.root / 'dev'}",
                "in a container start with --runtime nvidia",
            )
        ]
    closed = [file for file in files if not os.access(tree.root / file, os.R_OK | os.W_OK)]
    if closed:
        return [
            error(
                f"{user()} may not use {tree.root / closed[0]}",
                f"sudo usermod -aG video,render {user()}, then log in again; in a container add "
                "the groups by number",
            )
        ]
    return [ok(f"{user()} may use {len(files)} device files of the GPU")]


def meminfo(tree: FileTree) -> dict[str, int]:
    """MiB by name, from /proc/meminfo."""
    text = tree.text("proc/meminfo", limit=1 << 14) or ""
    return {name: int(kib) // 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}


def memory(machine: Machine) -> list[Finding]:
    """Free memory."""
    found = meminfo(machine.tree)
    if "MemAvailable" not in found:
        return [
            warning(
                f"the free memory is unknown: {machine.root / 'proc/meminfo'} cannot be read",
                "mount /proc of the host",
            )
        ]
    free, total = found["MemAvailable"], found.get("MemTotal", 0)
    said = f"{free} MiB of memory are free of {total}"
    remedy = "end what is not needed (a desktop ends with sudo systemctl isolate "
    remedy += "multi-user.target); gemma-mtp plan says what fits"
    if free < LEAST_MIB:
        return [error(f"{said}, less than the {LEAST_MIB} that the engine itself needs", remedy)]
    if free < ENOUGH_MIB:
        return [
            warning(f"{said}, less than the {ENOUGH_MIB} of the smallest released pair", remedy)
        ]
    return [ok(said)]


def swap(machine: Machine) -> list[Finding]:
    """Swap, in files and in zram."""
    text = machine.tree.text("proc/swaps", limit=1 << 14)
    if text is None:
        return [ok("no swap is set up")]
    areas: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[1:]:
        parts = line.split()
        if len(parts) >= 4 and parts[2].isdecimal() and parts[3].isdecimal():
            areas[parts[0]] = int(parts[2]) // 1024, int(parts[3]) // 1024
    return judge_swap(areas, meminfo(machine.tree).get("MemTotal", 0))


def judge_swap(areas: Mapping[str, tuple[int, int]], total_mib: int) -> list[Finding]:
    """Args: size and use in MiB by name of the area; memory of the board."""
    size, used = (sum(area[i] for area in areas.values()) for i in (0, 1))
    zram = sum(area[0] for name, area in areas.items() if "zram" in name)
    findings = []
    if used > SWAPPED_MIB:
        findings.append(
            warning(
                f"{used} MiB are swapped out: the memory has been short",
                "end what is not needed before the model is loaded",
            )
        )
    if zram and 0 < total_mib <= SMALL_BOARD_MIB:
        findings.append(
            warning(
                f"{zram} MiB of zram compress pages within the memory that the model needs",
                "sudo systemctl disable nvzramconfig, reboot, and make a swap file on an SSD "
                "instead",
            )
        )
    if not findings:
        findings.append(ok(f"{size} MiB of swap, {used} in use" if areas else "no swap is set up"))
    return findings


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps checkpoints, by its documented variables."""
    given = environment.get("HF_HUB_CACHE")
    if given:
        return Path(given).expanduser()
    cache = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or os.path.join(cache, "huggingface")
    return Path(home).expanduser() / "hub"


def disk(machine: Machine) -> list[Finding]:
    """Room for checkpoints."""
    folder = cache_folder(machine.environment)
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return [
            error(
                f"checkpoints cannot be kept in {folder}: {user()} may not write {place}",
                "set HF_HOME to a folder that can be written",
            )
        ]
    return [judge_disk(folder, shutil.disk_usage(place).free)]


def judge_disk(folder: Path, free: int) -> Finding:
    """Whether a checkpoint of any size can be kept. Bytes."""
    said = f"{free / 1e9:.1f} GB are free for checkpoints in {folder}"
    remedy = "free some, or set HF_HOME to a folder on a larger disk"
    if free < LEAST_BYTES:
        return error(said, remedy)
    if free < ENOUGH_BYTES:
        return warning(f"{said}, less than the smallest released pair takes", remedy)
    return ok(said)
