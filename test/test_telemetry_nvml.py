# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""NVML: the rules against a stand-in, and the real nvidia-ml-py as far as it goes without a GPU."""

from __future__ import annotations

import builtins
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nvml_stand_in
import pytest
from nvml_stand_in import Nvml, NVMLError
from still_clock import Clock

from gemma_mtp_ros.telemetry.nvml import RETRY_S, NvmlSource
from gemma_mtp_ros.telemetry.reading import Throttle, Trips
from gemma_mtp_ros.telemetry.sources import open_source

real = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None, reason="nvidia-ml-py is not installed"
)


@pytest.fixture(autouse=True)
def _no_choice_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def api() -> Nvml:
    return Nvml()


def source(api: Nvml, clock: Clock | None = None) -> NvmlSource:
    return NvmlSource(clock or Clock(), lambda: api)


def test_discrete_gpu(api: Nvml) -> None:
    reading = source(api).read()
    assert (reading.source, reading.board) == ("nvml", "NVIDIA RTX 4000 SFF Ada Generation")
    assert reading.zones == {"gpu": 55}
    assert reading.trips == {"gpu": Trips(throttle_c=94, critical_c=102)}
    assert (reading.hottest_zone, reading.margin_c, reading.critical_margin_c) == ("gpu", 39, 47)
    assert (reading.power_w, reading.rails) == (41.5, {"gpu": 41.5})
    assert (reading.gpu_clock_mhz, reading.gpu_max_clock_mhz) == (1290, 2130)
    assert (reading.memory_clock_mhz, reading.gpu_load) == (7001, 0.37)
    assert (reading.throttle, reading.throttle_reason) == (Throttle.NO, "")  # at its power cap
    assert reading.power_mode == "70W"
    assert reading.note == ""


@pytest.mark.parametrize(
    ("bits", "throttle", "reason"),
    [
        (0x0, Throttle.NO, ""),
        (0x1, Throttle.NO, ""),
        (0x8, Throttle.YES, "hardware slowdown"),
        (0x20, Throttle.YES, "software thermal slowdown"),
        (0x48, Throttle.YES, "hardware slowdown, hardware thermal slowdown"),
        (0x84, Throttle.YES, "hardware power brake"),
        (-1, Throttle.UNKNOWN, ""),
        ("8", Throttle.UNKNOWN, ""),
        (NVMLError(3), Throttle.UNKNOWN, ""),
    ],
)
def test_throttle_reasons(api: Nvml, bits: object, throttle: Throttle, reason: str) -> None:
    api.values["nvmlDeviceGetCurrentClocksEventReasons"] = bits
    reading = source(api).read()
    assert (reading.throttle, reading.throttle_reason) == (throttle, reason)


def test_names_of_older_drivers_and_modules(api: Nvml) -> None:
    del api.values["nvmlDeviceGetTemperatureV"]
    api.values["nvmlDeviceGetTemperature"] = 61
    api.values["nvmlDeviceGetCurrentClocksEventReasons"] = NVMLError(13)
    api.values["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x40
    api.name = b"Tesla T4"
    reading = source(api).read()
    assert (reading.board, reading.temperature_c) == ("Tesla T4", 61)
    assert reading.throttle is Throttle.YES


def test_a_gpu_that_states_its_distance_instead_of_thresholds(api: Nvml) -> None:
    api.thresholds = {}
    assert source(api).read().margin_c is None
    api.values["nvmlDeviceGetMarginTemperature"] = 32
    reading = source(api).read()
    assert (reading.margin_c, reading.critical_margin_c) == (32, 37.5)


@pytest.mark.parametrize("value", [-256, 999, math.nan, None, "55", True, NVMLError(3)])
def test_a_temperature_that_cannot_be_is_unknown(api: Nvml, value: object) -> None:
    api.values["nvmlDeviceGetTemperatureV"] = value
    reading = source(api).read()
    assert reading.zones == {"gpu": None}
    assert reading.temperature_c is reading.margin_c is None
    assert reading.power_w == 41.5


def test_values_that_this_gpu_does_not_give(api: Nvml) -> None:
    for name in ("PowerUsage", "EnforcedPowerLimit", "UtilizationRates"):
        api.values[f"nvmlDeviceGet{name}"] = NVMLError(Nvml.NVML_ERROR_NOT_SUPPORTED)
    reading = source(api).read()
    assert reading.power_w is reading.power_mode is reading.gpu_load is None
    assert reading.temperature_c == 55
    api.values["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=4000, memory=0)
    assert source(api).read().gpu_load is None


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (9, "NVML cannot be used: the NVIDIA driver is not loaded; load it (modprobe nvidia)."),
        (12, "NVML cannot be used: libnvidia-ml.so.1 was not found; install the NVIDIA driver."),
        (18, "NVML cannot be used: the NVIDIA driver and its library differ in version, as after "
         "an update; reboot the machine."),
        (4, "NVML cannot be used: this user may not use the GPU; give it access to /dev/nvidia*."),
        (999, "NVML cannot be used: error 999; see what nvidia-smi says."),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_come_up_is_unknown(api: Nvml, code: int, sentence: str) -> None:
    clock = Clock()
    api.fails_to_open = code
    nvml = source(api, clock)
    reading = nvml.read()
    assert (reading.source, reading.note, reading.temperature_c) == ("nvml", sentence, None)
    assert reading.stamp_s == clock.now_s
    api.fails_to_open = None
    assert nvml.read().note == sentence  # not tried at every poll
    clock.now_s += RETRY_S
    assert nvml.read().temperature_c == 55


def test_a_gpu_that_is_lost_while_running(api: Nvml) -> None:
    clock = Clock()
    nvml = source(api, clock)
    nvml.read()
    api.values["nvmlDeviceGetPowerUsage"] = NVMLError(Nvml.NVML_ERROR_GPU_IS_LOST)
    reading = nvml.read()
    assert reading.note == "NVML cannot be used: the GPU fell off the bus; reboot the machine."
    assert reading.temperature_c is None  # though it had been read before
    assert api.open == 0
    api.values["nvmlDeviceGetPowerUsage"] = 5000
    clock.now_s += RETRY_S
    assert nvml.read().power_w == 5


@pytest.mark.parametrize("name", ["Orin (nvgpu)", "NVIDIA Jetson Orin NX"])
def test_the_stub_of_an_orin_is_never_trusted(api: Nvml, name: str) -> None:
    api.name = name
    nvml = source(api)
    reading = nvml.read()
    assert reading.temperature_c is reading.power_w is reading.gpu_load is None
    assert f"NVML is a stub on {name}; set telemetry.source to sysfs" in reading.note
    assert nvml.load() is None
    assert api.open == 0


def test_the_load_alone_is_a_thor_s(api: Nvml) -> None:
    assert source(api).load() is None
    api.name = "NVIDIA Thor"
    thor = source(api)
    assert thor.load() == 0.37
    api.values["nvmlDeviceGetUtilizationRates"] = NVMLError(Nvml.NVML_ERROR_GPU_IS_LOST)
    assert thor.load() is None
    assert "fell off the bus" in thor.failure


@pytest.mark.parametrize(
    ("visible", "index", "uuid"),
    [("", 0, None), ("1", 1, None), ("1,0", 1, None), ("GPU-4f2e,0", None, "GPU-4f2e"),
     ("MIG-77aa", None, "MIG-77aa")],
)  # fmt: skip
def test_the_gpu_of_the_engine(
    api: Nvml,
    monkeypatch: pytest.MonkeyPatch,
    visible: str,
    index: int | None,
    uuid: str | None,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert source(api).read().temperature_c == 55
    assert (api.index, api.uuid) == (index, uuid)


def test_a_gpu_that_is_not_there(api: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    reading = source(api).read()
    assert "CUDA_VISIBLE_DEVICES names; correct it" in reading.note
    assert api.open == 0


def test_close_gives_nvml_back_and_a_reading_takes_it_again(api: Nvml) -> None:
    nvml = source(api)
    nvml.close()
    nvml.read()
    nvml.read()
    assert api.open == 1
    nvml.close()
    nvml.close()
    assert api.open == 0
    assert nvml.read().temperature_c == 55


def test_without_nvidia_ml_py(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name == "pynvml":
            raise ModuleNotFoundError("No module named 'pynvml'", name=name)
        return import_module(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    reading = open_source("nvml").read()
    assert (reading.source, reading.temperature_c) == ("nvml", None)
    assert reading.note.startswith("NVML needs nvidia-ml-py, which ")
    assert reading.note.endswith("pip install nvidia-ml-py.")


def test_an_installation_that_is_broken_otherwise() -> None:
    def broken() -> Any:
        raise SyntaxError("invalid syntax")

    assert "nvidia-ml-py fails to load" in NvmlSource(Clock(), broken).read().note


@real
def test_the_real_module_without_a_driver_or_with_one() -> None:
    nvml = open_source("nvml")
    for _ in range(2):
        reading = nvml.read()
        assert reading.source == "nvml"
        assert (reading.temperature_c is None) == bool(reading.note)
    nvml.close()


@real
def test_the_stand_in_is_like_the_real_module() -> None:
    import pynvml

    stand_in = Nvml()
    names = [name for name in dir(Nvml) if name.startswith(("nvml", "NVML_"))]
    names += [*stand_in.values, "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetTemperature"]
    names += ["nvmlDeviceGetCurrentClocksThrottleReasons"]
    assert len(names) > 30
    for name in names:
        assert hasattr(pynvml, name), name
        if name.startswith("NVML_"):
            assert getattr(pynvml, name) == getattr(Nvml, name), name
    assert pynvml.NVMLError(9).value == nvml_stand_in.NVMLError(9).value == 9
    for bit, name in (
        (0x08, "HwSlowdown"),
        (0x20, "SwThermalSlowdown"),
        (0x40, "HwThermalSlowdown"),
        (0x80, "HwPowerBrakeSlowdown"),
    ):
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit


# A library of the name that nvidia-ml-py loads, with the functions of nvml.h that are called here.
LIBRARY = r"""
#include <string.h>
typedef struct { unsigned version; int sensor; int celsius; } Temperature;
typedef struct { unsigned gpu, memory; } Utilization;
int nvmlInitWithFlags(unsigned flags) { return INIT; }
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "said by the library"; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)0x5; return index ? 2 : 0;
}
int nvmlDeviceGetName(void *device, char *name, unsigned size) {
  if (device != (void *)0x5) return 2;
  strncpy(name, "NVIDIA L4", size); return 0;
}
#ifdef NEW
int nvmlDeviceGetTemperatureV(void *device, Temperature *t) {
  if (t->version != (sizeof *t | 1u << 24) || t->sensor != 0) return 25;
  t->celsius = 71; return 0;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
  *bits = 0x44; return 0;
}
#else
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  *celsius = 71; return sensor;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
  *bits = 0x44; return 0;
}
#endif
int nvmlDeviceGetTemperatureThreshold(void *device, int kind, unsigned *celsius) {
  static const int limits[] = {105, 102, 0, 98};
  if (kind > 3 || !limits[kind]) return 3;
  *celsius = limits[kind]; return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 33100; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, Utilization *rates) {
  rates->gpu = 88; rates->memory = 5; return 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *megahertz) {
  *megahertz = kind == 2 ? 6251 : 2040; return 0;
}
"""


NOTHING = "None None None None None None None None UNKNOWN None NVML cannot be used: "


@real
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-DINIT=0", "-DNEW"], "NVIDIA L4 71.0 98.0 105.0 33.1 0.88 2040.0 6251.0 YES None "),
        (["-DINIT=0"], "NVIDIA L4 71.0 98.0 105.0 33.1 0.88 2040.0 6251.0 YES None "),
        (["-DINIT=18"], f"{NOTHING}the NVIDIA driver and its library differ in version, as after "
         "an update; reboot the machine."),
        (["-DINIT=999"], f"{NOTHING}Unknown Error; see what nvidia-smi says."),
    ],
    ids=["new names", "old names", "other version", "unknown error"],
)  # fmt: skip
def test_the_real_module_on_a_library(tmp_path: Path, flags: list[str], expected: str) -> None:
    """The real nvidia-ml-py calls C functions of the right names, arguments and structures."""
    source = tmp_path / "nvml.c"
    source.write_text(LIBRARY)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", *flags, "-o", library, source], check=True)
    code = """if True:
        from gemma_mtp_ros.telemetry.sources import open_source
        source = open_source("nvml")
        r = source.read()
        t = r.trips.get("gpu")
        print(r.board, r.temperature_c, t and t.throttle_c, t and t.critical_c, r.power_w,
              r.gpu_load, r.gpu_clock_mhz, r.memory_clock_mhz, r.throttle.name, r.power_mode,
              r.note)
        source.close()
    """
    repository = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout == f"{expected}\n"
