# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node with the embedded pair: ros2 launch gemma_mtp_ros demo.launch.py"""

import os

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource

HERE = os.path.dirname(__file__)


def generate_launch_description():
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "params_file",
                default_value=os.path.join(HERE, "..", "config", "demo.yaml"),
                description="parameter file",
            ),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(os.path.join(HERE, "node.launch.py"))
            ),
        ]
    )
