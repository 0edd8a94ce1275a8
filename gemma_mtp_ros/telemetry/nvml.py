# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA GPU through NVML: nvidia-ml-py (module pynvml), an optional dependency.

Units of NVML (nvml.h): degC, mW, MHz, per cent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .reading import (
    TEMPERATURE_RANGE_C,
    TRIP_RANGE_C,
    Reading,
    Throttle,
    Trips,
    plausible,
    summarise,
    unknown,
)

RETRY_S = 30.0
"""How long a driver that failed is left alone."""

CLOCK_CUTS = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "hardware power brake"),
)
"""Bits of nvmlClocksEventReasons that mean that clocks are cut for heat or by the power supply.
The power cap (0x04) is not among them: it is to a card what the power mode is to a Jetson, its
normal state under load."""

_LOST = {
    "NVML_ERROR_UNINITIALIZED": "it was shut down",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded; load it (modprobe nvidia)",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 was not found; install the NVIDIA driver",
    "NVML_ERROR_GPU_IS_LOST": "the GPU fell off the bus; reboot the machine",
    "NVML_ERROR_RESET_REQUIRED": "the GPU needs a reset (nvidia-smi --gpu-reset)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver and its library differ in version, as "
    "after an update; reboot the machine",
}
"""Failures of NVML or of the GPU as a whole, and their remedies."""

_NOT_OPENED = {
    **_LOST,
    "NVML_ERROR_NO_PERMISSION": "this user may not use the GPU; give it access to /dev/nvidia*",
    "NVML_ERROR_NOT_FOUND": "there is no GPU as CUDA_VISIBLE_DEVICES names it; correct it",
    "NVML_ERROR_INVALID_ARGUMENT": "there is no GPU, or none of the number that "
    "CUDA_VISIBLE_DEVICES names; correct it",
}
"""What else can go wrong when a GPU is looked for; later these concern one value alone."""


class NvmlError(Exception):
    """NVML cannot be used; one sentence."""


def import_pynvml() -> Any:
    """The module of nvidia-ml-py.

    Raises:
        ImportError: it is not installed.
    """
    import pynvml

    return pynvml


class NvmlDevice:
    """One GPU. A value that this GPU or driver does not give is None.

    It is the first of CUDA_VISIBLE_DEVICES, as for the engine (numbers as with
    CUDA_DEVICE_ORDER=PCI_BUS_ID), else the first of the machine.

    Raises:
        NvmlError: on making it and in each method but `close`: module, driver or GPU fails.
    """

    def __init__(self, load: Callable[[], Any] = import_pynvml) -> None:
        try:
            self._api = load()
        except ImportError as error:
            raise NvmlError(
                f"NVML needs nvidia-ml-py, which {sys.executable} cannot import ({error}); "
                "pip install nvidia-ml-py."
            ) from error
        except Exception as error:  # an installation that is broken in any other way
            raise NvmlError(
                f"NVML cannot be used: nvidia-ml-py fails to load ({error!r}); install it again."
            ) from error
        try:
            self._api.nvmlInit()
            try:
                self._handle = self._find()
                name = self._api.nvmlDeviceGetName(self._handle)
            except Exception:
                self.close()
                raise
        except self._api.NVMLError as error:
            raise self._failure(error, _NOT_OPENED) from error
        self.name: str = name.decode(errors="replace") if isinstance(name, bytes) else str(name)

    def close(self) -> None:
        """Give NVML back; the object cannot be used afterwards."""
        with contextlib.suppress(self._api.NVMLError):  # it may be down already
            self._api.nvmlShutdown()

    @property
    def on_orin(self) -> bool:
        """Whether this is the NVML of a Jetson Orin: a stub whose values mean nothing."""
        return "orin" in self.name.lower() or "nvgpu" in self.name.lower()

    @property
    def on_thor(self) -> bool:
        """Whether this is a Jetson Thor."""
        return "thor" in self.name.lower()

    def temperature_c(self) -> float | None:
        """Of the GPU's die."""
        sensor = self._api.NVML_TEMPERATURE_GPU
        value = self._ask("nvmlDeviceGetTemperatureV", sensor)
        if value is None:
            value = self._ask("nvmlDeviceGetTemperature", sensor)
        return _number(value, 1, *TEMPERATURE_RANGE_C)

    def trips(self, temperature_c: float | None) -> Trips:
        """Where clocks are cut first (GPU_MAX or SLOWDOWN), and SHUTDOWN.

        A GPU without these thresholds may state its distance from the first of them instead.
        """
        throttles = [self._threshold("GPU_MAX"), self._threshold("SLOWDOWN")]
        stated = [limit for limit in throttles if limit is not None]
        throttle_c = min(stated, default=None)
        if throttle_c is None and temperature_c is not None:
            margin_c = _number(self._ask("nvmlDeviceGetMarginTemperature"), 1, -60.0, 150.0)
            throttle_c = None if margin_c is None else temperature_c + margin_c
        return Trips(throttle_c=throttle_c, critical_c=self._threshold("SHUTDOWN"))

    def power_w(self) -> float | None:
        """Of the whole card."""
        return _number(self._ask("nvmlDeviceGetPowerUsage"), 1000, 0, 5000)

    def power_limit_w(self) -> float | None:
        """The power cap in force."""
        return _number(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1000, 0, 5000)

    def clock_mhz(self, memory: bool = False, largest: bool = False) -> float | None:
        """Clock of the GPU or of its memory, now or the largest there is."""
        kind = self._api.NVML_CLOCK_MEM if memory else self._api.NVML_CLOCK_GRAPHICS
        name = "nvmlDeviceGetMaxClockInfo" if largest else "nvmlDeviceGetClockInfo"
        return _number(self._ask(name, kind), 1, 0, 1e5)

    def load(self) -> float | None:
        """Share of the last sampling period in which the GPU was busy, 0..1."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return _number(getattr(rates, "gpu", None), 100, 0, 1)

    def throttle(self) -> tuple[Throttle, str]:
        """Whether clocks are being cut, and why; see `CLOCK_CUTS`."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if not isinstance(bits, int) or bits < 0:
            return Throttle.UNKNOWN, ""
        reasons = [reason for bit, reason in CLOCK_CUTS if bits & bit]
        return (Throttle.YES if reasons else Throttle.NO), ", ".join(reasons)

    def _find(self) -> Any:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if first.startswith("GPU-"):
            return self._api.nvmlDeviceGetHandleByUUID(first)
        if first.startswith("MIG-"):
            part = self._api.nvmlDeviceGetHandleByUUID(first)
            return self._api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)
        return self._api.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)

    def _threshold(self, name: str) -> float | None:
        kind = getattr(self._api, f"NVML_TEMPERATURE_THRESHOLD_{name}")
        return _number(self._ask("nvmlDeviceGetTemperatureThreshold", kind), 1, *TRIP_RANGE_C)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """What the function of NVML says; None if this module, driver or GPU does not have it."""
        ask = getattr(self._api, function, None)
        if ask is None:
            return None
        try:
            return ask(self._handle, *arguments)
        except self._api.NVMLError as error:
            if self._code(error, _LOST):
                raise self._failure(error, _LOST) from error
            return None

    def _code(self, error: Exception, known: Mapping[str, str]) -> str:
        """Name of the error if it is among the `known`, else ""."""
        value = getattr(error, "value", None)
        return next((name for name in known if getattr(self._api, name, -1) == value), "")

    def _failure(self, error: Exception, known: Mapping[str, str]) -> NvmlError:
        said = known.get(self._code(error, known), f"{error}; see what nvidia-smi says")
        return NvmlError(f"NVML cannot be used: {said}.")


class NvmlSource:
    """A discrete NVIDIA GPU, or a Thor's. Its failures are readings that know nothing but why.

    After a failure NVML is brought up anew, at most every `RETRY_S`.
    """

    name = "nvml"

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        load: Callable[[], Any] = import_pynvml,
    ) -> None:
        self._clock = clock
        self._load = load
        self._device: NvmlDevice | None = None
        self._failure = ""
        self._failed_s = 0.0

    def read(self) -> Reading:
        """The GPU now. Raises nothing for what NVML says."""
        now_s = self._clock()
        device = self.device()
        if device is None:
            return unknown(now_s, self.name, self._failure)
        try:
            return self._read(device, now_s)
        except NvmlError as error:
            self._fail(str(error))
            return unknown(now_s, self.name, self._failure, device.name)

    def load(self) -> float | None:
        """The load of a Thor's GPU, 0..1; None elsewhere (Orin's NVML is a stub)."""
        device = self.device()
        try:
            return device.load() if device is not None and device.on_thor else None
        except NvmlError as error:
            self._fail(str(error))
            return None

    def close(self) -> None:
        """Give NVML back; the next reading takes it again."""
        if self._device is not None:
            self._device.close()
            self._device = None

    @property
    def failure(self) -> str:
        """Why there is no device; one sentence."""
        return self._failure

    def device(self) -> NvmlDevice | None:
        """The GPU, if it can be had now."""
        if self._device is not None:
            return self._device
        if self._failure and self._clock() - self._failed_s < RETRY_S:
            return None
        try:
            device = NvmlDevice(self._load)
        except NvmlError as error:
            self._fail(str(error))
            return None
        if device.on_orin:
            device.close()
            self._fail(
                f"NVML is a stub on {device.name}; set telemetry.source to sysfs, or to auto."
            )
            return None
        self._device, self._failure = device, ""
        return device

    def _fail(self, sentence: str) -> None:
        self.close()
        self._failure, self._failed_s = sentence, self._clock()

    def _read(self, device: NvmlDevice, now_s: float) -> Reading:
        celsius = device.temperature_c()
        zones = {"gpu": celsius}
        trips = {"gpu": device.trips(celsius)}
        heat = summarise(zones, trips)
        power_w = device.power_w()
        limit_w = device.power_limit_w()
        throttle, throttle_reason = device.throttle()
        return Reading(
            stamp_s=now_s,
            wall_s=time.time(),
            source=self.name,
            board=device.name,
            zones=zones,
            trips=trips,
            **dataclasses.asdict(heat),
            rails={"gpu": power_w},
            power_w=power_w,
            gpu_clock_mhz=device.clock_mhz(),
            gpu_max_clock_mhz=device.clock_mhz(largest=True),
            gpu_load=device.load(),
            memory_clock_mhz=device.clock_mhz(memory=True),
            throttle=throttle,
            throttle_reason=throttle_reason,
            power_mode=None if limit_w is None else f"{limit_w:.0f}W",
        )


def _number(value: object, divisor: int, low: float, high: float) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return plausible(value / divisor, low, high)
