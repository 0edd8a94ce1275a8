# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The ROS surface: the only part of the package that imports rclpy.

`parameters` and `convert` are pure; `settings` declares the parameters on a node,
`generate_server` serves the action, `services` the services, `monitor` speaks of health,
`transitions` walks the lifecycle, `node` puts them together.
"""
