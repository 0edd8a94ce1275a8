# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Readings of hosts that are no Jetson, and the choice of a source."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jetson_tree import AGX_THOR, ORIN_NANO, JetsonTree
from nvml_stand_in import Nvml
from still_clock import Clock

from gemma_mtp_ros.telemetry.auto import DRIVER, AutoSource
from gemma_mtp_ros.telemetry.discover import REDISCOVER_S
from gemma_mtp_ros.telemetry.nvml import NvmlSource
from gemma_mtp_ros.telemetry.plain import PlainSource, total_power
from gemma_mtp_ros.telemetry.rates import Rate
from gemma_mtp_ros.telemetry.reading import Reading, Throttle, Trips
from gemma_mtp_ros.telemetry.sources import KINDS, NullSource, open_source

ZONE = "sys/class/thermal/thermal_zone"
COOLER = "sys/class/thermal/cooling_device"
HWMON = "sys/class/hwmon/hwmon"
RAPL = "sys/class/powercap/intel-rapl:"
CPU = "sys/devices/system/cpu/cpu"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[JetsonTree]:
    """Names as on a laptop with an Intel processor of two cores and four threads."""
    with JetsonTree(tmp_path) as tree:
        tree.write("sys/class/dmi/id/product_name", "Robot Book 14\n")
        tree.write(f"{HWMON}0/name", "nvme\n")
        tree.write(f"{HWMON}0/temp1_input", "80000\n")
        tree.write(f"{HWMON}2/name", "coretemp\n")
        for number, (label, celsius) in enumerate([("Package id 0", 61), ("Core 0", 60)], 1):
            tree.write(f"{HWMON}2/temp{number}_label", f"{label}\n")
            tree.write(f"{HWMON}2/temp{number}_input", f"{celsius}000\n")
            tree.write(f"{HWMON}2/temp{number}_max", "80000\n")
            tree.write(f"{HWMON}2/temp{number}_crit", "100000\n")
        for number, kind in enumerate(["acpitz", "INT3400 Thermal", "x86_pkg_temp", "iwlwifi_1"]):
            tree.write(f"{ZONE}{number}/type", f"{kind}\n")
            tree.write(f"{ZONE}{number}/temp", f"{[27800, 20000, 61000, 85000][number]}\n")
        tree.write(f"{ZONE}0/trip_point_0_type", "critical\n")
        tree.write(f"{ZONE}0/trip_point_0_temp", "119000\n")
        tree.write(f"{COOLER}0/type", "Processor\n")
        tree.write(f"{COOLER}0/cur_state", "0\n")
        tree.write(f"{COOLER}1/type", "intel_powerclamp\n")
        tree.write(f"{COOLER}1/cur_state", "-1\n")
        for domain, name in [("0", "package-0"), ("0:0", "core"), ("1", "psys")]:
            tree.write(f"{RAPL}{domain}/name", f"{name}\n")
            tree.write(f"{RAPL}{domain}/max_energy_range_uj", "262143328850\n")
            tree.write(f"{RAPL}{domain}/energy_uj", "262143000000\n")
        tree.write("sys/class/powercap/intel-rapl-mmio:0/name", "package-0\n")
        tree.write("sys/class/powercap/intel-rapl-mmio:0/energy_uj", "5\n")
        for cpu in range(4):
            tree.write(f"{CPU}{cpu}/topology/physical_package_id", "0\n")
            tree.write(f"{CPU}{cpu}/topology/core_id", f"{cpu % 2}\n")
            for kind in ("core", "package"):
                tree.write(f"{CPU}{cpu}/thermal_throttle/{kind}_throttle_count", "7\n")
        yield tree


def test_laptop(laptop: JetsonTree, clock: Clock) -> None:
    reading = PlainSource(laptop.root, clock).read()
    assert (reading.source, reading.board, reading.note) == ("plain", "Robot Book 14", "")
    assert reading.zones == {
        "acpitz": 27.8,
        "x86_pkg_temp": 61,
        "coretemp:Package id 0": 61,
        "coretemp:Core 0": 60,
    }
    assert reading.hottest_zone == "x86_pkg_temp"
    assert reading.trips["coretemp:Core 0"] == Trips(throttle_c=100)
    assert reading.trips["acpitz"] == Trips(critical_c=119)
    assert (reading.temperature_c, reading.margin_c) == (61, 39)
    assert set(reading.rails) == {"package-0", "core", "psys"}
    assert reading.power_w is None  # a counter alone is no power
    assert reading.throttle is Throttle.UNKNOWN


def test_power_of_energy_counters_across_their_wrap(laptop: JetsonTree, clock: Clock) -> None:
    source = PlainSource(laptop.root, clock)
    source.read()
    clock.now_s += 0.5
    laptop.write(f"{RAPL}0/energy_uj", 262143328850)  # up to the largest value
    laptop.write(f"{RAPL}0:0/energy_uj", 1_000_000)  # and beyond it
    laptop.write(f"{RAPL}1/energy_uj", 9_671_150)
    reading = source.read()
    assert reading.rails == pytest.approx({"package-0": 0.6577, "core": 2.6577, "psys": 20.0})
    assert reading.power_w == pytest.approx(20.0)
    clock.now_s += 0.5
    laptop.write(f"{RAPL}1/energy_uj", 14_671_150)
    assert source.read().power_w == pytest.approx(10.0)


@pytest.mark.parametrize("content", ["", "rubbish", "-5", "9" * 40])
def test_an_energy_counter_that_turns_to_rubbish(
    laptop: JetsonTree, clock: Clock, content: str
) -> None:
    source = PlainSource(laptop.root, clock)
    source.read()
    for _ in range(2):
        clock.now_s += 0.5
        laptop.write(f"{RAPL}1/energy_uj", content)
        assert source.read().rails["psys"] in (None, 0)
    laptop.write(f"{RAPL}1/energy_uj", 0)
    clock.now_s += 0.5
    source.read()
    laptop.write(f"{RAPL}1/energy_uj", 4_000_000)
    clock.now_s += 0.5
    assert source.read().rails["psys"] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("rails", "power_w"),
    [
        ({"psys": 20.0, "package-0": 9.0, "core": 5.0}, 20.0),
        ({"psys": 0.0, "package-0": 9.0, "core": 5.0, "dram": 1.0}, 10.0),
        ({"package-0": 9.0, "package-1": 8.0, "dram": 1.0, "dram#2": 2.0}, 20.0),
        ({"package-0": 9.0, "package-1": None}, None),
        ({"core": 5.0}, None),
        ({}, None),
    ],
)
def test_total_power(rails: dict[str, float | None], power_w: float | None) -> None:
    assert total_power(rails) == power_w


def test_counters_that_root_alone_may_read(
    laptop: JetsonTree, clock: Clock, as_nobody: Callable[[Path], Path]
) -> None:
    for domain in ("0", "0:0", "1"):
        (laptop.root / f"{RAPL}{domain}/energy_uj").chmod(0o400)
    source = PlainSource(as_nobody(laptop.root), clock)
    source.read()
    clock.now_s += 0.5
    reading = source.read()
    assert reading.power_w is None
    assert set(reading.rails.values()) == {None}
    assert "can be read by root alone" in reading.note
    assert f"{RAPL}0/energy_uj" in reading.note
    assert reading.temperature_c == 61


@pytest.fixture
def as_nobody() -> Iterator[Callable[[Path], Path]]:
    """Gives up root's rights, with a copy of a tree in a place that all may enter."""
    folders = []

    def change(tree: Path) -> Path:
        folder = Path(tempfile.mkdtemp())
        folders.append(folder)
        copy = shutil.copytree(tree, folder / "tree")
        folder.chmod(0o755)
        copy.chmod(0o755)
        if os.geteuid() == 0:
            os.seteuid(65534)
        else:  # an owner may read what is 0400
            for file in copy.rglob("energy_uj"):
                file.chmod(0)
        return copy

    yield change
    if os.getuid() == 0:
        os.seteuid(0)
    for folder in folders:
        shutil.rmtree(folder)


def test_counts_of_throttling_are_read_once_a_core_and_package(
    laptop: JetsonTree, clock: Clock
) -> None:
    source = PlainSource(laptop.root, clock)
    source.read()
    clock.now_s += 0.5
    assert source.read().throttle is Throttle.NO
    laptop.write(f"{CPU}2/thermal_throttle/core_throttle_count", "9")  # a sibling of cpu0
    clock.now_s += 0.5
    assert source.read().throttle is Throttle.NO
    laptop.write(f"{CPU}1/thermal_throttle/core_throttle_count", "9")
    laptop.write(f"{CPU}0/thermal_throttle/package_throttle_count", "8")
    clock.now_s += 0.5
    reading = source.read()
    assert reading.throttle is Throttle.YES
    assert reading.throttle_reason == "cpu0 package throttled 2/s, cpu1 core throttled 4/s"
    clock.now_s += 0.5
    assert source.read().throttle is Throttle.NO
    laptop.remove(f"{CPU}1/thermal_throttle/core_throttle_count")
    clock.now_s += 0.5
    assert source.read().throttle is Throttle.UNKNOWN


def test_a_processor_that_the_firmware_slows_down(laptop: JetsonTree) -> None:
    laptop.write(f"{COOLER}0/cur_state", "3")
    reading = PlainSource(laptop.root).read()
    assert (reading.throttle, reading.throttle_reason) == (Throttle.YES, "Processor 3")


@pytest.mark.parametrize(
    ("chip", "files", "trips"),
    [
        ("coretemp", {"crit": 100_000, "max": 80_000}, Trips(throttle_c=100)),
        ("coretemp", {"max": 105_000}, Trips(throttle_c=105)),
        ("coretemp", {"crit": 0, "max": 0}, Trips()),
        ("k10temp", {"max": 70_000}, Trips()),
        ("k10temp", {"crit": 95_000, "max": 70_000}, Trips(throttle_c=95)),
        ("cpu_thermal", {"crit": 110_000}, Trips(critical_c=110)),
        ("acpitz", {"crit": 210_000}, Trips()),
        ("acpitz", {"crit": 20_800}, Trips()),
    ],
)
def test_limits_of_each_chip(
    tmp_path: Path, chip: str, files: dict[str, int], trips: Trips
) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write(f"{HWMON}0/name", chip)
        tree.write(f"{HWMON}0/temp1_input", "50000")
        for name, value in files.items():
            tree.write(f"{HWMON}0/temp1_{name}", value)
        reading = PlainSource(tree.root).read()
    assert reading.zones == {f"{chip}:temp1": 50}
    assert reading.trips == {f"{chip}:temp1": trips}


def test_a_zone_and_its_copy_in_hwmon_count_once(tmp_path: Path) -> None:
    with JetsonTree(tmp_path) as tree:  # as on a Raspberry Pi
        tree.write(f"{ZONE}0/type", "cpu-thermal")
        tree.write(f"{ZONE}0/temp", "48000")
        tree.write(f"{ZONE}0/trip_point_0_type", "critical")
        tree.write(f"{ZONE}0/trip_point_0_temp", "110000")
        tree.write(f"{HWMON}0/name", "cpu_thermal")
        tree.write(f"{HWMON}0/temp1_input", "48000")
        reading = PlainSource(tree.root).read()
    assert reading.zones == {"cpu-thermal": 48}
    assert reading.critical_margin_c == 62


def test_sensors_of_a_plain_host_that_moved(laptop: JetsonTree) -> None:
    source = PlainSource(laptop.root)
    before = source.read()
    laptop.move(f"{HWMON}2", f"{HWMON}5")
    assert source.read().zones == before.zones
    laptop.never_ready(f"{HWMON}5/temp1_input")
    laptop.write(f"{HWMON}5/temp2_input", "rubbish")
    zones = source.read().zones
    assert zones["coretemp:Package id 0"] is zones["coretemp:Core 0"] is None
    assert zones["x86_pkg_temp"] == 61


def test_rate() -> None:
    rate = Rate()
    assert rate.update(5, 0.0) is None
    assert rate.update(7, 0.5) == 4
    assert rate.update(7, 0.5) is None  # no time has passed
    assert rate.update(3, 1.0) is None
    assert rate.update(None, 1.5) is None
    assert rate.update(4, 2.0) is None
    assert rate.update(1, 3.0, wraps_at=10) == 7
    assert rate.update(0, 4.0, wraps_at=0) is None  # a range that cannot be


# --- Which source -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["auto", "sysfs", "plain", "none"])
def test_no_sensors_is_unknown_and_says_so(tmp_path: Path, kind: str) -> None:
    reading = open_source(kind, tmp_path).read()
    bare = Reading(reading.stamp_s, reading.wall_s, source="none", note=reading.note)
    assert reading == bare
    assert reading.throttle is Throttle.UNKNOWN
    assert str(tmp_path) in reading.note or kind == "none"


def test_null_source_knows_nothing() -> None:
    reading = NullSource(clock=lambda: 5.0).read()
    assert (reading.stamp_s, reading.source) == (5.0, "none")


def test_this_machine_reads_without_error() -> None:
    source = open_source()
    for _ in range(2):
        assert source.read().source in ("sysfs", "nvml", "plain", "none")
    source.close()


@pytest.mark.parametrize("kind", ["auto", "plain"])
def test_plain_host(laptop: JetsonTree, kind: str) -> None:
    source = open_source(kind, laptop.root)
    assert (source.read().source, source.name) == ("plain", "plain")


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0"),
        ("proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0"),
        ("var/lib/nvpmodel/status", "pmode:0000"),
        ("etc/nvpmodel.conf", "< POWER_MODEL ID=0 NAME=MAXN >"),
        ("sys/class/devfreq/gpu-gpc-0/cur_freq", "0"),
        ("sys/class/devfreq/17000000.ga10b/cur_freq", "0"),
    ],
)
def test_each_mark_of_a_jetson_is_enough(tmp_path: Path, path: str, content: str) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write(path, content)
        tree.write(f"{ZONE}0/type", "cpu-thermal")
        tree.write(f"{ZONE}0/temp", "48000")
        reading = open_source("auto", tree.root).read()
    assert (reading.source, reading.temperature_c) == ("sysfs", 48)


def test_another_arm_board_is_a_plain_host(tmp_path: Path) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write("proc/device-tree/model", "Radxa ROCK 5B\0")
        tree.write("proc/device-tree/compatible", "radxa,rock-5b\0rockchip,rk3588\0")
        tree.write("sys/class/devfreq/fb000000.gpu/cur_freq", "300000000")
        tree.write(f"{ZONE}0/type", "soc-thermal")
        tree.write(f"{ZONE}0/temp", "40000")
        reading = open_source("auto", tree.root).read()
    assert (reading.source, reading.board, reading.temperature_c) == ("plain", "Radxa ROCK 5B", 40)


def test_sensors_that_appear_after_the_start(tmp_path: Path) -> None:
    source = open_source("auto", tmp_path)
    assert source.read().source == "none"
    with JetsonTree(tmp_path, ORIN_NANO):
        reading = source.read()
    assert (reading.source, source.name) == ("sysfs", "sysfs")
    assert reading.power_mode == "MAXN_SUPER"
    assert reading.temperature_c is not None


def test_a_gpu_is_better_than_a_plain_host(laptop: JetsonTree, clock: Clock) -> None:
    api = Nvml()
    source = AutoSource(laptop.root, clock, NvmlSource(clock, lambda: api))
    reading = source.read()
    assert (reading.source, source.name, reading.temperature_c) == ("nvml", "nvml", 55)
    source.close()
    assert api.open == 0
    assert source.read().temperature_c == 55


def test_a_gpu_whose_driver_loads_later(laptop: JetsonTree, clock: Clock) -> None:
    api = Nvml()
    api.fails_to_open = api.NVML_ERROR_DRIVER_NOT_LOADED
    source = AutoSource(laptop.root, clock, NvmlSource(clock, lambda: api))
    assert source.read().source == "plain"
    assert source.read().note == ""
    laptop.write(DRIVER, "NVRM version")
    assert "An NVIDIA driver is loaded, but NVML cannot be used" in source.read().note
    api.fails_to_open = None
    clock.now_s += REDISCOVER_S
    assert source.read().source == "nvml"


def test_a_missing_nvidia_ml_py_is_said_only_where_there_is_a_driver(
    laptop: JetsonTree, clock: Clock
) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")

    source = AutoSource(laptop.root, clock, NvmlSource(clock, missing))
    assert source.read().note == ""
    laptop.write(DRIVER, "NVRM version")
    reading = source.read()
    assert reading.source == "plain"
    assert "pip install nvidia-ml-py" in reading.note


@pytest.mark.parametrize(("gpu", "load"), [("NVIDIA Thor", 0.37), ("Orin (nvgpu)", None)])
def test_nvml_adds_the_load_on_thor_and_nothing_else(
    tmp_path: Path, clock: Clock, gpu: str, load: float | None
) -> None:
    api = Nvml(name=gpu)
    with JetsonTree(tmp_path, AGX_THOR) as tree:
        reading = AutoSource(tree.root, clock, NvmlSource(clock, lambda: api)).read()
    assert (reading.source, reading.gpu_load) == ("sysfs", load)
    assert reading.temperature_c == pytest.approx(66.625)
    assert reading.power_w == pytest.approx(124.486)
    assert reading.power_mode == "120W"


def test_nvml_is_not_asked_on_orin(tmp_path: Path, clock: Clock) -> None:
    def trap() -> None:
        raise AssertionError("NVML is a stub on Orin")

    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        assert AutoSource(tree.root, clock, NvmlSource(clock, trap)).read().gpu_load == 0.5


def test_another_root_is_never_mixed_with_the_gpu_of_this_machine(laptop: JetsonTree) -> None:
    source = open_source("auto", laptop.root)
    assert isinstance(source, AutoSource)
    assert source._nvml is None


@pytest.mark.parametrize("kind", ["auto", "sysfs", "plain"])
@pytest.mark.parametrize("root", ["nowhere", "a\0b"])
def test_a_root_that_is_no_directory_is_refused(tmp_path: Path, kind: str, root: str) -> None:
    with pytest.raises(ValueError, match=r"telemetry\.root .*not a directory; name the directory"):
        open_source(kind, f"{tmp_path}/{root}")


def test_an_unknown_kind_is_refused() -> None:
    assert KINDS == ("auto", "sysfs", "nvml", "replay", "plain", "none")
    with pytest.raises(ValueError, match=r"'jtop' is not one of auto, sysfs, .*; use auto"):
        open_source("jtop")
