# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node with any parameters; the other launch files include this one.

What comes later wins: config/orin.yaml and the overlay of a preset, the file of params_file, the
other arguments.

With autostart:=true the node configures and activates itself, so that one that died and was
respawned comes up active again without anyone's help. Handlers in the launch file could do the
same, but a change_state request sent while the dead process is still listed by discovery is lost,
and launch_ros waits for its answer for ever. Use autostart:=false under a lifecycle manager.
"""

import os

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, LogInfo, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

CONFIG = os.path.join(os.path.dirname(__file__), "..", "config")
BASE = "orin"
PRESETS = ("orin_nano", "orin_nx", "agx_orin", "thor", "cpu")

ARGUMENTS = (
    ("namespace", "", "namespace of the node"),
    (
        "preset",
        "none",
        f"{', '.join(PRESETS)}: that file of config/ over config/orin.yaml; auto: the one of this "
        "board; none: neither",
    ),
    ("params_file", "", "parameter file; empty: none"),
    ("autostart", "true", "the node configures and activates itself"),
    ("respawn", "false", "start the process again when it ends"),
    ("log_level", "info", "debug, info, warn, error or fatal"),
    ("use_sim_time", "false", "take the time from /clock"),
)


def truth(text):
    """The boolean that `text` says."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("is not a boolean; give true or false")
    return text.lower() in ("true", "1")


def whole(text):
    """The integer that `text` says."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def existing(text):
    """The name of the file that `text` names; launch_ros would go on without it."""
    if not os.path.isfile(text):
        raise ValueError("is not a file; give one that is there")
    return text


PARAMETERS = (
    ("model", "model", str, "folder of the target model, or name of a downloaded repository"),
    ("drafter", "drafter", str, "folder or name of its MTP drafter, or of what draft_kind says"),
    ("draft_kind", "draft.kind", str, "mtp, draft_model, prompt_lookup or none"),
    ("device", "engine.device", str, "auto, cpu or cuda"),
    ("weights", "engine.weights", str, "float32, bfloat16, int8 or int4"),
    ("kv_dtype", "engine.kv_dtype", str, "precision of keys and values"),
    ("ple", "engine.ple", str, "auto, disk or memory"),
    ("max_context", "engine.max_context", whole, "most tokens of prompt and answer together"),
    ("draft_length", "draft.max_length", whole, "most tokens drafted in a round"),
    ("cache_mib", "cache.max_mib", whole, "MiB for cached prefixes"),
    ("memory_reserve_mib", "engine.memory_reserve_mib", whole, "MiB left to the robot"),
    ("telemetry_root", "telemetry.root", str, "where the board's file tree is"),
    ("structured_output", "engine.structured_output", truth, "hold answers to schemas"),
    ("reproducible", "engine.reproducible", truth, "the same bits for every draft length"),
)
"""Arguments that set one parameter; empty: as the files say."""


def generate_launch_description():
    arguments = [*ARGUMENTS, *((name, "", what) for name, _, _, what in PARAMETERS)]
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, default, description in arguments
            ),
            OpaqueFunction(function=start),
        ]
    )


def start(context):
    """The node, once the arguments are known."""

    def given(name, read=str):
        text = LaunchConfiguration(name).perform(context)
        try:
            return read(text)
        except ValueError as error:
            raise ValueError(f"{name}:={text} {error}") from None

    said, parameters = preset_files(given("preset"), given("telemetry_root") or "/")
    if given("params_file"):
        parameters.append(given("params_file", existing))
    parameters.append({name: given(name, truth) for name in ("autostart", "use_sim_time")})
    for name, parameter, read, _ in PARAMETERS:
        if given(name):
            value = given(name, read)
            parameters.append({parameter: ParameterValue(value, value_type=type(value))})
    node = Node(
        package="gemma_mtp_ros",
        executable="node",
        name="gemma_mtp",
        namespace=given("namespace"),
        parameters=parameters,
        arguments=["--ros-args", "--log-level", given("log_level")],
        output="screen",
        respawn=given("respawn", truth),
        respawn_delay=1.0,
    )
    return [*([LogInfo(msg=said)] if said else []), node]


def preset_files(preset, root):
    """What to say, and the parameter files of a preset, base first; the board's files in `root`."""
    if preset == "none":
        return "", []
    base = os.path.join(CONFIG, f"{BASE}.yaml")
    said = f"preset {preset}"
    if preset == "auto":
        from gemma_mtp_ros.telemetry.boards import preset_here

        preset = preset_here(root)
        if not preset:
            return (
                "preset: this board is not known, config/orin.yaml alone holds; name one with "
                f"preset:= ({', '.join(PRESETS)})"
            ), [base]
        said = f"preset {preset}, by the board's model"
    if preset not in PRESETS:
        raise ValueError(f"preset:={preset} is not one of auto, none, {', '.join(PRESETS)}")
    return said, [base, os.path.join(CONFIG, f"{preset}.yaml")]
