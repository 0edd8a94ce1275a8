# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine may take of the robot's computer; set in its process, before torch is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from ..api import EngineConfig, ErrorCode, GemmaMtpError

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def let_idle_threads_sleep() -> None:
    """Have OpenMP's idle threads sleep; to be called before torch is loaded.

    By default they spin for some milliseconds after each operation, which takes the CPU from the
    robot, and, where other processes keep the cores busy, from the engine itself: two threads on
    two busy cores decoded at a tenth of the speed of sleeping ones.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def apply(config: EngineConfig) -> list[str]:
    """Bound this process; return a warning for each bound that the system did not grant.

    Raises:
        GemmaMtpError: ``engine.cpu_affinity`` names a CPU that is not there.
    """
    let_idle_threads_sleep()
    if config.threads:
        for name in _THREAD_VARIABLES:
            os.environ[name] = str(config.threads)
    # One prompt at a time gives the tokenizer's own threads nothing to do.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if config.cpu_affinity:
        _pin(set(config.cpu_affinity))
    warnings = []
    if os.getpriority(os.PRIO_PROCESS, 0) < config.nice:
        os.setpriority(os.PRIO_PROCESS, 0, config.nice)
        # With a session of its own the engine is a scheduling group of its own, where the kernel
        # groups by session (sched(7), "The autogroup feature"): then the group's value counts.
        warnings += _write("/proc/self/autogroup", config.nice, "engine.nice")
    warnings += _write("/proc/self/oom_score_adj", config.oom_score_adj, "engine.oom_score_adj")
    return warnings


def apply_to_torch(config: EngineConfig) -> None:
    """Bound torch's own threads; imports torch."""
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)
        torch.set_num_interop_threads(config.threads)


class DutyCycle:
    """How long to pause so that work takes at most a share of the time, over rounds and goals.

    The debt is kept as work, so that a share that changes in a pause counts at once.
    """

    def __init__(self) -> None:
        self._unpaid_s = 0.0

    def owed_s(self, share: float) -> float:
        """Pause that is due: t seconds of work owe t (1 - share) / share of rest."""
        return self._unpaid_s * (1.0 - share) / share

    def worked(self, time_s: float, share: float) -> None:
        """Account for work; while all of the time is granted it owes nothing."""
        if share < 1.0:
            self._unpaid_s += time_s

    def let_off(self, longest_s: float, share: float) -> None:
        """Bound the pause that is due."""
        if share < 1.0:
            self._unpaid_s = min(self._unpaid_s, longest_s * share / (1.0 - share))

    def rested(self, time_s: float, share: float) -> None:
        """Account for rest; what is rested beyond the debt does not count for later work."""
        paid_s = time_s * share / (1.0 - share) if share < 1.0 else self._unpaid_s
        self._unpaid_s = max(0.0, self._unpaid_s - paid_s)


def _pin(wanted: set[int]) -> None:
    try:
        os.sched_setaffinity(0, wanted)
        granted = os.sched_getaffinity(0)
    except (OSError, ValueError, OverflowError):
        granted = set()
    if granted != wanted:
        missing = sorted(wanted - granted)
        usable = sorted(granted or os.sched_getaffinity(0))
        raise GemmaMtpError(
            f"engine.cpu_affinity names CPUs that this process may not run on: {missing}; "
            f"name some of {usable}",
            ErrorCode.BACKEND_UNAVAILABLE,
        )


def _write(path: str, value: int, parameter: str) -> list[str]:
    if not Path(path).exists():
        return []
    try:
        Path(path).write_text(str(value))
    except OSError as error:
        return [f"{parameter} = {value} could not be set: {error}"]
    return []
