#!/usr/bin/env bash
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
#
# Sources ROS and, where it is built, the workspace; then becomes the command, so that signals reach
# it.

set -e
# shellcheck source=/dev/null
source "/opt/ros/${ROS_DISTRO:?is set by the image}/setup.bash"
if [ -f /ws/install/setup.bash ]; then
  # shellcheck source=/dev/null
  source /ws/install/setup.bash
fi
exec "$@"
