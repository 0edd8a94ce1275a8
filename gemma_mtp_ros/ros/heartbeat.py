# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The bond to a lifecycle manager, as Nav2's: topic bond, id the node's name, while active.

Only where bondpy is installed. The manager learns by it that the process died or left ACTIVE.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.node import Node

TOPIC = "bond"
TIMEOUT_S = 4.0
"""Nav2's: silence after which the other side is taken for dead."""

SWITCH_S = 2.0
"""Longest wait for the executor to start or break a bond."""


class Heartbeat:
    """At most one bond at a time; to be used by one thread at a time, not the executor's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._bond: Any = None

    def start(self, period_s: float) -> None:
        """Begin to beat every `period_s` seconds; 0 or less, or no bondpy: no bond."""
        self.stop()
        if period_s <= 0:
            return
        try:
            from bondpy.bondpy import Bond
        except ImportError:
            self._node.get_logger().debug("bondpy is not installed: no bond")
            return

        def begin() -> None:
            bond = Bond(self._node, TOPIC, self._node.get_name())
            bond.heartbeat_period = period_s
            bond.heartbeat_timeout = TIMEOUT_S
            bond.start()
            self._bond = bond

        self._on_executor(begin)

    def stop(self) -> None:
        """Break the bond, and take its publisher and subscription off the node."""
        bond, self._bond = self._bond, None
        if bond is None:
            return

        def end() -> None:
            bond.shutdown()
            self._node.destroy_subscription(bond.sub)
            self._node.destroy_publisher(bond.pub)

        self._on_executor(end)

    def _on_executor(self, work: Callable[[], None]) -> None:
        """Run `work` where no wait set holds what it makes or destroys (rclpy #1142, #1206)."""
        executor = self._node.executor
        if executor is None:
            work()
            return
        done = threading.Event()

        def run() -> None:
            try:
                work()
            except Exception as error:  # the executor would log it as a failure of its own
                self._node.get_logger().error(f"bond: {error!r}")
            finally:
                done.set()

        executor.create_task(run)
        if not done.wait(SWITCH_S):
            self._node.get_logger().warning("the executor is busy: the bond is late")
