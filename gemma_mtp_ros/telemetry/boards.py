# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Jetson modules: how much memory, how fast, and how to tell which one this is.

Memory and bandwidth are those of the vendor's data sheets, in the highest power mode (Orin Nano:
with JetPack 6.2 and later, "Super"); lower modes cap the memory clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from .discover import MODEL
from .files import FileTree

GIB = 2**30
MEMINFO = "proc/meminfo"


@dataclass(frozen=True)
class Module:
    """A module.

    Attributes:
        name: as ``gemma-mtp plan --module`` takes it.
        memory_gib: nominal, shared by CPU and GPU.
        bandwidth_gb_s: of the memory, 1e9 bytes/s.
        preset: overlay in ``config/``.
        cache_mib: that preset's bound of cached prefixes.
        launch_file: what starts the node on it.
    """

    name: str
    title: str
    memory_gib: int
    bandwidth_gb_s: float
    preset: str
    cache_mib: int
    launch_file: str = "orin.launch.py"


THOR = "thor.launch.py"

MODULES = (
    Module("orin-nano-4gb", "Jetson Orin Nano 4GB", 4, 51.0, "orin_nano", 128),
    Module("orin-nano-8gb", "Jetson Orin Nano 8GB", 8, 102.4, "orin_nano", 128),
    Module("orin-nx-8gb", "Jetson Orin NX 8GB", 8, 102.4, "orin_nx", 256),
    Module("orin-nx-16gb", "Jetson Orin NX 16GB", 16, 102.4, "orin_nx", 256),
    Module("agx-orin-32gb", "Jetson AGX Orin 32GB", 32, 204.8, "agx_orin", 1024),
    Module("agx-orin-64gb", "Jetson AGX Orin 64GB", 64, 204.8, "agx_orin", 1024),
    Module("thor-64gb", "Jetson Thor T4000 64GB", 64, 273.0, "thor", 1024, THOR),
    Module("thor-128gb", "Jetson Thor T5000 128GB", 128, 273.0, "thor", 1024, THOR),
)

CACHE_MIB = 256
"""Bound of cached prefixes on any other machine: the parameter's default."""

FAMILIES = (
    ("orin nano", "orin-nano"),
    ("orin nx", "orin-nx"),
    ("agx orin", "agx-orin"),
    ("thor", "thor"),
)
"""Words of the device tree's model string, and how the names of such modules begin."""


def memory_total(tree: FileTree) -> int | None:
    """Bytes of memory that Linux sees; None: it does not tell."""
    return meminfo(tree, "MemTotal")


def meminfo(tree: FileTree, key: str) -> int | None:
    """A size of ``/proc/meminfo`` in bytes; None: it is not there."""
    for line in (tree.text(MEMINFO, limit=1 << 14) or "").splitlines():
        name, _, value = line.partition(":")
        if name == key and value.split()[:1] and value.split()[0].isdigit():
            return int(value.split()[0]) * 1024
    return None


def module_of(tree: FileTree) -> Module | None:
    """The module whose file tree this is; None: no Jetson that is known here.

    The model string names the family, the memory that Linux sees the variant: the smallest whose
    nominal memory is not below it. Without a memory size, the smallest of the family.
    """
    model = (tree.text(MODEL) or "").lower()
    begin = next((name for words, name in FAMILIES if words in model), None)
    if begin is None:
        return None
    family = [module for module in MODULES if module.name.startswith(begin)]
    total = memory_total(tree) or 0
    return next((m for m in family if m.memory_gib * GIB >= total), family[-1])


def find_module(name: str) -> Module | None:
    """The module of this name; spaces, underscores and case do not matter."""
    wanted = name.lower().replace("_", "-").replace(" ", "-").removeprefix("jetson-")
    return next((module for module in MODULES if module.name == wanted), None)


def preset_here(root: str = "/") -> str:
    """Preset of the board that this runs on; empty: none fits."""
    module = module_of(FileTree(root))
    return module.preset if module is not None else ""
