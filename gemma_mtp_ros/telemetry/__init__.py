# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the board says about itself, and what follows from it for the draft length.

Imports neither torch nor rclpy. `reading` holds what is known, `sources` finds it,
`policy` decides (pure), `watchdog` polls.
"""
