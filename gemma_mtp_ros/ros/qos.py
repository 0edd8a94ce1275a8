# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Quality of service of what the node offers, as docs/interfaces.md states it."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

TOKENS = QoSProfile(
    depth=1000, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE
)
STATE = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
"""A reader that comes late gets the latest message."""
DIAGNOSTICS = QoSProfile(depth=10)
FEEDBACK = QoSProfile(depth=100)
SERVICE = QoSProfile(depth=1000)
"""Requests of a burst that wait for the executor; the default drops all but the latest ten."""
