# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the module pynvml of nvidia-ml-py where there is no NVIDIA GPU.

Names, error codes and return types as in the real module; a test compares them with it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace


class NVMLError(Exception):
    """An error with the code of NVML."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Nvml:
    """One GPU. `values` holds what each function returns: a value, or an error code to raise."""

    NVMLError = NVMLError
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_RESET_REQUIRED = 16
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3
    NVML_CLOCK_GRAPHICS = 0
    NVML_CLOCK_MEM = 2

    def __init__(self, name: str | bytes = "NVIDIA RTX 4000 SFF Ada Generation") -> None:
        self.fails_to_open: int | None = None
        self.open = 0
        self.uuid: str | None = None
        self.index: int | None = None
        self.name = name
        self.thresholds: dict[int, int | NVMLError] = {0: 102, 1: 99, 3: 94}
        self.values: dict[str, object] = {
            "nvmlDeviceGetTemperatureV": 55,
            "nvmlDeviceGetPowerUsage": 41_500,
            "nvmlDeviceGetEnforcedPowerLimit": 70_000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
        }

    def nvmlInit(self) -> None:
        if self.fails_to_open is not None:
            raise NVMLError(self.fails_to_open)
        self.open += 1

    def nvmlShutdown(self) -> None:
        if not self.open:
            raise NVMLError(self.NVML_ERROR_UNINITIALIZED)
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index > 1:
            raise NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        self.index = index
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.uuid = uuid
        return "part" if uuid.startswith("MIG-") else "handle"

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: str) -> str:
        assert part == "part"
        return "handle"

    def nvmlDeviceGetName(self, handle: str) -> str | bytes:
        return self.name

    def nvmlDeviceGetTemperatureThreshold(self, handle: str, kind: int) -> int:
        value = self.thresholds.get(kind, NVMLError(self.NVML_ERROR_NOT_SUPPORTED))
        if isinstance(value, NVMLError):
            raise value
        return value

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {0: 1290, 2: 7001}[kind]

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return {0: 2130, 2: 7001}[kind]

    def __getattr__(self, name: str) -> Callable[..., object]:
        values = self.__dict__.get("values", {})
        if name not in values:
            raise AttributeError(name)

        def function(handle: str, *arguments: object) -> object:
            assert handle == "handle"
            if isinstance(values[name], NVMLError):
                raise values[name]
            return values[name]

        return function
