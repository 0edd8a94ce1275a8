# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in examples/nav2, against the action and against itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import yaml

from gemma_mtp_ros.api import ErrorCode

ROOT = Path(__file__).parent.parent
NAV2 = ROOT / "examples" / "nav2"
HEADER = (NAV2 / "ask_model_action.hpp").read_text()
TREE = ElementTree.parse(NAV2 / "ask_model.xml").getroot()
GOAL, RESULT, _ = (ROOT / "action" / "Generate.action").read_text().split("\n---\n")
# Of BtActionNode::providedBasicPorts (nav2_behavior_tree, Jazzy to Lyrical).
BASIC = {"server_name": "string", "server_timeout": "chrono::milliseconds"}
TYPES = {
    "std::string": "string",
    "std::chrono::milliseconds": "chrono::milliseconds",
    "std::vector<gemma_mtp_ros::msg::ToolCall>": "vector<gemma_mtp_ros::msg::ToolCall>",
    "ActionResult::_error_code_type": "uint16",
}


def ports(kind: str) -> dict[str, str]:
    """Name and type of the ports that the header provides: kind is Input or Output."""
    found = re.findall(rf"BT::{kind}Port<(.+?)>\(\s*\"(\w+)\"", HEADER)
    return {name: TYPES.get(type_, type_) for type_, name in found}


def model(kind: str) -> dict[str, str]:
    (action,) = TREE.findall("TreeNodesModel/Action")
    assert action.get("ID") == "AskModel"
    return {port.attrib["name"]: port.attrib["type"] for port in action.findall(f"{kind}_port")}


def fields(part: str) -> set[str]:
    """Fields and constants of a part of the action."""
    return set(re.findall(r"^[\w/]+(?:\[\])? (\w+)", part, re.MULTILINE))


def test_the_model_has_the_ports_of_the_header() -> None:
    assert model("input") == ports("Input") | BASIC
    assert model("output") == ports("Output")
    assert {"error_code_id": "uint16", "error_msg": "string"}.items() <= model("output").items()


def test_defaults_of_the_model_are_those_of_the_header() -> None:
    default = re.findall(r"Port<(?:int|float|double)>\(\"(\w+)\", ([-\d.]+)", HEADER)
    (action,) = TREE.findall("TreeNodesModel/Action")
    said = {p.attrib["name"]: float(p.attrib["default"]) for p in action if "default" in p.attrib}
    assert said == {name: float(value) for name, value in default}


def test_the_tree_names_only_ports_that_there_are() -> None:
    (ask,) = TREE.iter("AskModel")
    assert set(ask.attrib) - {"name"} <= {*model("input"), *model("output")}
    assert TREE.attrib == {"BTCPP_format": "4", "main_tree_to_execute": "AskWhileThereIsPower"}
    assert [tree.get("ID") for tree in TREE.findall("BehaviorTree")] == ["AskWhileThereIsPower"]


def test_the_header_reads_and_writes_every_port() -> None:
    assert set(re.findall(r"getInput\(\"(\w+)\"", HEADER)) == {*ports("Input")} - {"cancel_timeout"}
    assert set(re.findall(r"setOutput\(\"(\w+)\"", HEADER)) == set(ports("Output"))


def test_the_header_uses_fields_and_constants_of_the_action() -> None:
    sampling = fields((ROOT / "msg" / "SamplingParams.msg").read_text())
    used = re.findall(r"goal_\.(\w+)(?:\.(\w+))?", HEADER)
    assert {name for name, _ in used} <= fields(GOAL)
    assert {inner for _, inner in used if inner} <= sampling
    assert set(re.findall(r"result_\.result->(\w+)", HEADER)) <= fields(RESULT)
    constants = set(re.findall(r"ActionResult::([A-Z][A-Z_]+)", HEADER))
    assert constants
    assert constants <= set(re.findall(r"^uint\d+ ([A-Z_]+)=", RESULT, re.MULTILINE))
    assert {name for name in constants if not name.startswith("FINISH_")} <= set(
        ErrorCode.__members__
    )


def test_the_plugin_registers_the_tag_of_the_tree() -> None:
    plugin = (NAV2 / "ask_model_action.cpp").read_text()
    assert re.findall(r"registerBuilder<gemma_mtp_bt::(\w+)>\(\"(\w+)\"", plugin) == [
        ("AskModelAction", "AskModel")
    ]
    assert '"/gemma_mtp/generate"' in plugin
    assert "class AskModelAction" in HEADER


def parameters(name: str, node: str) -> dict[str, Any]:
    document = yaml.safe_load((NAV2 / name).read_text())
    assert list(document) == [node]
    return document[node]["ros__parameters"]


# declare_parameter in nav2_lifecycle_manager/src/lifecycle_manager.cpp, Jazzy; and Kilted's.
MANAGER = {
    "node_names": list,
    "autostart": bool,
    "bond_timeout": float,
    "bond_respawn_max_duration": float,
    "attempt_respawn_reconnection": bool,
    "service_timeout": float,
}


def test_the_manager_is_given_parameters_that_it_has() -> None:
    given = parameters("lifecycle_manager.yaml", "lifecycle_manager_language")
    assert {name: type(value) for name, value in given.items()} == {
        name: MANAGER[name] for name in given
    }
    assert given["node_names"] == ["gemma_mtp"]
    assert given["bond_timeout"] == 0.0
    assert given["service_timeout"] > 300.0  # longer than a load without progress is given


def test_the_manager_knows_the_node_by_its_name() -> None:
    (name,) = parameters("lifecycle_manager.yaml", "lifecycle_manager_language")["node_names"]
    assert f'name="{name}"' in (ROOT / "launch" / "node.launch.py").read_text()


# What GenericAnalyzer::init reads (diagnostic_aggregator/src/generic_analyzer.cpp), and the group.
ANALYZER = {
    *("type", "path", "find_and_remove_prefix", "remove_prefix", "startswith", "contains"),
    *("expected", "regex", "timeout", "num_items", "discard_stale"),
}


def test_the_analyzers_have_the_form_of_the_aggregator() -> None:
    given = parameters("diagnostics.yaml", "analyzers")
    groups = {name: value for name, value in given.items() if isinstance(value, dict)}
    assert set(given) - set(groups) <= {"path", "pub_rate", "other_as_errors", "history_depth"}
    assert groups
    for group in groups.values():
        assert group["type"] == "diagnostic_aggregator/GenericAnalyzer"
        assert set(group) <= ANALYZER
        assert isinstance(group["timeout"], float)
        assert group["num_items"] == len(group["expected"])
