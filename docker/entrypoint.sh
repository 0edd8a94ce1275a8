#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# Sources ROS and the workspace, then becomes the command, so that signals reach it.

set -e
source /opt/ros/jazzy/setup.bash
source /ws/install/setup.bash
exec "$@"
