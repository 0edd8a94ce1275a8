# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What /diagnostics says, as pure functions: engine, watchdog, memory, queue.

What cannot be read is WARN or STALE, never OK.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from gemma_mtp_ros.api import MemoryUse, ModelInfo
from gemma_mtp_ros.telemetry.policy import Decision, Level
from gemma_mtp_ros.telemetry.reading import Reading


class Health(enum.IntEnum):
    """Levels of diagnostic_msgs/DiagnosticStatus."""

    OK = 0
    WARN = 1
    ERROR = 2
    STALE = 3


@dataclasses.dataclass(frozen=True)
class Status:
    """One entry of a DiagnosticArray."""

    name: str
    health: Health
    message: str
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class EngineView:
    """What the node knows of its engine. `state` is the host's, `said` its latest sentence."""

    lifecycle: str
    state: str = "STOPPED"
    said: str = ""
    progress: str = ""
    info: ModelInfo | None = None
    pid: int | None = None
    restarts: int = 0
    error: str = ""
    """Why the latest transition failed, or the engine was given up; empty: neither."""


def engine(view: EngineView) -> Status:
    """The engine process: a new one coming up after a loss is an ERROR until it is ready."""
    values = {
        "lifecycle": view.lifecycle,
        "state": view.state,
        "restarts": str(view.restarts),
        "pid": "none" if view.pid is None else str(view.pid),
    }
    if view.info is not None:
        values |= {
            "model": view.info.model,
            "drafter": view.info.drafter or "none",
            "precision": view.info.precision,
            "device": view.info.device,
            "reproducible": view.info.reproducible,
        }
    if view.state == "READY":
        return Status("engine", Health.OK, "ready", values)
    if view.state == "LOADING" and view.lifecycle == "configuring":
        return Status("engine", Health.WARN, f"loading {view.progress}".rstrip(), values)
    if view.state == "LOADING":
        said = view.said or "the engine was lost"
        return Status("engine", Health.ERROR, f"a new engine is loading: {said}", values)
    if view.error or view.state == "FAILED":
        return Status("engine", Health.ERROR, view.error or view.said, values)
    return Status("engine", Health.OK, f"no model is loaded: the node is {view.lifecycle}", values)


@dataclasses.dataclass(frozen=True)
class Watch:
    """What the node knows of its watchdog; None is unknown.

    decided_s, now_s: CLOCK_MONOTONIC of the latest decision, and of the question. acceptance: share
    of the running or latest goal's drafts that stood.
    """

    latest: tuple[Reading, Decision] | None
    decided_s: float
    now_s: float
    acceptance: float | None = None


def watchdog(watch: Watch, stale_after_s: float) -> Status:
    """The watchdog, and the board as it sees it."""
    if watch.latest is None:
        return Status("watchdog", Health.STALE, "the watchdog has not decided yet")
    reading, decision = watch.latest
    silent_s = watch.now_s - watch.decided_s
    values = {
        "level": decision.level.name,
        "draft_cap": str(decision.draft_cap),
        "duty": f"{decision.duty:.3f}",
        "pause_s": f"{decision.pause_s:.3f}",
        "acceptance": _shown(watch.acceptance, 3),
        "advice": decision.advice or "none",
        "source": reading.source,
        "age_s": f"{reading.age_s(watch.now_s):.1f}",
        "hottest_zone": reading.hottest_zone or "unknown",
        "temperature_c": _shown(reading.temperature_c, 1),
        "margin_c": _shown(reading.margin_c, 1),
        "power_w": _shown(reading.power_w, 2),
        "power_mode": reading.power_mode or "unknown",
        "throttle": reading.throttle.name,
        "over_current_per_s": _shown(reading.over_current_per_s, 2),
    }
    for zone, temperature in reading.zones.items():
        values[f"zone {zone} (degC)"] = _shown(temperature, 1)
    if silent_s > stale_after_s:
        said = f"the watchdog has not decided for {silent_s:.1f} s; the engine takes the stale cap"
        return Status("watchdog", Health.STALE, said, values)
    if decision.level is Level.CRITICAL:
        health = Health.ERROR
    elif decision.level in (Level.UNKNOWN, Level.WARM, Level.HOT):
        health = Health.WARN
    else:
        health = Health.OK
    said = f"{decision.reason} {decision.advice}".rstrip()
    if reading.temperature_c is None and health is Health.OK:
        health, said = Health.WARN, f"{said} No temperature can be read."
    return Status("watchdog", health, said, values)


def memory(
    available_mib: float | None,
    engine_mib: float | None,
    reserve_mib: int,
    held: MemoryUse | None = None,
) -> Status:
    """Memory left to the robot, against `engine.memory_reserve_mib`; what the engine `held` for."""
    values = {
        "available_mib": _shown(available_mib, 0),
        "engine_mib": "none" if engine_mib is None else f"{engine_mib:.0f}",
        "reserve_mib": str(reserve_mib),
    }
    if held is not None:
        values |= {f"{name}_mib": f"{size / 2**20:.1f}" for name, size in held}
    if available_mib is None:
        return Status("memory", Health.STALE, "the available memory cannot be read", values)
    said = f"{available_mib:.0f} MiB available"
    if available_mib < reserve_mib:
        said += f", less than engine.memory_reserve_mib = {reserve_mib}"
        return Status("memory", Health.WARN, said, values)
    return Status("memory", Health.OK, said, values)


def queue(
    depth: int, queue_size: int, busy_policy: str, running: bool, counts: Mapping[str, int]
) -> Status:
    """The queue of goals; `counts` says how many ended how."""
    values = {
        "waiting": str(depth),
        "queue_size": str(queue_size),
        "busy_policy": busy_policy,
        "running": str(running).lower(),
    }
    values |= {f"goals_{name}": str(count) for name, count in counts.items()}
    if queue_size and depth >= queue_size:
        said = f"full: {depth} goals wait, new ones of the same priority end QUEUE_FULL"
        return Status("queue", Health.WARN, said, values)
    return Status("queue", Health.OK, f"{depth} of {queue_size} places taken", values)


def _shown(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
