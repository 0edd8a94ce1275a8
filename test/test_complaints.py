# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What users of other language-model nodes complain about, and the tests that it is not so here.

``COMPLAINTS`` names them all; those that need ROS are in ros/test_complaints_ros.py and beside what
they are about.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
from engine_tools import load, request, run, with_oracle
from host_tools import PATIENCE_S, running, submit
from test_host_faults import Script, config, script

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    CheckpointError,
    ErrorCode,
    FinishReason,
    GemmaMtpError,
)
from gemma_mtp_ros.engine.decode import RoundControl

__all__ = ["script"]

FOLDER = Path(__file__).parent

COMPLAINTS = {
    "cancel is accepted, generation goes on and the goal ends SUCCEEDED": [
        "ros/test_complaints_ros.py::test_a_cancel_stops_the_engine_and_ends_canceled",
        "ros/test_goals.py::test_cancel_while_it_runs",
        "ros/test_goals.py::test_cancel_while_it_waits",
    ],
    "a second goal freezes the node": [
        "ros/test_complaints_ros.py::test_goals_that_wait_never_freeze_the_node",
    ],
    "after an error of the engine the node stays ACTIVE and later goals hang": [
        "test_complaints.py::test_an_exception_in_the_engine_ends_one_goal",
        "ros/test_complaints_ros.py::test_a_goal_behind_a_hung_engine_ends",
        "ros/test_goals.py::test_a_lost_engine_is_told_and_replaced",
        "ros/test_lifecycle.py::"
        "test_the_node_starts_itself_and_the_engine_is_given_up_and_restored",
    ],
    "the token limit never reaches the sampler": [
        "ros/test_complaints_ros.py::test_the_token_limit_reaches_the_engine",
        "test_decode.py::test_token_limit_inside_a_draft",
        "test_limits.py::test_the_least_of_the_limits_counts",
    ],
    "stop words, tokens and draft of one goal leak into the next": [
        "test_complaints.py::test_goals_in_any_order_are_answered_as_if_alone",
        "ros/test_goals.py::test_nothing_of_a_goal_reaches_the_next",
        "test_decode.py::test_nothing_of_an_abandoned_request_reaches_the_next",
    ],
    "the prefix cache is off under speculation": [
        "test_complaints.py::test_a_prompt_is_cached_while_drafting",
        "ros/test_complaints_ros.py::test_a_preempted_prompt_is_cached_while_drafting",
        "test_prefix.py::test_drafts_stand_as_often_after_a_cached_prefix",
    ],
    "an empty or an over-long prompt gives an empty abort": [
        "ros/test_complaints_ros.py::test_empty_and_over_long_prompts_get_a_code_and_a_sentence",
        "ros/test_goals.py::test_a_hostile_goal_ends_with_a_sentence",
    ],
    "a goal accepted during shutdown never ends": [
        "ros/test_lifecycle.py::test_goals_that_come_while_the_node_leaves_end",
        "ros/test_lifecycle.py::test_leaving_with_goals_on_board",
        "ros/test_goals.py::test_a_goal_sent_while_it_deactivates_ends_or_is_rejected",
    ],
    "no diagnostics": [
        "ros/test_complaints_ros.py::test_there_are_diagnostics_and_acceptance_figures",
    ],
    "no error codes": [
        "test_package.py::test_constants_of_the_action_are_those_of_the_api",
        "ros/test_goals.py::test_a_hostile_goal_ends_with_a_sentence",
    ],
    "no deadline": [
        "ros/test_busy_policy.py::test_the_timeout_counts_from_acceptance",
    ],
    "no token limit per goal": [
        "ros/test_complaints_ros.py::test_the_token_limit_reaches_the_engine",
    ],
    "no acceptance figures": [
        "ros/test_complaints_ros.py::test_there_are_diagnostics_and_acceptance_figures",
    ],
    "the model parameter is ignored": [
        "ros/test_lifecycle.py::test_the_model_parameter_is_obeyed_and_nothing_is_substituted",
        "test_complaints.py::test_a_wrong_path_is_refused",
    ],
    "errors are published as if they were answers": [
        "ros/test_complaints_ros.py::test_no_error_is_published_as_an_answer",
        "ros/test_goals.py::test_a_hostile_goal_ends_with_a_sentence",
    ],
    "another model is silently substituted": [
        "ros/test_lifecycle.py::test_the_model_parameter_is_obeyed_and_nothing_is_substituted",
        "test_complaints.py::test_a_wrong_path_is_refused",
    ],
    "17 s without a sign of life": [
        "ros/test_complaints_ros.py::test_there_is_a_sign_of_life_before_the_first_token",
        "ros/test_complaints_ros.py::test_a_goal_behind_a_hung_engine_ends",
    ],
    "JSON inside String topics": [
        "ros/test_complaints_ros.py::test_no_topic_carries_a_string",
        "test_complaints.py::test_no_interface_wraps_what_has_a_type",
    ],
    "one request at a time, without saying so": [
        "ros/test_complaints_ros.py::test_goals_that_wait_never_freeze_the_node",
        "ros/test_goals.py::test_a_full_queue_says_so_and_the_rest_is_served_in_order",
    ],
    "sensors that are missing are reported healthy": [
        "ros/test_convert.py::test_a_sensor_that_is_missing_is_never_healthy",
        "ros/test_watchdog.py::test_a_board_that_says_nothing_is_unknown_not_healthy",
    ],
}


@pytest.mark.parametrize("complaint", COMPLAINTS)
def test_each_complaint_has_its_tests(complaint: str) -> None:
    for name in COMPLAINTS[complaint]:
        file, test = name.split("::")
        tree = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
        found = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert test in found, name


def test_an_exception_in_the_engine_ends_one_goal(script: Script) -> None:
    """With its text and a code, in the same process, and the next goal is served."""
    script("fails_once")
    with running(config()) as host:
        pid = host.pid
        told = submit(host, "a")
        waiting = submit(host, "b")
        end = told.finish()
        assert (end.finish_reason, end.error_code) == (FinishReason.ERROR, ErrorCode.UNKNOWN)
        assert "ArithmeticError: the sum is wrong" in end.error_msg
        assert (end.text, end.seed, end.stats.completion_tokens) == ("Hello", 11, 1)
        assert waiting.finish().finish_reason is FinishReason.STOP
        assert submit(host, "c").finish().finish_reason is FinishReason.STOP
        assert (host.pid, host.restarts) == (pid, 0)
        told.assert_well_formed()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny.make_pair(tmp_path_factory.mktemp("pair"), tiny.E_SIZE)


GOALS: list[dict[str, Any]] = [
    {"prompt": "Hi", "seed": 1, "temperature": 1.0},
    {"prompt": "Hi", "seed": 1, "temperature": 1.0, "stop": ("e", "a", "\ufffd")},
    {"prompt": "Hi", "repetition_penalty": 1.8, "presence_penalty": 1.0, "seed": 3},
    {"prompt": "Hi", "max_new_tokens": 3},
    {"prompt": "Bring the red cup from the kitchen, then wait.", "top_k": 3, "temperature": 2.0},
    {"prompt": "Bring the red cup from the kitchen, then go.", "frequency_penalty": 1.0},
]


def test_goals_in_any_order_are_answered_as_if_alone(pair: tuple[Path, Path]) -> None:
    """Stop strings, penalties, filters, seeds, drafts and cached prefixes of one goal stay its."""
    alone = []
    for fields in GOALS:
        tokens, finish = run(load(*pair), request(**{"seed": 5, **fields}), 0)
        alone.append((tokens, finish.text, finish.finish_reason))
    engine = load(*pair, cache_max_mib=64)
    hopeless = engine.drafter
    for step in (1, 5):
        for at in range(2 * len(GOALS)):
            number = at * step % len(GOALS)
            asked = request(**{"seed": 5, **GOALS[number]})
            engine.drafter = hopeless
            if at % 3 == 0:
                with_oracle(engine, asked, alone[number][0], 0.7)
            if at % 4 == 3:  # one that is broken off in between
                broken = engine.generate(request("Wait", stop=("i",)), lambda: RoundControl(7))
                assert [next(broken, None) for _ in range(4)]
                broken.close()
            tokens, finish = run(engine, asked, at % (MAX_DRAFT + 1))
            assert (tokens, finish.text, finish.finish_reason) == alone[number]


def test_a_prompt_is_cached_while_drafting(pair: tuple[Path, Path]) -> None:
    engine = load(*pair, cache_max_mib=64)
    asked = request("Bring the red cup from the kitchen, then wait for the next order.")
    cold, first = run(engine, asked, MAX_DRAFT)
    warm, second = run(engine, asked, MAX_DRAFT)
    assert warm == cold
    assert first.stats.cached_tokens == 0
    assert 0 < second.stats.cached_tokens < second.stats.prompt_tokens
    assert second.stats.drafted_at == first.stats.drafted_at
    assert sum(second.stats.drafted_at) > 0


@pytest.mark.parametrize("wrong", ["target", "drafter"])
def test_a_wrong_path_is_refused(pair: tuple[Path, Path], tmp_path: Path, wrong: str) -> None:
    """With its name; no other model, and none of the network, is taken in its place."""
    target, drafter = pair
    nowhere = tmp_path / "gemma-4-of-another-name"
    with pytest.raises(CheckpointError, match=nowhere.name):
        load(nowhere if wrong == "target" else target, drafter if wrong == "target" else nowhere)
    folder = config().model_copy(
        update={"model": str(nowhere if wrong == "target" else target), "drafter": str(nowhere)}
    )
    with pytest.raises(GemmaMtpError, match=nowhere.name), running(folder) as host:
        host.start(PATIENCE_S)


def test_no_interface_wraps_what_has_a_type() -> None:
    """JSON stands where JSON is the matter: a schema, declarations and arguments of tools."""
    texts = {}
    for path in sorted(FOLDER.parent.glob("*/*.msg")) + sorted(FOLDER.parent.glob("*/*.action")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "json" in line.lower() and not line.startswith("#"):
                texts[line.split()[1]] = line.split()[0]
    assert texts == {
        "arguments": "string",
        "response_schema": "string",
        "tools": "string",
    }, json.dumps(texts)
