# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that a JSON Schema allows, with and without drafts."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
import tiny
import torch
from engine_tools import load
from grammar_tools import decode_drafted, decode_plainly, schemas, vocabulary_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import ErrorCode, RequestError
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.engine import grammar as grammar_module
from gemma_mtp_ros.engine.decode import Engine
from gemma_mtp_ros.engine.grammar import Grammar, Grammars
from gemma_mtp_ros.engine.grammar_state import GrammarState
from gemma_mtp_ros.engine.grammar_trial import SECONDS
from gemma_mtp_ros.engine.json_schema import MAX_DEPTH, MAX_SCHEMA_BYTES
from gemma_mtp_ros.engine.sampling import Rules
from gemma_mtp_ros.engine.text import Text
from gemma_mtp_ros.engine.token_masks import Vocabulary, allow

PADDING = 40
"""Ids past those of the tokenizer, as models have them."""

PLAN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "say": {"type": "string", "maxLength": 20},
        "steps": {
            "type": "array",
            "minItems": 1,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "action": {"enum": ["goto", "pick", "place"]},
                    "x": {"type": "number", "minimum": -10, "maximum": 10},
                },
                "required": ["action"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["say", "steps"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def text() -> Text:
    """The embedded pair's tokenizer: 1280 tokens with byte fallback."""
    return Text(TARGET_DIR)


@pytest.fixture(scope="module")
def vocabulary(text: Text) -> Vocabulary:
    eos = text.tokenizer.eos_token_id
    return Vocabulary(text, text.size + PADDING, [eos, eos + 3])


@pytest.fixture(scope="module")
def plan(vocabulary: Vocabulary) -> Grammar:
    return Grammars(vocabulary).compile(json.dumps(PLAN))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """An untrained target whose tokens are bytes."""
    folder = tmp_path_factory.mktemp("grammar")
    return load(tiny.save_target(folder, **tiny.NO_PLE, **tiny.layers(1, 1)), max_context=1024)


def allowed(state: GrammarState, drafts: list[int] | None = None) -> list[int]:
    found: list[int] = state.mask(drafts or [])[0].nonzero()[:, 0].tolist()
    return found


def walk(state: GrammarState, seed: int, most: int = 400) -> list[int]:
    """Tokens of a random answer; the state is at its end, or at the limit."""
    draws, tokens = random.Random(seed), []
    while not state.finished and len(tokens) < most:
        chosen = state.settle((), [draws.choice(allowed(state))])
        state.accept(chosen)
        tokens += [t for t in chosen if t not in state.vocabulary.eos]
    return tokens


REFUSED = [
    ('{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ('{"not": {"type": "null"}}', '"not"'),
    ('{"if": {}, "then": {}}', '"if"'),
    ('{"type": "object", "propertyNames": {"pattern": "a"}}', "propertyNames"),
    ('{"type": "object", "dependentRequired": {"a": ["b"]}}', "dependentRequired"),
    ('{"type": "object", "unevaluatedProperties": false}', "unevaluatedProperties"),
    ('{"type": "string", "pattern": "(?=a)b"}', "look-around"),
    ('{"type": "string", "format": "iban"}', "iban"),
    ('{"oneOf": [{"type": "integer"}, {"type": "number"}]}', "oneOf"),
    ('{"$ref": "https://example.com/schema"}', "example.com"),
    ('{"type": "strng"}', "strng"),
    ('{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
    ('{"enum": []}', "empty"),
    ('{"$ref": "#"}', "no text at all"),
    ('{"type": "number", "minimum": 5, "exclusiveMinimum": true}', "Draft 4"),
    ('{"type": "object", "minProperties": 2}', "minProperties 2"),
    ('{"items": {"type": "object", "minProperties": 2}}', "minProperties 2"),
    ('{"x-guidance": {"lenient": true}}', "x-guidance"),
    ("false", "not false"),
    ("[1]", r"not \[1\]"),
    ('{"type": ', "not JSON"),
    ('{"minimum": NaN}', "NaN"),
]


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(
    vocabulary: Vocabulary, schema: str, reason: str
) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        Grammars(vocabulary).compile(schema)
    assert refused.value.code == ErrorCode.SCHEMA_UNSUPPORTED
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 500


def test_names_of_properties_are_not_taken_for_keywords(vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {"minProperties": {"const": 1}, "x-guidance": {"const": 2}},
        "required": ["minProperties"],
        "additionalProperties": False,
        "default": {"minProperties": 9},
    }
    Grammars(vocabulary).compile(json.dumps(schema))


def _exponential() -> dict[str, Any]:
    def one(i: int, j: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {f"p{i}{j}": {"const": 1}},
            "required": [f"p{i}{j}"],
        }

    return {"allOf": [{"anyOf": [one(i, j) for j in range(10)]} for i in range(10)]}


HOSTILE = {
    "bytes": '{"const": "' + "x" * MAX_SCHEMA_BYTES + '"}',
    "depth": '{"items":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1),
    "brackets": "[" * 60_000,
    "product of choices": json.dumps(_exponential()),
    "wide range": json.dumps({"type": "integer", "minimum": -(10**300), "maximum": 10**300}),
    "circle": '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused(vocabulary: Vocabulary, name: str) -> None:
    with pytest.raises(RequestError) as refused:
        Grammars(vocabulary).compile(HOSTILE[name])
    assert refused.value.code == ErrorCode.SCHEMA_UNSUPPORTED


@pytest.mark.slow
def test_a_schema_that_takes_too_long_to_compile_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError, match=f"more than {SECONDS} s"):
        Grammars(vocabulary).compile('{"type": "integer", "multipleOf": 999983}')


def test_a_schema_is_compiled_once(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_module, "CACHED", 2)
    grammars = Grammars(vocabulary)
    first = grammars.compile('{"const": 1}')
    with pytest.raises(RequestError):
        grammars.compile('{"not": {}}')
    assert grammars.compile('{"const": 1}') is first
    grammars.compile('{"const": 2}')  # the refusal, used longest ago, makes way
    assert grammars.compile('{"const": 1}') is first
    grammars.compile('{"const": 3}')
    grammars.compile('{"const": 4}')
    assert grammars.compile('{"const": 1}') is not first


def test_special_and_padded_ids_are_never_allowed(text: Text, vocabulary: Vocabulary) -> None:
    state = Grammars(vocabulary).compile('{"type": "string"}').start(100)
    quote = text.tokenizer.convert_tokens_to_ids('"')
    state.accept([quote])
    inside = allowed(state)
    assert len(inside) > 500
    assert max(inside) < text.size
    assert not set(inside) & set(text.tokenizer.all_special_ids)
    assert state.mask().shape == (1, text.size + PADDING)
    state.accept([quote])
    assert set(allowed(state)) == vocabulary.eos


def test_suppressed_tokens_are_never_allowed(text: Text) -> None:
    space = text.tokenizer.convert_tokens_to_ids("a")
    vocabulary = Vocabulary(text, text.size, [1], suppressed=[space])
    state = Grammars(vocabulary).compile('{"const": "a"}').start(100)
    tokens = walk(state, 0)
    assert space not in tokens
    assert json.loads(text.decode(tokens)) == "a"  # spelt by the byte token


def test_a_byte_token_does_not_stand_for_a_character_that_has_a_token(
    text: Text, vocabulary: Vocabulary
) -> None:
    state = Grammars(vocabulary).compile('{"enum": ["é", "ab"]}').start(100)
    ids = [text.tokenizer.convert_tokens_to_ids(t) for t in ('"', "<0x22>", "<0x61>")]
    assert state.mask()[0, ids].tolist() == [True, False, False]
    state.accept(ids[:1])
    spelt = [text.byte_tokens.get(t, b"") for t in allowed(state)]
    assert b"a" not in spelt


@pytest.mark.parametrize("seed", range(10))
def test_text_is_compact_and_is_what_the_tokens_decode_to(
    text: Text, plan: Grammar, seed: int
) -> None:
    tokens = walk(plan.start(300), seed)
    shown = text.decode(tokens)
    value = json.loads(shown)
    jsonschema.validate(value, PLAN)
    assert shown.encode() == plan.vocabulary.tokenizer.decode_bytes(tokens)
    assert shown.startswith('{"say":"')
    assert '","steps":[{"action":"' in shown


DOCUMENTS = [
    {"say": "", "steps": [{"action": "goto"}]},
    {"say": 'On "my" way: \\ é 茶', "steps": [{"action": "pick", "x": -9.75}] * 3},
    {"say": "a\nb\t😀", "steps": [{"action": "place", "x": 0}, {"action": "goto", "x": 10}]},
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_what_the_schema_allows_can_be_said_as_the_tokenizer_spells_it(
    text: Text, plan: Grammar, document: dict[str, Any]
) -> None:
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    tokens = text.backend.encode(written, add_special_tokens=False).ids
    state = plan.start(400)
    assert state.admitted(tokens) == len(tokens)
    state.accept(tokens)
    assert state.complete


def test_forced_tokens_are_those_that_are_allowed_alone(plan: Grammar) -> None:
    draws = random.Random(0)
    state = plan.start(200)
    seen = 0
    while not state.finished:
        run = state.forced(8)
        for i, token in enumerate(run):
            assert allowed(state, run[:i]) == [token]
        if len(run) < 8 and not set(run) & state.vocabulary.eos:
            assert len(allowed(state, run)) > 1
        seen += len(run)
        state.accept(run or state.settle((), [draws.choice(allowed(state))]))
    assert seen > 10


def test_with_one_token_for_each_byte_a_property_name_is_forced(engine: Engine) -> None:
    state = Grammars(vocabulary_of(engine)).compile(json.dumps(PLAN)).start(200)
    assert engine.text.decode(state.forced(100)) == '{"say":"'


def test_whole_strings_are_forced_only_if_asked_for(text: Text, vocabulary: Vocabulary) -> None:
    schema = json.dumps(PLAN)
    assert Grammars(vocabulary).compile(schema).start(200).forced(100) == []
    state = Grammars(vocabulary, force_strings=True).compile(schema).start(200)
    run = state.forced(100)
    assert len(run) > 2
    assert run == text.backend.encode('{"say":"', add_special_tokens=False).ids[: len(run)]
    jsonschema.validate(json.loads(text.decode(walk(state, 1))), PLAN)


def test_an_answer_is_finished_where_only_its_end_may_follow(
    text: Text, vocabulary: Vocabulary
) -> None:
    grammars = Grammars(vocabulary)
    state = grammars.compile('{"const": 7}').start(100)
    assert not state.complete
    state.accept(walk(grammars.compile('{"const": 7}').start(100), 0))
    assert state.finished
    assert state.complete
    assert not state.ended
    digits = grammars.compile('{"type": "integer", "minimum": 0}').start(100)
    digits.accept([text.tokenizer.convert_tokens_to_ids("4")])
    assert digits.complete
    assert not digits.finished
    digits.accept([min(vocabulary.eos)])
    assert digits.finished
    assert digits.ended


def test_a_rest_that_is_forced_is_known_as_a_whole(engine: Engine) -> None:
    grammar = Grammars(vocabulary_of(engine)).compile(
        '{"type": "array", "items": {"enum": ["ab"]}}'
    )
    state = grammar.start(100)
    assert state.rest(100) == []  # "]" may follow, or "ab"
    spelt = engine.text.tokenizer.encode('["ab"]', add_special_tokens=False)
    state.accept(spelt[:2])
    assert state.rest(100) == []
    whole = Grammars(vocabulary_of(engine)).compile('{"const": ["ab"]}').start(100)
    assert whole.rest(5) == []
    assert whole.rest(6) == spelt
    whole.accept(spelt)
    assert whole.finished


def test_a_token_that_is_not_allowed_cannot_stand(
    text: Text, vocabulary: Vocabulary, plan: Grammar
) -> None:
    state = plan.start(100)
    before = allowed(state)
    for token in (
        min(vocabulary.eos),
        vocabulary.size - 1,
        vocabulary.tokenizer.greedy_tokenize("x")[0],
    ):
        with pytest.raises(ValueError, match=f"token {token}"):
            state.accept([before[0], token])
        assert allowed(state) == before


@pytest.mark.parametrize("force_strings", [False, True])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_looking_at_drafts_leaves_no_trace(
    vocabulary: Vocabulary, force_strings: bool, data: st.DataObject
) -> None:
    plan = Grammars(vocabulary, force_strings).compile(json.dumps(PLAN))
    draws = random.Random(data.draw(st.integers(0, 10**6)))
    state, standing, limit = plan.start(300), [], 300
    for _ in range(data.draw(st.integers(1, 8))):
        drafts: list[int] = []
        for _ in range(draws.randint(0, 7)):
            if draws.random() < 0.1 or set(drafts) & state.vocabulary.eos:
                drafts.append(draws.randrange(state.vocabulary.size))
            elif state.admitted(drafts) == len(drafts):
                drafts.append(draws.choice(allowed(state, drafts)))
        good = state.admitted(drafts)
        masks = state.masks(drafts)
        assert masks.shape == (len(drafts) + 1, state.vocabulary.size)
        fresh = plan.start(limit)
        fresh.accept(standing)
        for i in range(good + 1):
            if set(drafts[:i]) & state.vocabulary.eos:
                break
            assert masks[i].tolist() == fresh.mask(drafts[:i])[0].tolist()
        kept = [t for t in drafts[: draws.randint(0, good)] if t not in state.vocabulary.eos]
        state.accept(kept)
        standing += kept
        if draws.random() < 0.3:
            back = draws.randint(0, len(standing))
            state.rollback(back)
            del standing[len(standing) - back :]
        fresh = plan.start(limit)
        fresh.accept(standing)
        assert allowed(state) == allowed(fresh)
        assert state.finished == fresh.finished


def test_rollback_takes_back_the_end_too(vocabulary: Vocabulary) -> None:
    state = Grammars(vocabulary).compile('{"const": 7}').start(100)
    before = allowed(state)
    tokens = [*walk(Grammars(vocabulary).compile('{"const": 7}').start(9), 0), min(vocabulary.eos)]
    state.accept(tokens)
    with pytest.raises(ValueError, match="after the end"):
        state.accept(tokens)
    with pytest.raises(ValueError, match="cannot take back"):
        state.rollback(len(tokens) + 1)
    state.rollback(1)
    assert state.finished
    assert not state.ended
    state.rollback(len(tokens) - 1)
    assert allowed(state) == before


@pytest.mark.parametrize("room", [0, 1, 2, 5, 17, 60])
def test_an_answer_is_whole_within_any_limit_that_a_known_end_fits(
    text: Text, plan: Grammar, room: int
) -> None:
    assert plan.shortest is not None
    for seed in range(8):
        state = plan.start(plan.shortest + room)
        tokens = walk(state, seed)
        assert state.complete
        assert len(tokens) <= plan.shortest + room
        jsonschema.validate(json.loads(text.decode(tokens)), PLAN)


def test_an_answer_that_cannot_be_whole_says_so(plan: Grammar) -> None:
    assert plan.shortest is not None
    state = plan.start(plan.shortest - 8)
    tokens = walk(state, 0, plan.shortest - 8)
    assert len(tokens) == plan.shortest - 8
    assert not state.complete


ENDS = [
    {"type": "string", "format": "email"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "pattern": "^a*b$"},
    {"type": "string", "pattern": "^[à-ü]{3}x$"},
    {"type": "string", "minLength": 30},
    {"type": "array", "items": {"type": "integer", "minimum": 1000}, "minItems": 5},
    {"enum": ["red", "green"]},
    {"type": "object", "minProperties": 1, "additionalProperties": {"type": "null"}},
    {
        "$defs": {
            "n": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}, {"type": "null"}]}
        },
        "$ref": "#/$defs/n",
    },
]


@pytest.mark.parametrize("schema", ENDS, ids=json.dumps)
def test_an_end_is_found(text: Text, vocabulary: Vocabulary, schema: dict[str, Any]) -> None:
    grammar = Grammars(vocabulary).compile(json.dumps(schema))
    state = grammar.start(500)
    end = state.end()
    assert end is not None
    assert len(end) == grammar.shortest
    jsonschema.validate(json.loads(text.decode(end)), schema)
    assert not state.complete  # it was only looked for


@pytest.mark.parametrize("letter", ["x", "Z"])
def test_one_character_that_a_pattern_wants_is_found_at_once(
    text: Text, vocabulary: Vocabulary, letter: str
) -> None:
    grammar = Grammars(vocabulary).compile(json.dumps({"type": "string", "pattern": letter}))
    assert grammar.shortest == 3
    state = grammar.start(500)
    begun = vocabulary.tokenizer.tokenize_str('"fo')
    state.accept(begun)
    assert text.decode([*begun, *(state.end() or ())]) == f'"fo{letter}"'


def test_the_scores_of_some_tokens_are_masked_by_their_ids(plan: Grammar) -> None:
    state = plan.start(100)
    mask = state.mask()
    ids = torch.arange(plan.vocabulary.size).flip(0)[::2]
    scores = torch.randn(1, len(ids))
    masked = allow(scores, mask, ids)
    for column, token in enumerate(ids.tolist()):
        kept = scores[0, column] if mask[0, token] else -torch.inf
        assert masked[0, column] == kept


def _check_decoding(engine: Engine, schema: Any, seed: int) -> None:
    grammars = Grammars(vocabulary_of(engine), force_strings=seed % 5 == 0)
    grammar = grammars.compile(json.dumps(schema))
    prompt = engine.text.encode((), f"{seed}")
    rules = Rules(temperature=1.0, top_k=0 if seed % 2 else 20, seed=seed)
    limit = 2 * (grammar.shortest or 100) + 60
    plain = decode_plainly(engine, prompt, grammar, rules, limit)
    assert plain.complete
    value = json.loads(engine.text.decode(plain.tokens))
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    drafted = decode_drafted(engine, prompt, grammar, rules, limit, plain.tokens, seed)
    assert drafted.tokens == plain.tokens
    assert drafted.complete
    assert drafted.passes <= plain.passes


RANDOM = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@settings(RANDOM, max_examples=150)
@given(schema=schemas, seed=st.integers(0, 10**6))
def test_random_answers_in_a_vocabulary_of_words_validate(
    text: Text, vocabulary: Vocabulary, schema: Any, seed: int
) -> None:
    grammar = Grammars(vocabulary, force_strings=bool(seed % 2)).compile(json.dumps(schema))
    state = grammar.start((grammar.shortest or 200) + seed % 60)
    tokens = walk(state, seed)
    assert len(tokens) <= state.limit
    assert state.complete
    value = json.loads(text.decode(tokens))
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


@pytest.mark.timeout(300)
@settings(RANDOM, max_examples=40)
@given(schemas, st.integers(0, 10**6))
def test_any_answer_validates_and_is_the_same_with_drafts(
    engine: Engine, schema: Any, seed: int
) -> None:
    _check_decoding(engine, schema, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(RANDOM, max_examples=150)
@given(schemas, st.integers(0, 10**6))
def test_any_of_150_answers_validates_and_is_the_same_with_drafts(
    engine: Engine, schema: Any, seed: int
) -> None:
    _check_decoding(engine, schema, seed)
