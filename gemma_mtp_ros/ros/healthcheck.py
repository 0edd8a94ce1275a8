# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Asks a node for its lifecycle state: ``python3 -m gemma_mtp_ros.ros.healthcheck``.

For a container's HEALTHCHECK and for supervisors. Exit status 0 is healthy, 1 is not; one line says
why. The node answers `get_state` during a load and while it generates, so no answer within the
deadline means that it hangs or is gone.
"""

from __future__ import annotations

import argparse
import sys
import time

import rclpy
from lifecycle_msgs.srv import GetState
from rclpy.exceptions import InvalidServiceNameException
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rclpy.validate_full_topic_name import validate_full_topic_name

HEALTHY = ("active", "inactive")
"""An inactive node has its model loaded and was told by someone to take no goals."""

TIMEOUT_S = 8.0
"""Discovery on a busy board takes seconds."""


def verdict(label: str, only_active: bool = False) -> tuple[bool, str]:
    """Whether a node in this state is healthy, and the line that says so."""
    if label == "active":
        return True, "active: takes goals"
    if label == "inactive":
        return not only_active, "inactive: the model is loaded, goals are rejected"
    if label == "configuring":
        return False, "configuring: the model is still loading"
    return False, f"{label or 'unknown'}: no model is served"


def state_of(name: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """Label of the node's lifecycle state; None if it did not answer within `timeout_s`."""
    until_s = time.monotonic() + timeout_s
    context = rclpy.Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = rclpy.create_node(
            "healthcheck",
            context=context,
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(node)
        client = node.create_client(GetState, f"{name}/get_state")
        if not client.wait_for_service(timeout_s):
            return None
        answer = client.call_async(GetState.Request())
        executor.spin_until_future_complete(answer, max(until_s - time.monotonic(), 0.0))
        if not answer.done():
            return None
        label: str = answer.result().current_state.label
        return label
    finally:
        context.try_shutdown()


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python3 -m gemma_mtp_ros.ros.healthcheck",
        description="Healthy (0) while the node is active or inactive; else 1.",
    )
    parser.add_argument("--node", default="/gemma_mtp", help="full name (default: /gemma_mtp)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help="default: %(default)g s"
    )
    parser.add_argument(
        "--only-active", action="store_true", help="a node that is inactive is not healthy"
    )
    given = parser.parse_args(arguments)
    name = "/" + given.node.strip("/")
    try:
        validate_full_topic_name(f"{name}/get_state", is_service=True)
    except InvalidServiceNameException:
        parser.error(f"--node {given.node!r} is no name of a node; give one such as /gemma_mtp")
    label = state_of(name, given.timeout)
    if label is None:
        print(f"{name} did not answer get_state within {given.timeout:g} s")
        return 1
    healthy, said = verdict(label, given.only_active)
    print(f"{name} is {said}")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
