# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Readings of real file trees: the boards as observed, and what can go wrong with their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jetson_tree import AGX_ORIN, AGX_THOR, ORIN_NANO, JetsonTree
from still_clock import Clock

from gemma_mtp_ros.telemetry.discover import REDISCOVER_S
from gemma_mtp_ros.telemetry.files import FileTree
from gemma_mtp_ros.telemetry.reading import Reading, Throttle, Trips, summarise
from gemma_mtp_ros.telemetry.sources import SysfsSource, open_source

ZONE = "sys/class/thermal/thermal_zone"
COOLER = "sys/class/thermal/cooling_device"
HWMON = "sys/class/hwmon/hwmon"


@pytest.fixture
def nano(tmp_path: Path) -> Iterator[JetsonTree]:
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        yield tree


@pytest.fixture
def agx(tmp_path: Path) -> Iterator[JetsonTree]:
    with JetsonTree(tmp_path, AGX_ORIN) as tree:
        yield tree


@pytest.fixture
def thor(tmp_path: Path) -> Iterator[JetsonTree]:
    with JetsonTree(tmp_path, AGX_THOR) as tree:
        yield tree


def read(tree: JetsonTree) -> Reading:
    return open_source("auto", tree.root).read()


def test_orin_nano(nano: JetsonTree) -> None:
    reading = read(nano)
    assert reading.source == "sysfs"
    assert reading.board == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert reading.temperature_c == pytest.approx(51.687)
    assert reading.hottest_zone == "cpu-thermal"
    assert reading.zones["tj-thermal"] == reading.zones["cpu-thermal"] == reading.temperature_c
    assert [zone for zone, celsius in reading.zones.items() if celsius is None] == [
        "cv0-thermal",
        "cv1-thermal",
        "cv2-thermal",
    ]
    assert reading.power_w == pytest.approx(9.25, abs=0.005)
    assert set(reading.rails) == {"VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"}
    assert reading.power_mode == "MAXN_SUPER"
    assert reading.throttle is Throttle.NO
    assert (reading.gpu_clock_mhz, reading.gpu_max_clock_mhz) == (306, 1020)
    assert reading.gpu_load == 0.5
    assert (reading.over_current_events, reading.over_current_per_s) == (27390, None)
    assert reading.memory_clock_mhz == 3199
    assert reading.note == ""
    assert reading.trips["cpu-thermal"] == Trips(throttle_c=99.0, critical_c=104.5)
    assert reading.margin_c == pytest.approx(99 - 51.687)
    assert reading.critical_margin_c == pytest.approx(104.5 - 51.687)


def test_agx_orin_sums_parts_as_it_has_no_total(agx: JetsonTree) -> None:
    reading = read(agx)
    assert reading.rails == pytest.approx(
        {"VDD_GPU_SOC": 5.13, "VDD_CPU_CV": 3.268, "VIN_SYS_5V0": 5.5}
    )
    assert reading.power_w == pytest.approx(5.13 + 3.268 + 5.5)
    assert reading.power_mode == "MODE_30W"
    assert reading.throttle is Throttle.NO
    assert reading.gpu_load == pytest.approx(0.12)
    assert reading.hottest_zone == "cpu-thermal"
    assert reading.temperature_c == pytest.approx(52.968)
    # tj states its shutdown alone, and is held to the 99 degC that cpu states.
    assert reading.trips["tj-thermal"] == Trips(critical_c=104.5)
    assert reading.margin_c == pytest.approx(99 - 52.968)
    assert reading.over_current_events is None


def test_thor_throttling_with_its_gpu_zone_silent(thor: JetsonTree) -> None:
    reading = read(thor)
    assert reading.zones["gpu-thermal"] is None
    assert (reading.hottest_zone, reading.temperature_c) == ("tj-thermal", 66.625)
    assert reading.throttle is Throttle.YES
    assert reading.throttle_reason == "gpu-throttle-alert 1, devfreq-gpu-gpc-0 18"
    assert reading.power_w == pytest.approx(124.486)
    assert reading.power_mode == "120W"
    assert reading.gpu_clock_mhz == 1575
    assert reading.gpu_load is None
    assert reading.margin_c == pytest.approx(109 - 66.625)
    assert reading.critical_margin_c == pytest.approx(114.5 - 66.625)
    assert reading.over_current_events == 821
    assert reading.memory_clock_mhz == 4266


def test_eagain_is_no_error_here_and_a_trap_in_text_mode(thor: JetsonTree) -> None:
    gated = f"{ZONE}2/temp"
    tree = FileTree(thor.root)
    assert tree.read(gated) is tree.text(gated) is tree.integer(gated) is None
    with (
        open(os.open(thor.root / gated, os.O_RDONLY | os.O_NONBLOCK)) as file,
        pytest.raises((TypeError, OSError)),
    ):
        file.read()


def test_a_gated_gpu_that_wakes_up_is_read_again(thor: JetsonTree) -> None:
    source = SysfsSource(thor.root)
    assert source.read().zones["gpu-thermal"] is None
    thor.write(f"{ZONE}2/temp", "108900\n")
    reading = source.read()
    assert (reading.hottest_zone, reading.temperature_c) == ("gpu-thermal", 108.9)
    thor.never_ready(f"{ZONE}2/temp")
    assert source.read().zones["gpu-thermal"] is None


def test_over_current_counts_as_a_rate(nano: JetsonTree) -> None:
    clock = Clock()
    source = SysfsSource(nano.root, clock)
    assert source.read().over_current_per_s is None
    nano.write(f"{HWMON}1/oc3_event_cnt", "27400")
    clock.now_s += 0.5
    reading = source.read()
    assert (reading.over_current_events, reading.over_current_per_s) == (27400, 20)
    assert reading.throttle is Throttle.NO  # of itself no sign
    clock.now_s += 0.5
    assert source.read().over_current_per_s == 0
    nano.write(f"{HWMON}1/oc3_event_cnt", "3")  # the driver was loaded again
    clock.now_s += 0.5
    assert source.read().over_current_per_s is None
    nano.write(f"{HWMON}1/oc3_event_cnt", "-3")
    clock.now_s += 0.5
    reading = source.read()
    assert reading.over_current_events is reading.over_current_per_s is None


@pytest.mark.parametrize(
    ("load", "known"), [(0.4, 0.4), (None, None), (float("nan"), None), (1.5, None)]
)
def test_the_load_of_a_thor_comes_from_elsewhere(
    thor: JetsonTree, load: float | None, known: float | None
) -> None:
    assert SysfsSource(thor.root, gpu_load=lambda: load).read().gpu_load == known


def test_no_other_load_is_asked_for_on_orin(nano: JetsonTree) -> None:
    def stub() -> float:
        raise AssertionError("NVML is a stub on Orin")

    source = SysfsSource(nano.root, gpu_load=stub)
    assert source.read().gpu_load == 0.5
    nano.remove("sys/devices/platform/gpu.0/load")
    assert source.read().gpu_load is None


@pytest.mark.parametrize(
    ("names", "number", "name"),
    [
        (["MAXN_SUPER", "10W", "15W", "25W", "40W"], 4, "40W"),  # Orin NX 16GB super
        (["MAXN", "MODE_15W", "MODE_30W", "MODE_50W"], 3, "MODE_50W"),  # AGX Orin
        (["MAXN", "120W", "90W", "70W"], 2, "90W"),  # Thor T5000
        (["15W", "25W", "MAXN_SUPER", "7W"], 2, "MAXN_SUPER"),  # Orin Nano 8GB super
    ],
)
def test_the_same_number_is_another_mode_on_another_board(
    nano: JetsonTree, names: list[str], number: int, name: str
) -> None:
    lines = (f"< POWER_MODEL ID={i} NAME={mode} >" for i, mode in enumerate(names))
    nano.write("etc/nvpmodel.conf", "\n".join(lines))
    nano.write("var/lib/nvpmodel/status", f"pmode:{number:04}")
    assert read(nano).power_mode == name


@pytest.mark.parametrize("board", [ORIN_NANO, AGX_ORIN, AGX_THOR])
def test_whatever_happens_to_the_files_nothing_raises_or_turns_absurd(
    tmp_path: Path, board: str
) -> None:
    """Each file in turn vanishes, falls silent, or turns to rubbish, while one source reads on."""
    rubbish = ("", "-1", "9" * 300, "NaN", b"\xff\xfe\0", "pmode:", "1\n2", "0x7f", "99999999")
    with JetsonTree(tmp_path, board) as tree:
        clock = Clock()
        source = SysfsSource(tree.root, clock)
        before = source.read()
        files = sorted(str(p.relative_to(tree.root)) for p in tree.root.rglob("*") if p.is_file())
        for number, path in enumerate(files):
            content = (tree.root / path).read_bytes()
            for harm in (rubbish[number % len(rubbish)], None, False):
                if harm is None:
                    tree.remove(path)
                elif harm is False:
                    tree.never_ready(path)
                else:
                    tree.write(path, harm)
                check_plausible(source.read())
                clock.now_s += 0.5
            tree.write(path, content)
        clock.now_s += REDISCOVER_S
        after = source.read()
        assert (after.zones, after.trips, after.rails) == (before.zones, before.trips, before.rails)
        assert (after.power_w, after.power_mode) == (before.power_w, before.power_mode)


def check_plausible(reading: Reading) -> None:
    celsius = [*reading.zones.values(), reading.temperature_c]
    celsius += [v for t in reading.trips.values() for v in (t.throttle_c, t.critical_c)]
    assert all(value is None or -40 <= value <= 150 for value in celsius)
    watts = [*reading.rails.values(), reading.power_w]
    assert all(value is None or 0 <= value <= 1000 for value in watts)
    for value in (reading.gpu_clock_mhz, reading.gpu_max_clock_mhz, reading.memory_clock_mhz):
        assert value is None or 0 <= value <= 1e5
    assert reading.gpu_load is None or 0 <= reading.gpu_load <= 1
    assert reading.over_current_events is None or reading.over_current_events >= 0


def test_a_fifo_without_a_writer_does_not_block(nano: JetsonTree) -> None:
    temperature = nano.root / f"{ZONE}8/temp"
    temperature.unlink()
    os.mkfifo(temperature)
    assert read(nano).zones["tj-thermal"] is None


@pytest.mark.parametrize(
    "content",
    [
        *[
            "",
            "\n",
            "rubbish",
            "NaN",
            "nan",
            "inf",
            "51687.5",
            "5_1687",
            "٥١٦٨٧",
            "0x10",
            "- 5",
            b"\xff",
        ],
        *["-256000", "999000", "9" * 5000, "51687\n51687", b"\0\0", "--51687"],
    ],
)
def test_rubbish_and_the_impossible_are_unknown(nano: JetsonTree, content: str | bytes) -> None:
    source = open_source("auto", nano.root)
    nano.write(f"{ZONE}0/temp", content)
    reading = source.read()
    assert reading.zones["cpu-thermal"] is None
    assert reading.hottest_zone == "tj-thermal"
    nano.write(f"{ZONE}0/temp", "60000\n")
    assert source.read().zones["cpu-thermal"] == 60


@pytest.mark.parametrize("celsius", [-20.0, 0.0, 104.0])
def test_cold_and_hot_are_known(nano: JetsonTree, celsius: float) -> None:
    nano.write(f"{ZONE}0/temp", f"{int(celsius * 1000)}\n")
    assert read(nano).zones["cpu-thermal"] == celsius


def test_values_that_vanish_and_come_back(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    assert source.read().power_w is not None
    for path in (f"{ZONE}0/temp", f"{HWMON}3/curr1_input", "var/lib/nvpmodel/status"):
        nano.remove(path)
    nano.never_ready("sys/devices/platform/gpu.0/load")
    nano.write("sys/class/devfreq/17000000.gpu/cur_freq", "gone")
    reading = source.read()
    assert reading.zones["cpu-thermal"] is None
    assert reading.hottest_zone == "tj-thermal"
    assert reading.power_w is None  # parts never stand in for the total
    assert reading.rails["VDD_SOC"] is not None
    assert reading.power_mode is None
    assert reading.gpu_load is None
    assert reading.gpu_clock_mhz is None
    nano.write(f"{HWMON}3/curr1_input", "1856")
    nano.write("var/lib/nvpmodel/status", "pmode:0000")
    reading = source.read()
    assert reading.power_w == pytest.approx(9.25, abs=0.005)
    assert reading.power_mode == "15W"


def test_changed_trip_points_are_seen_in_time(nano: JetsonTree) -> None:
    clock = Clock()
    source = SysfsSource(nano.root, clock=clock)
    source.read()
    nano.write(f"{ZONE}0/trip_point_0_temp", "90000")
    clock.now_s += REDISCOVER_S
    assert source.read().trips["cpu-thermal"].throttle_c == 90


def test_hwmon_numbers_that_moved(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    before = source.read()
    nano.move(f"{HWMON}3", f"{HWMON}7")
    assert source.read().rails == before.rails
    # Swapped: both paths still exist, with the other's name.
    nano.move(f"{HWMON}7", f"{HWMON}tmp")
    nano.move(f"{HWMON}1", f"{HWMON}7")
    nano.move(f"{HWMON}tmp", f"{HWMON}1")
    after = source.read()
    assert after.rails == before.rails
    assert after.over_current_events == before.over_current_events


def test_two_power_monitors_of_one_kind_that_swapped(agx: JetsonTree) -> None:
    source = SysfsSource(agx.root)
    before = source.read()
    agx.move(f"{HWMON}1", "away")
    agx.move(f"{HWMON}2", f"{HWMON}1")
    agx.move("away", f"{HWMON}2")
    after = source.read()
    assert (after.rails, after.power_w) == (before.rails, before.power_w)


def test_zones_and_cooling_devices_that_moved(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    source.read()
    nano.move(f"{ZONE}0", f"{ZONE}20")
    nano.move(f"{ZONE}5", f"{ZONE}0")
    nano.move(f"{COOLER}6", f"{COOLER}9")
    nano.move(f"{COOLER}5", f"{COOLER}6")
    nano.write(f"{COOLER}9/cur_state", "1")  # hot-surface-alert: cuts nothing
    reading = source.read()
    assert reading.zones["cpu-thermal"] == pytest.approx(51.687)
    assert reading.zones["soc0-thermal"] == pytest.approx(47.281)
    assert reading.throttle is Throttle.NO
    nano.write(f"{COOLER}6/cur_state", "1")
    assert source.read().throttle_reason == "gpu-throttle-alert 1"


def test_a_device_that_leaves_and_returns_under_another_number(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    source.read()
    nano.move(f"{HWMON}3", "away")
    assert source.read().power_w is None
    nano.move("away", f"{HWMON}4")
    assert source.read().power_w == pytest.approx(9.25, abs=0.005)


@pytest.mark.parametrize("cooler", [0, 6])
def test_fan_and_surface_warning_are_no_throttling(nano: JetsonTree, cooler: int) -> None:
    nano.write(f"{COOLER}{cooler}/cur_state", "1")
    assert read(nano).throttle is Throttle.NO


@pytest.mark.parametrize("cooler", [1, 3, 4, 5])
def test_a_clock_cutter_at_work_is_throttling(nano: JetsonTree, cooler: int) -> None:
    nano.write(f"{COOLER}{cooler}/cur_state", "1")
    assert read(nano).throttle is Throttle.YES


def test_a_clock_cutter_that_does_not_answer_is_not_healthy(nano: JetsonTree) -> None:
    nano.never_ready(f"{COOLER}3/cur_state")
    assert read(nano).throttle is Throttle.UNKNOWN
    nano.write(f"{COOLER}4/cur_state", "2")
    assert read(nano).throttle is Throttle.YES


def test_the_kernel_s_bindings_decide_which_trip_cuts_clocks(nano: JetsonTree) -> None:
    nano.bind(zone=0, link=0, cooling_device=6, trip=2)  # hot-surface-alert at 70 degC
    nano.bind(zone=0, link=1, cooling_device=0, trip=2)  # and the fan
    nano.bind(zone=0, link=2, cooling_device=4, trip=0)
    assert read(nano).trips["cpu-thermal"].throttle_c == 99
    nano.bind(zone=0, link=3, cooling_device=3, trip=2)  # the GPU's clock at 70 degC
    assert read(nano).trips["cpu-thermal"].throttle_c == 70
    nano.write(f"{ZONE}0/trip_point_0_temp", "60000")
    nano.bind(zone=8, link=0, cooling_device=6, trip=0)
    reading = read(nano)
    assert reading.trips["cpu-thermal"].throttle_c == 60
    assert reading.trips["tj-thermal"] == Trips(critical_c=104.5)


def test_a_low_passive_trip_counts_where_no_surface_warning_exists(agx: JetsonTree) -> None:
    agx.write(f"{ZONE}0/trip_point_0_temp", "70000")
    assert read(agx).trips["cpu-thermal"].throttle_c == 70


def test_trip_hysteresis_and_placeholders(nano: JetsonTree) -> None:
    nano.write(f"{ZONE}0/trip_point_0_hyst", "1500\n")
    nano.write(f"{ZONE}0/trip_point_3_temp", "0\n")
    nano.write(f"{ZONE}0/trip_point_3_type", "passive\n")
    nano.write(f"{ZONE}0/trip_point_4_temp", "-274000\n")
    nano.write(f"{ZONE}0/trip_point_4_type", "critical\n")
    nano.write(f"{ZONE}0/trip_point_5_temp", "45000\n")
    nano.write(f"{ZONE}0/trip_point_5_type", "active\n")
    assert read(nano).trips["cpu-thermal"] == Trips(99.0, 104.5, 1.5)


def test_unlabelled_and_seventh_channels_are_no_rails(agx: JetsonTree) -> None:
    agx.remove(f"{HWMON}1/in3_label")
    agx.write(f"{HWMON}1/in7_input", "12")
    agx.write(f"{HWMON}1/in7_label", "sum of shunt voltages")
    agx.write(f"{HWMON}1/curr7_input", "12000")
    reading = read(agx)
    assert set(reading.rails) == {"VDD_GPU_SOC", "VDD_CPU_CV"}
    assert reading.power_w is None  # two of three parts are no total


def test_a_rail_without_load_may_read_below_zero(agx: JetsonTree) -> None:
    agx.write(f"{HWMON}1/curr2_input", "-8")
    reading = read(agx)
    assert reading.rails["VDD_CPU_CV"] == 0
    assert reading.power_w == pytest.approx(5.13 + 5.5)


def test_a_silent_input_meter_leaves_the_total_unknown(thor: JetsonTree) -> None:
    thor.never_ready(f"{HWMON}5/power1_input")
    reading = read(thor)
    assert reading.power_w is None
    assert reading.rails["VDD_GPU"] == pytest.approx(37.94)


def test_power_gated_thor_gpu_has_no_clock(thor: JetsonTree) -> None:
    thor.write("sys/class/devfreq/gpu-gpc-0/cur_freq", "0")
    assert read(thor).gpu_clock_mhz == 0


@pytest.mark.parametrize(
    ("status", "name"),
    [
        ("pmode:0000", "15W"),
        ("pmode:0003 fmode:fan_mode_quiet\n", "7W"),
        ("pmode:2\n", "MAXN_SUPER"),
        ("pmode:0009", None),
        ("pmode:", None),
        ("pmode:-1", None),
        ("fmode:quiet", None),
        ("", None),
    ],
)
def test_mode_names_come_from_the_board_s_own_list(
    nano: JetsonTree, status: str, name: str | None
) -> None:
    nano.write("var/lib/nvpmodel/status", status)
    assert read(nano).power_mode == name


def test_mode_change_and_a_list_in_its_full_form(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    assert source.read().power_mode == "MAXN_SUPER"
    nano.write(
        "etc/nvpmodel.conf",
        "# comment\n" * 5000
        + "# < POWER_MODEL ID=7 NAME=OLD >\n< POWER_MODEL ID=7 NAME=40W >\n"
        + "CPU_ONLINE CORE_0 1\n< POWER_MODEL   ID=8 NAME=10W >\n",
    )
    nano.write("var/lib/nvpmodel/status", "pmode:0007")
    assert source.read().power_mode == "40W"
    nano.write("var/lib/nvpmodel/status", "pmode:0008")
    assert source.read().power_mode == "10W"


def test_jetpack_5_names(tmp_path: Path) -> None:
    with JetsonTree(tmp_path) as tree:
        for number, (zone, temp) in enumerate(
            [
                *[("CPU-therm", "48500"), ("GPU-therm", "-256000"), ("GPU-therm", "47000")],
                *[("CPU", "48000"), ("GPU@4c5", "-256000")],
            ]
        ):
            tree.write(f"{ZONE}{number}/type", f"{zone}\n")
            tree.write(f"{ZONE}{number}/temp", f"{temp}\n")
        tree.write("sys/class/devfreq/17000000.ga10b/cur_freq", "612000000\n")
        tree.write("sys/class/devfreq/17000000.ga10b/max_freq", "918000000\n")
        reading = read(tree)
    assert reading.source == "sysfs"
    assert reading.zones == {
        "CPU-therm": 48.5,
        "GPU-therm": None,
        "GPU-therm#2": 47.0,
        "CPU": 48.0,
        "GPU@4c5": None,
    }
    assert (reading.gpu_clock_mhz, reading.gpu_max_clock_mhz) == (612, 918)
    assert reading.margin_c is None  # no trip point at all


def test_reading_leaves_no_file_descriptor_open(nano: JetsonTree) -> None:
    source = SysfsSource(nano.root)
    source.read()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        source.read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_nearest_zone_need_not_be_the_hottest() -> None:
    heat = summarise(
        {"cpu": 80.0, "battery": 55.0, "off": None},
        {"cpu": Trips(99.0, 104.5), "battery": Trips(60.0, 90.0)},
    )
    assert (heat.hottest_zone, heat.margin_zone, heat.margin_c) == ("cpu", "battery", 5.0)
    assert heat.critical_margin_c == 24.5


def test_a_zone_without_trips_is_held_to_the_board_s_lowest() -> None:
    heat = summarise({"cpu": None, "soc": 98.0}, {"cpu": Trips(99.0, 104.5), "soc": Trips()})
    assert (heat.margin_zone, heat.margin_c, heat.critical_margin_c) == ("soc", 1.0, 6.5)


def test_a_zone_with_one_trip_implies_the_other() -> None:
    assert Trips(critical_c=114.5).throttle_limit_c == 109.0
    assert Trips(throttle_c=99.0).critical_limit_c == 104.5
    assert Trips().throttle_limit_c is Trips().critical_limit_c is None


def test_a_root_of_an_absurd_name_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="is not a directory"):
        open_source("sysfs", "/" + "x" * 5000)
