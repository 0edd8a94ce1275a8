# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Topics that speak in every state of the node: ~/power, ~/stats and /diagnostics."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import psutil
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from gemma_mtp_ros.host import EngineHost
from gemma_mtp_ros.msg import EngineStats, PowerState
from gemma_mtp_ros.ros import health, logs, qos
from gemma_mtp_ros.ros.convert import Outcome, known, power_state, set_stamp
from gemma_mtp_ros.ros.meter import Meter
from gemma_mtp_ros.ros.settings import Settings
from gemma_mtp_ros.telemetry.energy import Energy
from gemma_mtp_ros.telemetry.policy import Decision, Level
from gemma_mtp_ros.telemetry.reading import Reading

PERIOD_S = 1.0

PACED_FROM, PACED_UNTIL = 0.95, 0.995
"""Shares of the time from which on pacing is told of, and up to which it goes on."""

LOUDNESS = {
    Level.UNKNOWN: logging.WARNING,
    Level.HOT: logging.WARNING,
    Level.CRITICAL: logging.ERROR,
}
"""Levels that are more than information."""


class Monitor:
    """Publishes once a second on a steady timer (a ROS timer stands still while /clock does).

    `host` gives the host of the moment, or None; `view` what else is known of the engine.
    """

    def __init__(
        self,
        node: Node,
        settings: Settings,
        group: CallbackGroup,
        meter: Meter,
        host: Callable[[], EngineHost | None],
        view: Callable[[], health.EngineView],
    ) -> None:
        self._node = node
        self._settings = settings
        self._meter = meter
        self._host = host
        self._view = view
        self._latest: tuple[Reading, Decision] | None = None
        self._decided_s = 0.0
        self._told: tuple[Level | None, bool] = (None, False)
        self.energy = Energy()
        self._power = node.create_publisher(PowerState, "~/power", qos.STATE)
        self._stats = node.create_publisher(EngineStats, "~/stats", qos.STATE)
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._timer = node.create_timer(
            PERIOD_S,
            self._tick,
            callback_group=group,
            clock=Clock(clock_type=ClockType.STEADY_TIME),
        )

    @property
    def latest(self) -> tuple[Reading, Decision] | None:
        """The watchdog's latest reading and decision."""
        return self._latest

    def decided(self, reading: Reading, decision: Decision) -> None:
        """Publish ~/power; called on the watchdog's thread at every poll."""
        self._latest, self._decided_s = (reading, decision), time.monotonic()
        self.energy.add(reading.stamp_s, reading.power_w, reading.power_is_mean)
        self._tell(decision)
        state = power_state(reading, decision)
        set_stamp(state.header.stamp, self._node.get_clock(), reading.stamp_s)
        self._power.publish(state)

    def _tell(self, decision: Decision) -> None:
        """Log a level that changed, and where pacing begins and ends."""
        level, paced = self._told
        now_paced = decision.duty < (PACED_UNTIL if paced else PACED_FROM)
        if (level, paced) == (decision.level, now_paced):
            return
        self._told = (decision.level, now_paced)
        said = f"watchdog {decision.level.name}: {decision.reason} {decision.advice}".rstrip()
        logs.log(self._node.get_logger(), LOUDNESS.get(decision.level, logging.INFO), said)

    def publish_stats(self) -> None:
        """Publish ~/stats: once a second, and after each goal."""
        host = self._host()
        figures = self._meter.figures
        stats = EngineStats()
        stats.header.stamp = self._node.get_clock().now().to_msg()
        stats.tokens_per_second = figures.tokens_per_second
        stats.acceptance_rate = figures.acceptance_rate
        stats.tokens_per_pass = figures.tokens_per_pass
        stats.draft_length = figures.draft_length
        stats.ttft_s = figures.ttft_s
        stats.goals_succeeded = self._meter.counts[Outcome.SUCCEEDED]
        stats.goals_aborted = self._meter.counts[Outcome.ABORTED]
        stats.goals_canceled = self._meter.counts[Outcome.CANCELED]
        view = self._view()
        stats.engine_restarts = view.restarts
        stats.engine_memory_mib = known(host.memory_mib if host is not None else None)
        if host is not None:
            stats.queue_depth = host.queue_depth
        if view.info is not None:
            stats.model = view.info.model
            stats.reproducible = view.info.reproducible
        self._stats.publish(stats)

    def publish_diagnostics(self) -> None:
        """Publish /diagnostics: engine, watchdog, memory, queue."""
        host = self._host()
        acceptance = self._meter.figures.acceptance_rate
        watch = health.Watch(
            self._latest,
            self._decided_s,
            time.monotonic(),
            None if math.isnan(acceptance) else acceptance,
        )
        statuses = (
            health.engine(self._view()),
            health.watchdog(watch, self._settings["watchdog.stale_after_s"]),
            health.memory(
                _available_mib(),
                host.memory_mib if host is not None else None,
                self._settings["engine.memory_reserve_mib"],
                None if host is None or host.info is None else host.info.memory,
            ),
            health.queue(
                host.queue_depth if host is not None else 0,
                self._settings["queue_size"],
                self._settings["busy_policy"],
                host is not None and host.running_id is not None,
                {ended.value: count for ended, count in self._meter.counts.items()},
            ),
        )
        name = self._node.get_fully_qualified_name().lstrip("/")
        array = DiagnosticArray()
        array.header.stamp = self._node.get_clock().now().to_msg()
        array.status = [_diagnostic(name, status) for status in statuses]
        self._diagnostics.publish(array)

    def _tick(self) -> None:
        try:
            self.publish_stats()
            self.publish_diagnostics()
        except Exception as error:  # an exception here would end the executor's spin
            self._node.get_logger().error(f"publishing statistics failed: {error!r}")


def _available_mib() -> float | None:
    try:
        return float(psutil.virtual_memory().available) / 2**20
    except (OSError, KeyError, ValueError, RuntimeError):
        return None


def _diagnostic(name: str, status: health.Status) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=bytes([status.health]),
        name=f"{name}: {status.name}",
        message=status.message,
        hardware_id=name,
        values=[KeyValue(key=key, value=value) for key, value in status.values.items()],
    )
