# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node on a Jetson Thor: ros2 launch gemma_mtp_ros thor.launch.py model:=... drafter:=...

Laid over the base is config/thor.yaml; gemma-mtp plan prints the line for a board and a model.
"""

import os

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

HERE = os.path.dirname(__file__)


def generate_launch_description():
    return LaunchDescription(
        [
            DeclareLaunchArgument("model", description="folder of the Gemma 4 target"),
            DeclareLaunchArgument(
                "preset",
                default_value="thor",
                description="thor, cpu; auto: that of this board; none",
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(os.path.join(HERE, "node.launch.py"))
            ),
        ]
    )
