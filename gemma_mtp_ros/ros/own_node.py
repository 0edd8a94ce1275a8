# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A node of its own for a client in a script: context, executor and thread."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

_numbers = itertools.count()


class OwnNode:
    """A node in a context of its own, with a thread that spins it.

    Signals are left to the caller: rclpy's handlers would shut the context down before a goal
    could be canceled.
    """

    def __init__(self) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(
            f"generate_client_{os.getpid()}_{next(_numbers)}",
            context=self._context,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name="generate client", daemon=True)

    def start(self) -> None:
        """Begin to spin."""
        self._thread.start()

    def stop(self, destroy: Callable[[], None]) -> None:
        """Stop spinning, call `destroy`, leave ROS."""
        self._executor.shutdown()
        self._thread.join()
        destroy()
        self.node.destroy_node()
        self._context.try_shutdown()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self._executor.spin()
