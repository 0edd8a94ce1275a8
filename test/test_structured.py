# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that follow a response schema, through the engine's own loop."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
import tiny
from engine_tools import load, request, run
from grammar_tools import schemas
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import (
    Cancel,
    ErrorCode,
    Finish,
    FinishReason,
    Message,
    Piece,
    Request,
)
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.engine import grammar_trial
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.grammar_state import GrammarState
from gemma_mtp_ros.engine.json_schema import SchemaError

PAIR = {"centroids": tiny.CENTROIDS, "full head": {}}

PLAN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "say": {"type": "string", "maxLength": 20},
        "steps": {"type": "array", "items": {"enum": ["goto", "pick"]}, "maxItems": 3},
    },
    "required": ["say", "steps"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=PAIR)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An untrained pair that knows what its passes cost."""
    folder = tmp_path_factory.mktemp("structured")
    target = tiny.save_target(folder / "target", **tiny.NO_PLE, **tiny.layers(1, 1))
    drafter = tiny.save_drafter(folder / "drafter", target, **PAIR[request.param])
    return load(target, drafter, max_context=2048, adaptive_draft=True)


@pytest.fixture
def fixed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine, drafting as many tokens as it may."""
    monkeypatch.setattr(engine.model, "costs", None)
    return engine


def asked(schema: Any, prompt: str = "Bring the red cup.", **sampling: Any) -> Request:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return request(prompt, **sampling).model_copy(update={"response_schema": text})


def answer(engine: Engine, schema: Any, cap: int, **sampling: Any) -> tuple[list[int], Finish]:
    events = list(engine.generate(asked(schema, **sampling), lambda: RoundControl(cap)))
    tokens = [t for event in events if isinstance(event, Piece) for t in event.token_ids]
    finish = events[-1]
    assert isinstance(finish, Finish)
    assert finish.stats.completion_tokens == len(tokens)
    drafted, accepted = finish.stats.drafted_at, finish.stats.accepted_at
    assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    return tokens, finish


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def holds(
    engine: Engine, schema: Any, seed: int, caps: Iterable[int], adaptive: bool = True
) -> None:
    """An answer is whole, valid and the same with drafts of these lengths, or as many as pay."""
    prompt = f"Task {seed}: " + "carry the box. " * (seed % 4)
    sampling: dict[str, Any] = {"prompt": prompt, "max_new_tokens": 400, "temperature": 1.0}
    sampling |= {"seed": seed, "top_k": 0 if seed % 2 else 20}
    if seed % 3 == 0:
        sampling |= {"repetition_penalty": 1.1, "presence_penalty": 0.3}
    if seed % 7 == 0:
        sampling["temperature"] = 0.0
    costs, engine.model.costs = engine.model.costs, None
    try:
        plain, finish = answer(engine, schema, 0, **sampling)
        assert finish.finish_reason == FinishReason.STOP
        value = json.loads(finish.text)
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
        drafted = [answer(engine, schema, cap, **sampling) for cap in caps]
    finally:
        engine.model.costs = costs
    if adaptive:
        drafted.append(answer(engine, schema, 7, **sampling))
    for tokens, end in drafted:
        assert tokens == plain
        assert (end.text, end.finish_reason) == (finish.text, finish.finish_reason)
        assert end.stats.rounds <= finish.stats.rounds


@pytest.mark.timeout(300)
@settings(RANDOM, max_examples=12)
@given(schemas, st.integers(0, 10**6))
def test_answers_validate_and_are_the_same_for_each_draft_length(
    engine: Engine, schema: Any, seed: int
) -> None:
    holds(engine, schema, seed, (1 + seed % 7,))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["full head"], indirect=True)
@settings(RANDOM, max_examples=500)
@given(schemas, st.integers(0, 10**6))
def test_500_answers_validate_and_are_the_same_for_each_draft_length(
    engine: Engine, schema: Any, seed: int
) -> None:
    adaptive = seed % 2 == 0
    holds(engine, schema, seed, () if adaptive else (1 + seed % 7,), adaptive)


def test_the_same_text_at_every_draft_length(fixed: Engine) -> None:
    sampling = {"max_new_tokens": 150, "temperature": 1.0, "seed": 4}
    said = {cap: answer(fixed, PLAN, cap, **sampling) for cap in range(8)}
    assert len({tuple(tokens) for tokens, _ in said.values()}) == 1
    jsonschema.validate(json.loads(said[0][1].text), PLAN)
    assert sum(said[7][1].stats.drafted_at) > 0


def test_forced_tokens_cost_no_pass_without_drafts(fixed: Engine) -> None:
    schema = {"type": "object", "properties": {"name_of_the_place": {"enum": ["a", "b"]}}}
    schema |= {"required": ["name_of_the_place"], "additionalProperties": False}
    tokens, finish = answer(fixed, schema, 0)
    assert len(tokens) == len('{"name_of_the_place":"a"}')
    assert finish.stats.rounds == 3  # of 8 tokens each; what follows on the choice is forced
    assert sum(finish.stats.drafted_at) == 0
    fixed.forcing = False
    try:
        again, finish = answer(fixed, schema, 0)
    finally:
        fixed.forcing = True
    assert again == tokens
    assert finish.stats.rounds > 20


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"not": {}}, '"not"'),
        ({"type": "array", "items": {"type": "string", "format": "iban"}}, "iban"),
        ("{", "not JSON"),
        ({"$ref": "#"}, "no text"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"const": "x" * 70_000}, "bytes"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_enforced_ends_the_goal_with_the_reason(
    fixed: Engine, schema: Any, word: str
) -> None:
    _, finish = answer(fixed, schema, 0)
    assert finish.finish_reason == FinishReason.ERROR
    assert finish.error_code == ErrorCode.SCHEMA_UNSUPPORTED
    assert word in finish.error_msg
    assert "\n" not in finish.error_msg


def test_recursion_is_followed_and_ends(fixed: Engine) -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    tree |= {"additionalProperties": False}
    for seed in range(5):
        _, finish = answer(fixed, tree, 7, max_new_tokens=120, temperature=1.0, seed=seed)
        assert finish.finish_reason == FinishReason.STOP
        jsonschema.validate(json.loads(finish.text), tree, jsonschema.Draft202012Validator)


def test_an_answer_that_is_cut_says_so(fixed: Engine) -> None:
    tokens, finish = answer(fixed, {"type": "string", "minLength": 30}, 3, max_new_tokens=10)
    assert finish.finish_reason == FinishReason.LENGTH
    assert (len(tokens), finish.text[0]) == (10, '"')
    _, finish = answer(fixed, {"type": "string", "maxLength": 30}, 3, max_new_tokens=10)
    assert finish.finish_reason == FinishReason.STOP
    assert isinstance(json.loads(finish.text), str)
    # A number may always have one more digit: it is whole at the limit, and nothing is missing.
    number = {"type": "number", "minimum": 0, "maximum": 1}
    tokens, finish = answer(fixed, number, 7, max_new_tokens=20, temperature=1.0, seed=1)
    assert finish.finish_reason == FinishReason.STOP
    assert 0 <= float(finish.text) <= 1


def test_a_stop_string_within_the_text_ends_it(fixed: Engine) -> None:
    whole = answer(fixed, PLAN, 0, max_new_tokens=150, seed=1)[1].text
    for cap in (0, 7):
        _, finish = answer(fixed, PLAN, cap, max_new_tokens=150, seed=1, stop=['"steps"'])
        assert finish.finish_reason == FinishReason.STOP
        assert finish.text == whole[: whole.index('"steps"')]


def test_the_end_comes_only_when_the_text_is_whole(fixed: Engine) -> None:
    # Greedy, and the end-of-sequence token would be the best choice everywhere.
    eos = min(fixed.model.generation.eos)

    def bias(logits: Any) -> Any:
        logits[:, eos] += 1e4
        return logits

    model, decode, prefill = fixed.target, fixed.target.decode, fixed.target.prefill
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "decode", lambda *a: (lambda s, z: (s, bias(z)))(*decode(*a)))
        patch.setattr(
            model,
            "prefill",
            lambda *a: None if (r := prefill(*a)) is None else (r[0], bias(r[1])),
        )
        for cap in (0, 5):
            _, finish = answer(fixed, {"type": "integer", "minimum": 100}, cap, max_new_tokens=90)
            assert finish.finish_reason == FinishReason.STOP
            assert len(finish.text) == 3
            assert int(finish.text) >= 100


def test_what_a_checkpoint_suppresses_is_not_said(tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("suppressed")
    comma = tiny.tokenizer().convert_tokens_to_ids(",")
    with_end = [comma, 1, 4]  # the tokens that end an answer among them
    target = tiny.save_target(
        folder, **tiny.NO_PLE, **tiny.layers(1, 1), generation={"suppress_tokens": with_end}
    )
    engine = load(target, max_context=1024)
    numbers = {"type": "array", "items": {"type": "integer"}, "maxItems": 4}
    for seed in range(4):
        _, finish = answer(engine, numbers, 0, max_new_tokens=60, temperature=1.0, seed=seed)
        assert finish.finish_reason == FinishReason.STOP
        assert len(json.loads(finish.text)) <= 1
    pair = {"type": "array", "items": {"enum": [1]}, "minItems": 2}
    _, finish = answer(engine, pair, 0, max_new_tokens=60)
    assert finish.error_code == ErrorCode.SCHEMA_UNSUPPORTED
    assert "no token continues" in finish.error_msg


def test_a_grammar_that_grows_too_large_ends_the_goal_with_its_text(
    fixed: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = GrammarState._take, 0

    def fail(self: GrammarState, token: int) -> None:
        nonlocal taken
        taken += 1
        if taken > 40:
            raise SchemaError("too many states")
        take(self, token)

    monkeypatch.setattr(GrammarState, "_take", fail)
    _, finish = answer(fixed, PLAN, 0)
    assert finish.error_code == ErrorCode.SCHEMA_UNSUPPORTED
    assert finish.text.startswith('{"say')


class Patience:
    """Polls of a goal that is canceled at the n-th."""

    def __init__(self, last: int) -> None:
        self.times: list[float] = []
        self._last = last

    def __call__(self) -> RoundControl:
        self.times.append(time.monotonic())
        end = Cancel(request_id="x") if len(self.times) >= self._last else None
        return RoundControl(0, end)


@pytest.mark.slow
def test_a_costly_schema_leaves_time_for_signs_of_life_and_cancels(fixed: Engine) -> None:
    costly = {"type": "integer", "multipleOf": 999983}
    poll = Patience(1000)
    (finish,) = fixed.generate(asked(costly), poll)
    assert isinstance(finish, Finish)
    assert f"more than {grammar_trial.SECONDS} s" in finish.error_msg
    gaps = [after - before for before, after in zip(poll.times, poll.times[1:], strict=False)]
    assert len(gaps) > 5
    assert max(gaps) < 2.0
    (finish,) = fixed.generate(asked({**costly, "title": "again"}), Patience(3))
    assert isinstance(finish, Finish)
    assert finish.finish_reason is FinishReason.CANCELED


def test_it_may_be_off(tmp_path: Any) -> None:
    target = tiny.save_target(tmp_path, **tiny.NO_PLE, **tiny.layers(1, 1))
    engine = load(target, structured_output=False)
    on = load(target)
    assert engine.model.vocabulary is None
    assert engine.info.memory.workspace < on.info.memory.workspace
    _, finish = answer(engine, PLAN, 0)
    assert finish.error_code == ErrorCode.SCHEMA_UNSUPPORTED
    assert "engine.structured_output" in finish.error_msg
    assert run(engine, request())[1].error_code == ErrorCode.NONE


def test_the_embedded_pair_plans_by_a_schema() -> None:
    step = {
        "type": "object",
        "properties": {
            "action": {"enum": ["navigate", "pick", "give"]},
            "to": {"type": "string", "maxLength": 20},
            "object": {"type": "string", "maxLength": 20},
        },
        "required": ["action"],
        "additionalProperties": False,
    }
    plan = {"type": "array", "items": step, "minItems": 1, "maxItems": 6}
    schema = {"type": "object", "properties": {"plan": plan}, "required": ["plan"]}
    schema["additionalProperties"] = False
    engine = load(TARGET_DIR, DRAFTER_DIR)
    turn = Message(role="user", content="Bring Anna the red cup from the kitchen.")
    said = []
    for cap in (0, 4):
        one = asked(schema, max_new_tokens=120).model_copy(update={"messages": (turn,)})
        tokens, finish = run(engine, one, cap)
        jsonschema.validate(json.loads(finish.text), schema)
        said.append(tokens)
    assert said[0] == said[1]
