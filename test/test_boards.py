# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Which Jetson module this is, from what its file tree says."""

from __future__ import annotations

from pathlib import Path

import pytest
from jetson_tree import AGX_ORIN, AGX_THOR, ORIN_NANO, JetsonTree

from gemma_mtp_ros.telemetry.boards import (
    MODULES,
    find_module,
    meminfo,
    module_of,
    preset_here,
)
from gemma_mtp_ros.telemetry.files import FileTree

SUPER = "NVIDIA Jetson {} Engineering Reference Developer Kit Super\0"


@pytest.mark.parametrize(
    ("model", "total_gib", "name"),
    [
        (SUPER.format("Orin Nano"), 7.4, "orin-nano-8gb"),
        (SUPER.format("Orin Nano"), 3.3, "orin-nano-4gb"),
        (SUPER.format("Orin NX"), 7.4, "orin-nx-8gb"),
        ("NVIDIA Orin NX Developer Kit", 15.3, "orin-nx-16gb"),
        ("NVIDIA Jetson AGX Orin Developer Kit", 29.8, "agx-orin-32gb"),
        ("NVIDIA Jetson AGX Orin", 61.4, "agx-orin-64gb"),
        ("NVIDIA Jetson T4000 Thor", 61.0, "thor-64gb"),
        ("NVIDIA Jetson AGX Thor Developer Kit", 122.8, "thor-128gb"),
        ("NVIDIA Jetson AGX Thor Developer Kit", 200.0, "thor-128gb"),
    ],
)
def test_a_module_is_known_by_its_model_and_its_memory(
    tmp_path: Path, model: str, total_gib: float, name: str
) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write("proc/device-tree/model", model)
        tree.write("proc/meminfo", f"MemTotal:    {int(total_gib * 2**20)} kB\nMemFree: 1 kB\n")
        found = module_of(FileTree(tmp_path))
        assert found is not None
        assert found.name == name
        assert preset_here(str(tmp_path)) == found.preset


@pytest.mark.parametrize(
    ("board", "begin"), [(ORIN_NANO, "orin-nano"), (AGX_ORIN, "agx-orin"), (AGX_THOR, "thor")]
)
def test_recorded_boards_are_known(tmp_path: Path, board: str, begin: str) -> None:
    with JetsonTree(tmp_path, board):
        found = module_of(FileTree(tmp_path))
    assert found is not None
    assert found.name.startswith(begin)


@pytest.mark.parametrize("model", ["", "Raspberry Pi 5", "NVIDIA Jetson Xavier NX Developer Kit"])
def test_other_machines_are_not(tmp_path: Path, model: str) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write("proc/device-tree/model", model)
        assert module_of(FileTree(tmp_path)) is None
        assert preset_here(str(tmp_path)) == ""


def test_memory_that_is_not_told_is_unknown(tmp_path: Path) -> None:
    with JetsonTree(tmp_path) as tree:
        assert meminfo(FileTree(tmp_path), "MemTotal") is None
        tree.write("proc/meminfo", "MemTotal: much kB\nMemAvailable:\nMemFree: 12 kB\n")
        assert meminfo(FileTree(tmp_path), "MemTotal") is None
        assert meminfo(FileTree(tmp_path), "MemAvailable") is None
        assert meminfo(FileTree(tmp_path), "MemFree") == 12 * 1024


def test_names_are_found_however_they_are_written() -> None:
    for module in MODULES:
        assert find_module(module.name) is module
        assert find_module("Jetson " + module.name.replace("-", "_").upper()) is module
    assert find_module("xavier") is None
