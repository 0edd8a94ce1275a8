# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Structured output through the engine's own loop."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import tiny
from engine_tools import load, request
from grammar_tools import schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import ErrorCode, Finish, FinishReason, Piece
from gemma_mtp_ros.engine.decode import Engine, RoundControl

PAIR = {"centroids": tiny.CENTROIDS, "full head": {}}


@pytest.fixture(scope="module", params=PAIR)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("structured")
    target = tiny.save_target(folder / "target", **tiny.NO_PLE, **tiny.layers(1, 1))
    drafter = tiny.save_drafter(folder / "drafter", target, **PAIR[request.param])
    return load(target, drafter, max_context=1024)


def answer(engine: Engine, schema: Any, cap: int, **sampling: Any) -> tuple[list[int], Finish]:
    asked = request(**sampling).model_copy(update={"response_schema": json.dumps(schema)})
    events = list(engine.generate(asked, lambda: RoundControl(cap)))
    tokens = [t for event in events if isinstance(event, Piece) for t in event.token_ids]
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.stats.completion_tokens == len(tokens)
    return tokens, finish


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(300)
@settings(RANDOM, max_examples=12)
@given(schemas, st.integers(0, 10**6))
def test_answers_validate_and_are_the_same_for_each_draft_length(
    engine: Engine, schema: Any, seed: int
) -> None:
    sampling = {"max_new_tokens": 200, "temperature": 1.0, "seed": seed}
    if seed % 3 == 0:
        sampling |= {"repetition_penalty": 1.1, "presence_penalty": 0.3}
    plain, finish = answer(engine, schema, 0, **sampling)
    assert finish.finish_reason == FinishReason.STOP
    jsonschema.validate(json.loads(finish.text), schema, jsonschema.Draft202012Validator)
    for cap in (2, 7):
        tokens, drafted = answer(engine, schema, cap, **sampling)
        assert tokens == plain
        assert drafted.finish_reason == finish.finish_reason
        assert drafted.stats.rounds <= finish.stats.rounds


def test_forced_tokens_cost_no_pass_without_drafts(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"name_of_the_place": {"enum": ["a", "b"]}}}
    schema |= {"required": ["name_of_the_place"], "additionalProperties": False}
    tokens, finish = answer(engine, schema, 0)
    assert len(tokens) == len('{"name_of_the_place":"a"}')
    assert finish.stats.rounds == 3  # of 8 tokens each; what follows on the choice is forced
    assert sum(finish.stats.drafted_at) == 0


def test_a_schema_that_cannot_be_enforced_ends_the_goal_with_the_reason(engine: Engine) -> None:
    _, finish = answer(engine, {"not": {}}, 0)
    assert finish.finish_reason == FinishReason.ERROR
    assert finish.error_code == ErrorCode.SCHEMA_UNSUPPORTED
    assert '"not"' in finish.error_msg


def test_an_answer_that_is_cut_says_so(engine: Engine) -> None:
    _, finish = answer(engine, {"type": "string", "minLength": 30}, 3, max_new_tokens=10)
    assert finish.finish_reason == FinishReason.LENGTH
    _, finish = answer(engine, {"type": "string", "maxLength": 30}, 3, max_new_tokens=10)
    assert finish.finish_reason == FinishReason.STOP
    assert isinstance(json.loads(finish.text), str)
