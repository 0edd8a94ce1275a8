# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Source this in bash, after make build: the environment that make demo and make test run in (ROS 2
# from .venv, the package from .ws). Nodes talk to nodes of this machine only, unless
# ROS_AUTOMATIC_DISCOVERY_RANGE says otherwise.

_gemma_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$_gemma_root/scripts/clean_env.sh"
. "$_gemma_root/.venv/bin/activate"
export AMENT_PREFIX_PATH=$VIRTUAL_ENV CMAKE_PREFIX_PATH=$VIRTUAL_ENV
export ROS_DISTRO=jazzy ROS_VERSION=2 ROS_PYTHON_VERSION=3 RMW_IMPLEMENTATION=rmw_fastrtps_cpp
export ROS_AUTOMATIC_DISCOVERY_RANGE=${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}

# The ROS wheels would start Python a second time to find their libraries; this spares it.
LD_LIBRARY_PATH=$VIRTUAL_ENV/lib
for _gemma_libs in "$VIRTUAL_ENV"/lib/python3.*/site-packages/ros_*.libs; do
  LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$_gemma_libs
done
export LD_LIBRARY_PATH _ROS_WHEELS_BOOTSTRAP_COMPLETE=1

# The package's own file: colcon's install/setup.bash fails in a path with a space.
if [ "${1:-}" != --no-workspace ]; then
  . "$_gemma_root/.ws/install/gemma_mtp_ros/share/gemma_mtp_ros/local_setup.bash"
fi
unset _gemma_root _gemma_libs
