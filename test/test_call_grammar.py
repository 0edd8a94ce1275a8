# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of tools that their schemas allow, in Gemma 4's notation."""

from __future__ import annotations

import json
import random
from typing import Any

import gemma4_template
import pytest
from grammar_tools import arrays, leaves, objects
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import ErrorCode, RequestError
from gemma_mtp_ros.engine.call_grammar import call_grammar
from gemma_mtp_ros.engine.call_schema import ArgumentSchemas, normal
from gemma_mtp_ros.engine.channels import CALL_CLOSE, QUOTE
from gemma_mtp_ros.engine.grammar import Grammar, Grammars
from gemma_mtp_ros.engine.text import Text
from gemma_mtp_ros.engine.token_masks import Vocabulary
from gemma_mtp_ros.engine.tool_calls import read_call

Q = QUOTE


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Text:
    return gemma4_template.text_with(gemma4_template.LARGE, tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def vocabulary(text: Text) -> Vocabulary:
    return Vocabulary(text, text.size, [text.tokenizer.eos_token_id])


def compiled(text: Text, vocabulary: Vocabulary, tools: dict[str, Any]) -> Grammar:
    tokens = {name: token for token, name in text.markers.items()}
    of_calls = vocabulary.of_calls(tokens[QUOTE], tokens[CALL_CLOSE])
    schemas = ArgumentSchemas(tools).schemas
    return Grammars(vocabulary).of_calls(
        lambda quote: call_grammar(schemas, quote), of_calls, tokens[QUOTE], costly=False
    )


def may_say(text: Text, grammar: Grammar, written: str) -> bool:
    """Whether a call can be written as the tokenizer spells it, and is whole then."""
    tokens = text.tokenizer.encode(written, add_special_tokens=False)
    state = grammar.start(500)
    return state.admitted(tokens) == len(tokens) and not state.accept(tokens) and state.complete


def says(text: Text, grammar: Grammar, seed: int, limit: int) -> str:
    """A random call."""
    draws, tokens, state = random.Random(seed), [], grammar.start(limit)
    while state.ended is None and len(tokens) < limit:
        allowed = state.mask()[0].nonzero()[:, 0].tolist()
        chosen = state.settle((), [draws.choice(allowed)])
        state.accept(chosen)
        tokens += chosen
    assert state.complete
    return text.backend.decode(tokens, skip_special_tokens=False).removesuffix(CALL_CLOSE)


GO = {
    "type": "object",
    "properties": {
        "place": {"enum": ["dock", "lab"]},
        "speed": {"type": "number", "minimum": 0, "maximum": 2},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["place"],
}


@pytest.mark.parametrize(
    ("written", "good"),
    [
        (f"call:go{{place:{Q}dock{Q}}}", True),
        (f"call:go{{place:{Q}dock{Q},speed:0.5}}", True),
        (f"call:go{{speed:0.5,place:{Q}dock{Q}}}", True),
        (f'call:go{{tags:[{Q}a"b{Q},{Q}{Q}],place:{Q}lab{Q}}}', True),
        ("call:stop{}", True),
        ("call:go{}", False),
        (f"call:go{{place:{Q}moon{Q}}}", False),
        (f"call:go{{place:{Q}dock{Q},speed:9}}", False),
        (f"call:go{{place:{Q}dock{Q},place:{Q}dock{Q}}}", False),
        (f"call:go{{place:{Q}dock{Q},colour:{Q}red{Q}}}", False),
        (f"call:go{{place:{Q}dock{Q},tags:[{Q}a{Q},{Q}b{Q},{Q}c{Q}]}}", False),
        (f"call:go{{place:{Q}dock{Q},tags:[{Q}abcde{Q}]}}", False),
        ("call:stop{now:true}", False),
        ("call:fly{}", False),
        ('call:go{"place":"dock"}', False),
        (f"call:go{{place: {Q}dock{Q}}}", False),
    ],
)
def test_a_call_follows_its_function(
    text: Text, vocabulary: Vocabulary, written: str, good: bool
) -> None:
    grammar = compiled(text, vocabulary, {"go": GO, "stop": {"type": "object", "properties": {}}})
    assert may_say(text, grammar, written) is good


def _of(inner: dict[str, Any], **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": inner}, "required": ["x"], **root}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": []}
ALLOWED = [
    (_of({"type": "STRING", "nullable": True}), f"{Q}a{Q}", "null", "1"),
    (_of({"type": ["integer", "null"]}), "-7", "null", "0.5"),
    (_of({"const": {"a": [1, "b", None]}}), f"{{a:[1,{Q}b{Q},null]}}", None, "{a:[1]}"),
    (_of({"anyOf": [{"type": "boolean"}, {"const": 3}]}), "true", "3", "4"),
    (_of({"type": "string", "pattern": "^[A-Z]{2}-(a|b/c)$"}), f"{Q}AB-b/c{Q}", None, f"{Q}A-a{Q}"),
    (_of({"type": "string", "pattern": "x"}), f"{Q}axb{Q}", None, f"{Q}ab{Q}"),
    (_of({"type": "string", "minLength": 2}), f"{Q}\n é{Q}", None, f"{Q}a{Q}"),
    (_of({}), f"[1,{{a:{Q}{Q}}},null,-2.5e3]", "true", "nil"),
    (_of({"type": "object"}), f"{{a:{{b:{Q}c{Q}}}}}", "{}", "[]"),
    (_of({"$ref": "#/$defs/n"}, **{"$defs": {"n": NODE}}), "{next:{next:{}}}", "{}", "{a:1}"),
    (
        _of({"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}], "items": False}),
        "[null,1]",
        "[null]",
        "[null,1,1]",
    ),
    (_of({"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 20}), "15", "10", "12"),
    (_of({"type": "string", "enum": ["", "a"]}), f"{Q}{Q}", f"{Q}a{Q}", f"{Q}b{Q}"),
    (_of({"type": "string", "pattern": "^a|b$"}), f"{Q}anything{Q}", None, "1"),
    (_of({"not": {"type": "null"}}), "1", "null", "?"),  # what is not known is checked later
]


@pytest.mark.parametrize(("schema", "good", "also", "bad"), ALLOWED, ids=str)
def test_values_in_the_notation(
    text: Text, vocabulary: Vocabulary, schema: Any, good: str, also: str, bad: str
) -> None:
    grammar = compiled(text, vocabulary, {"f": schema})
    for value, expected in ((good, True), (also, True), (bad, False)):
        if value is not None:
            assert may_say(text, grammar, f"call:f{{x:{value}}}") is expected, value


def test_a_name_that_cannot_stand_bare_is_quoted(text: Text, vocabulary: Vocabulary) -> None:
    schema = {"type": "object", "properties": {"a b:": {"const": 1}}, "required": ["a b:"]}
    grammar = compiled(text, vocabulary, {"f": schema})
    written = f"call:f{{{Q}a b:{Q}:1}}"
    assert may_say(text, grammar, written)
    assert read_call(written) == ("f", '{"a b:": 1}')


def test_many_properties_come_by_name(text: Text, vocabulary: Vocabulary) -> None:
    names = "hgfedcba"
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"const": 1} for name in names},
        "required": ["b", "g"],
    }
    grammar = compiled(text, vocabulary, {"f": schema})
    assert may_say(text, grammar, "call:f{a:1,b:1,g:1,h:1}")
    assert may_say(text, grammar, "call:f{b:1,c:1,g:1}")
    assert not may_say(text, grammar, "call:f{g:1,b:1}")
    assert not may_say(text, grammar, "call:f{b:1}")
    schema["additionalProperties"] = {"type": "boolean"}
    grammar = compiled(text, vocabulary, {"f": schema})
    assert may_say(text, grammar, "call:f{b:1,g:1,extra:true,more:false}")
    assert not may_say(text, grammar, "call:f{b:1,g:1,extra:1}")
    assert not may_say(text, grammar, "call:f{b:1,g:1,a:true}")


fixed = leaves.filter(lambda schema: "format" not in schema)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    closed = objects(inner).map(lambda schema: {**schema, "additionalProperties": False})
    either = st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    return st.one_of(arrays(inner), closed, either)


arguments = objects(st.recursive(fixed, _nested, max_leaves=6)).map(
    lambda schema: {**schema, "additionalProperties": False}
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(schema=arguments, seed=st.integers(0, 10**6))
def test_random_calls_validate(text: Text, vocabulary: Vocabulary, schema: Any, seed: int) -> None:
    grammar = compiled(text, vocabulary, {"go": schema, "stop": {"type": "object"}})
    limit = 2 * (grammar.shortest or 200) + 100
    name, said = read_call(says(text, grammar, seed, limit))
    if name == "go":
        assert ArgumentSchemas({"go": schema}).violation("go", json.loads(said)) == ""


@pytest.mark.parametrize(
    ("schema", "code", "words"),
    [
        ({"properties": {"x": {"type": "strng"}}}, ErrorCode.INVALID_GOAL, "properties.x.type"),
        ({"properties": {"x": {"minimum": "1"}}}, ErrorCode.INVALID_GOAL, "minimum"),
        ({"properties": {"x": {"$ref": "#/$defs/y"}}}, ErrorCode.SCHEMA_UNSUPPORTED, "#/$defs/y"),
        ({"$ref": "https://example.com/s"}, ErrorCode.SCHEMA_UNSUPPORTED, "example.com"),
        (_of({"pattern": "(?=a)b"}), ErrorCode.SCHEMA_UNSUPPORTED, "look-around"),
        ({"description": "x" * 70_000}, ErrorCode.SCHEMA_UNSUPPORTED, "65536"),
        ({"patternProperties": {"a": {}}}, ErrorCode.SCHEMA_UNSUPPORTED, "patternProperties"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: Any, code: ErrorCode, words: str) -> None:
    with pytest.raises(RequestError, match="the parameters of") as refused:
        ArgumentSchemas({"go": schema})
    assert refused.value.code == code
    assert words in str(refused.value)


def test_what_is_wrong_with_arguments_is_said() -> None:
    schemas = ArgumentSchemas({"go": GO})
    assert schemas.violation("go", {"place": "dock", "speed": 1}) == ""
    assert schemas.violation("go", {"place": "dock", "speed": 3}).startswith("speed: 3 is greater")
    assert "'place' is a required property" in schemas.violation("go", {})


def test_a_pattern_is_matched_in_bounded_time() -> None:
    schemas = ArgumentSchemas({"f": _of({"type": "string", "pattern": "^(a+)+$"})})
    assert schemas.violation("f", {"x": "a" * 40}) == ""
    assert "does not match" in schemas.violation("f", {"x": "a" * 40 + "b"})
    anywhere = ArgumentSchemas({"f": _of({"type": "string", "pattern": "b\\n"})})
    assert anywhere.violation("f", {"x": 'a"b\né'}) == ""
    assert anywhere.violation("f", {"x": "b"})


def test_a_schema_that_circles_is_said_to() -> None:
    schemas = ArgumentSchemas({"f": _of({"$ref": "#/properties/x"})})
    assert "without end" in schemas.violation("f", {"x": 1})


def test_openapi_words_are_read() -> None:
    given_schema = {"type": "OBJECT", "properties": {"t": {"type": "STRING", "nullable": True}}}
    assert normal(given_schema) == {
        "type": "object",
        "properties": {"t": {"type": ["string", "null"], "nullable": True}},
    }


def test_what_circles_without_end_is_refused(text: Text, vocabulary: Vocabulary) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(text, vocabulary, {"f": _of({"$ref": "#/properties/x"})})
    assert refused.value.code == ErrorCode.SCHEMA_UNSUPPORTED
