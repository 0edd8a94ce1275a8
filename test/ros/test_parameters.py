# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The parameter table, and what the node makes of a parameter file and of sets while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import annotated_types
import pytest
import rclpy
from driver import ERROR, Driver, assert_sentence, running_node
from rcl_interfaces.srv import DescribeParameters
from rclpy.parameter import Parameter

from gemma_mtp_ros.api import EngineConfig
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.models import resolve_pair
from gemma_mtp_ros.ros.parameters import (
    BY_NAME,
    TABLE,
    When,
    check,
    coerce,
    markdown,
    unknown_names,
)
from gemma_mtp_ros.ros.settings import Settings
from gemma_mtp_ros.telemetry.policy import PolicyConfig

REPOSITORY = Path(__file__).parent.parent.parent


def test_the_page_is_the_table() -> None:
    assert (REPOSITORY / "docs" / "parameters.md").read_text() == markdown()


def test_names_are_unique_and_none_is_value_and_group() -> None:
    names = [spec.name for spec in TABLE]
    assert len(set(names)) == len(names)
    groups = {name.rsplit(".", 1)[0] for name in names if "." in name}
    assert groups & set(names) == set()


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.name)
def test_each_default_is_allowed_and_described(spec: Any) -> None:
    assert check(spec, list(spec.default) if spec.kind.endswith("array") else spec.default) == ""
    assert spec.description.endswith(".")
    assert "|" not in spec.description


def test_defaults_and_bounds_are_those_of_the_engine() -> None:
    for name, field in EngineConfig.model_fields.items():
        spec = BY_NAME.get(f"engine.{name}")
        if spec is None:
            assert name in (
                "model",
                "drafter",
                "draft_kind",
                "max_new_tokens",
                "adaptive_draft",
                "cache_max_mib",
            )
            continue
        assert spec.default == field.default, name
        for bound in field.metadata:
            if isinstance(bound, annotated_types.Ge):
                assert spec.low == bound.ge, name
            if isinstance(bound, annotated_types.Gt):
                assert spec.above == bound.gt, name
            if isinstance(bound, annotated_types.Le):
                assert spec.high == bound.le, name
        for choice in spec.choices:
            EngineConfig(model="m", **{name: choice})
    engine = {name.removeprefix("engine.") for name in BY_NAME if name.startswith("engine.")}
    assert engine <= EngineConfig.model_fields.keys()


def test_every_field_of_the_policy_has_a_parameter() -> None:
    fields = set(PolicyConfig.__dataclass_fields__)
    watchdog = {name.removeprefix("watchdog.") for name in BY_NAME if name.startswith("watchdog.")}
    assert watchdog - fields == {"period_s", "stale_draft_cap"}
    assert fields <= watchdog


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("draft.max_length", 8, "0 to 7"),
        ("draft.max_length", -1, "0 to 7"),
        ("draft.max_length", 2.0, "integer"),
        ("draft.max_length", "4", "integer"),
        ("draft.max_length", True, "integer"),
        ("sampling.temperature", -0.5, "-1 or 0"),
        ("sampling.temperature", float("nan"), "-1 or 0"),
        ("sampling.temperature", float("inf"), "-1 or 0"),
        ("sampling.top_p", 0.0, "above 0"),
        ("sampling.max_new_tokens", 0, "-1 or 1"),
        ("engine.weights", "bfloat61", "did you mean bfloat16"),
        ("engine.reproducible", 1, "bool"),
        ("watchdog.mode", False, "quotes"),
        ("watchdog.mode", "gard", "did you mean guard"),
        ("engine.cpu_affinity", ["0"], "[0, 1]"),
        ("engine.cpu_affinity", [-1], "0 or more"),
        ("watchdog.draft_cap", "HOT=2", "HOT=2"),
        ("engine.stall_timeout_s", 0, "above 0"),
        ("model", None, "string"),
        ("model", 5, "string"),
    ],
)
def test_a_bad_value_gets_a_sentence(name: str, value: Any, word: str) -> None:
    sentence = check(BY_NAME[name], value)
    assert_sentence(sentence)
    assert sentence.startswith(f"{name} = ")
    assert word in sentence


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "draft.max_length",
            "4",
            "draft.max_length = '4' is not an integer; give an integer (0 to 7)",
        ),
        (
            "sampling.top_p",
            2.0,
            "sampling.top_p = 2.0 is outside the allowed range; give a value in it "
            "(-1 or above 0.0 up to 1.0)",
        ),
        ("model", 5, "model = 5 is not a string; give a string"),
        (
            "engine.cpu_affinity",
            0,
            "engine.cpu_affinity = 0 is not an integer array; give a list such as [0, 1]",
        ),
    ],
)
def test_sentences_are_english(name: str, value: Any, sentence: str) -> None:
    assert check(BY_NAME[name], value) == sentence


EMBEDDED = (str(TARGET_DIR), str(DRAFTER_DIR))


@pytest.mark.parametrize(
    ("model", "drafter", "pair"),
    [
        ("demo", "", EMBEDDED),
        ("demo", "demo", EMBEDDED),
        ("demo", "none", (EMBEDDED[0], "")),
        ("demo", "other", (EMBEDDED[0], "other")),
        ("other", "", ("other", "")),
        ("other", "none", ("other", "")),
        ("other", "demo", ("other", EMBEDDED[1])),
    ],
)
def test_node_and_command_line_mean_the_same_pair(
    driver: Driver, model: str, drafter: str, pair: tuple[str, str]
) -> None:
    given = [Parameter("model", value=model), Parameter("drafter", value=drafter)]
    node = rclpy.create_node("settings", context=driver.context, parameter_overrides=given)
    try:
        config = Settings(node, lambda: True, lambda _changed: None).engine_config()
    finally:
        node.destroy_node()
    assert (config.model, config.drafter) == pair == resolve_pair(model, drafter)


@pytest.mark.parametrize("arguments", [("--log-level", "loud"), ("--params-file",), ("--foo",)])
def test_arguments_that_ros_does_not_take_get_one_sentence(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    if arguments == ("--params-file",):
        file = tmp_path / "file.yaml"
        file.write_text("a: [1,")
        arguments = (*arguments, str(file))
    ended = subprocess.run(
        [sys.executable, "-m", "gemma_mtp_ros.ros.node", "--ros-args", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    said = [line for line in ended.stderr.splitlines() if "the node cannot start" in line]
    assert len(said) == 1
    assert arguments[-1] in said[0]


def test_an_integer_is_taken_for_a_double() -> None:
    spec = BY_NAME["engine.stall_timeout_s"]
    assert check(spec, 3) == ""
    assert isinstance(coerce(spec, 3), float)


def test_an_unknown_name_is_told_with_the_likeliest_one() -> None:
    (sentence,) = unknown_names(["modell", "use_sim_time", "qos_overrides./tokens.depth", "model"])
    assert "modell" in sentence
    assert "did you mean model?" in sentence
    (sentence,) = unknown_names(["draft.max_lenght"])
    assert "did you mean draft.max_length?" in sentence
    (sentence,) = unknown_names(["zzz"])
    assert "docs/parameters.md" in sentence


def test_a_file_with_bad_values_and_sets_while_it_runs(driver: Driver, tmp_path: Path) -> None:
    file = {
        "model": str(tmp_path),
        "drafterr": "x",
        "queue_size": 2,
        "goal_timeout_s": 5,
        "sampling": {"temperature": 0},
        "draft": {"max_length": 9},
        "watchdog": {"mode": False, "draft_cap": ["HOT=2"]},
        "telemetry": {"root": str(tmp_path / "nowhere")},
        "engine": {"threads": "two"},
    }
    with running_node(tmp_path / "node", driver, file) as node:
        # The process lives, says what is wrong, and holds the defaults.
        for text in ("drafterr", "draft.max_length = 9", "watchdog.mode", "telemetry.root"):
            assert text in node.log
        assert "did you mean drafter?" in node.log
        assert driver.get("draft.max_length").integer_value == BY_NAME["draft.max_length"].default
        assert driver.get("queue_size").integer_value == 2
        assert driver.get("watchdog.draft_cap").string_array_value == ["HOT=2"]
        for name, value in (
            ("draft.max_length", 4),
            ("watchdog.mode", "off"),
            ("telemetry.root", "/"),
            ("engine.threads", 2),
        ):
            assert not driver.change("configure")
            assert driver.state() == "unconfigured"
            assert driver.set(**{name.replace(".", "__"): value}) == ""
        assert not driver.change("configure")  # now it is the folder that is no model
        driver.forget()
        assert str(tmp_path) in driver.wait_health("engine", ERROR).message

        for name, value, word in (
            ("draft__max_length", 8, "0 to 7"),
            ("draft__max_length", "x", "integer"),
            ("sampling__top_p", 2.0, "up to 1"),
            ("watchdog__draft_cap", ["LUKEWARM=2"], "levels are"),
            ("watchdog__warm_margin_c", 1.0, "hot_margin_c"),
            ("watchdog__stale_after_s", 0.2, "period_s"),
            ("queue_size", -1, "0 to 1000"),
            ("draft__max_lenght", 2, "draft.max_lenght does not exist; did you mean draft.max_le"),
            ("zzz", 2, "zzz does not exist; see docs/parameters.md"),
        ):
            reason = driver.set(**{name: value})
            assert_sentence(reason)
            assert word in reason
        assert driver.get("draft.max_length").integer_value == 4
        assert driver.set(sampling__top_p=1, queue_size=0, use_sim_time=False) == ""

        names = [spec.name for spec in TABLE]
        answer = driver.call("describe_parameters", DescribeParameters.Request(names=names))
        described = {descriptor.name: descriptor for descriptor in answer.descriptors}
        assert all(described[spec.name].description == spec.description for spec in TABLE)
        assert described["draft.max_length"].integer_range[0].to_value == 7
        assert described["sampling.top_p"].floating_point_range[0].to_value == 1.0
        assert described["autostart"].read_only
        assert BY_NAME["autostart"].when is When.START
