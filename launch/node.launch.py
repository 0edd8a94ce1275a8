# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node with any parameter file; demo.launch.py and orin.launch.py include this.

With autostart:=true the node configures and activates itself, so that one that died and was
respawned comes up active again without anyone's help. Handlers in the launch file could do the
same, but a change_state request sent while the dead process is still listed by discovery is lost,
and launch_ros waits for its answer for ever. Use autostart:=false under a lifecycle manager.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

ARGUMENTS = (
    ("namespace", "", "namespace of the node"),
    ("params_file", "", "parameter file; empty: the defaults of docs/parameters.md"),
    ("model", "", "folder of the target model; empty: as the parameter file says"),
    ("drafter", "", "folder of its MTP drafter; empty: as the parameter file says"),
    ("autostart", "true", "the node configures and activates itself"),
    ("respawn", "false", "start the process again when it ends"),
    ("log_level", "info", "debug, info, warn, error or fatal"),
    ("use_sim_time", "false", "take the time from /clock"),
)


def generate_launch_description():
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, default, description in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=start)])


def start(context):
    """The node, once the arguments are known."""
    given = {name: LaunchConfiguration(name).perform(context) for name, *_ in ARGUMENTS}
    parameters = [given["params_file"]] if given["params_file"] else []
    parameters.append({name: truth(name, given[name]) for name in ("autostart", "use_sim_time")})
    for name in ("model", "drafter"):
        if given[name]:
            parameters.append({name: ParameterValue(given[name], value_type=str)})
    return [
        Node(
            package="gemma_mtp_ros",
            executable="node",
            name="gemma_mtp",
            namespace=given["namespace"],
            parameters=parameters,
            arguments=["--ros-args", "--log-level", given["log_level"]],
            output="screen",
            respawn=truth("respawn", given["respawn"]),
            respawn_delay=1.0,
        )
    ]


def truth(name, text):
    """The boolean that `text` says."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError(f"{name}:={text} is not a boolean; give true or false")
    return text.lower() in ("true", "1")
