# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Tool calls are read as the chat template writes them, and what cannot be read is told."""

from __future__ import annotations

import json

import gemma4_template
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import ToolCall
from gemma_mtp_ros.engine.channels import CALL_CLOSE, CALL_OPEN, QUOTE, WrittenCall
from gemma_mtp_ros.engine.chat import NO_TOOLS
from gemma_mtp_ros.engine.tool_calls import MAX_DEPTH, Calls, ToolCallError, read_call, read_calls

STRINGS = st.text(max_size=20) | st.sampled_from(
    [
        'say "hi"',
        "{a:1}",
        "],[",
        "a\nb",
        "null",
        "1.5",
        "",
        " ",
        "C:\\x",
        "größer 赤 🤖",
        "<|",
        '"|>',
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS.filter(lambda text: QUOTE not in text)
)
KEYS = st.text("abcXYZ_09äλ-.", min_size=1, max_size=6) | st.sampled_from(["max speed", "a/b (m)"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(KEYS, VALUES, max_size=5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return gemma4_template.text_with(gemma4_template.LARGE, tmp_path_factory.mktemp("tokenizer"))


def rendered(text, arguments) -> str:
    """A call of ``go`` as transformers' template engine renders it, without its markers."""
    call = {"id": "1", "type": "function", "function": {"name": "go", "arguments": arguments}}
    turns = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "go", "tool_call_id": "1", "content": "Done."},
    ]
    prompt = text.render(turns, NO_TOOLS, False)
    return prompt[prompt.index(CALL_OPEN) + len(CALL_OPEN) : prompt.rindex(CALL_CLOSE)]


@given(ARGUMENTS)
def test_what_the_template_writes_is_read_back(text, arguments):
    name, read = read_call(rendered(text, arguments))
    assert name == "go"
    assert json.loads(read) == arguments


@given(ARGUMENTS)
def test_json_is_read_as_well(arguments):
    assert json.loads(read_call(f"call:go{json.dumps(arguments, indent=1)}")[1]) == arguments


@given(ARGUMENTS, st.data())
def test_a_call_cut_short_is_never_read(text, arguments, data):
    call = rendered(text, arguments)
    cut = data.draw(st.integers(0, len(call) - 1))
    with pytest.raises(ToolCallError):
        read_call(call[:cut])


@given(
    st.lists(
        st.sampled_from([*'{}[],:" \\n', "call:", "go", QUOTE, "1", "-", ".", "e9", "true", "ü"]),
        max_size=20,
    ).map("".join)
)
def test_any_text_is_read_as_an_object_or_refused(written):
    for call in (written, f"call:go{{{written}}}"):
        try:
            _, arguments = read_call(call)
        except ToolCallError:
            continue
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("call:stop{}", "{}"),
        ("call:stop {} ", "{}"),
        ("call:stop{a: 1, b : [ 1 , 2 ]}", '{"a": 1, "b": [1, 2]}'),
        # Digits stay as they are: no float on the way.
        ("call:stop{a:1.10,b:12345678901234567890}", '{"a": 1.10, "b": 12345678901234567890}'),
        ("call:stop{b:1,a:2}", '{"b": 1, "a": 2}'),
        ("call:stop{a:None,b:True,c:False}", '{"a": null, "b": true, "c": false}'),
        ('call:stop{a:"x\\n\\"y\\""}', r'{"a": "x\n\"y\""}'),
        ('call:stop{<|"|>a b<|"|>:<|"|>x<|"|>}', '{"a b": "x"}'),
        ('call:stop{a:<|"|>one, "two": {3}<|"|>}', r'{"a": "one, \"two\": {3}"}'),
        ('call:stop{a:<|"|>\x00<|"|>}', r'{"a": "\u0000"}'),
    ],
)  # fmt: skip
def test_notation(call, expected):
    assert read_call(call) == ("stop", expected)


def test_names_with_namespaces():
    assert read_call("call:nav2:move.to-pose{}") == ("nav2:move.to-pose", "{}")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("", "'call:' is missing at its end"),
        ("stop{}", "'call:' is missing before 'stop{}' at character 0"),
        ("call:{}", "the function's name is missing"),
        ("call:stop", "'{' is missing at its end"),
        ("call:stop(a=1)", "'{' is missing before"),
        ("call:stop{", "a key is missing at its end"),
        ("call:stop{a:1", "',' is missing at its end"),
        ("call:stop{a:1,}", "a key is missing before '}'"),
        ("call:stop{a:kitchen}", "a string, number, list"),
        ("call:stop{a:'kitchen'}", "a string, number, list"),
        ("call:stop{a:1 b:2}", "',' is missing before 'b:2}'"),
        ("call:stop{a}", "':' is missing"),
        ("call:stop{a:}", "a string, number, list"),
        ("call:stop{a:01}", "a string, number, list"),
        ("call:stop{a:1.2.3}", "a string, number, list"),
        ("call:stop{a:1m}", "a string, number, list"),
        ("call:stop{a:nan}", "a string, number, list"),
        ("call:stop{a:1e999}", "the number 1e999 is too large"),
        ("call:stop{a:1,a:2}", "the key 'a' comes twice"),
        ('call:stop{a:<|"|>x}', "the string that begins at character 12 has no end"),
        ('call:stop{a:"x}', "the string at character 12 is no JSON"),
        ('call:stop{a:"\\ud83e"}', "holds half a character"),
        ("call:stop{a:[1}", "',' is missing before '}'"),
        ("call:stop{}}", "its end is missing before '}'"),
        ("call:stop{a:" + "[" * 5000, f"nest deeper than {MAX_DEPTH}"),
    ],
)
def test_what_is_wrong_is_said(call, reason):
    with pytest.raises(ToolCallError) as raised:
        read_call(call)
    assert reason in str(raised.value)


def test_nesting_up_to_the_bound():
    depth = MAX_DEPTH - 1
    assert read_call("call:stop{a:" + "[" * depth + "]" * depth + "}")[1].count("[") == depth
    with pytest.raises(ToolCallError):
        read_call("call:stop{a:" + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")


def test_parallel_calls_keep_their_order_and_identities():
    written = [WrittenCall("call:go{x:1}", True), WrittenCall("call:stop{}", True)]
    assert read_calls(written, {"go", "stop"}, "goal") == Calls(
        (
            ToolCall(id="goal-1", name="go", arguments='{"x": 1}'),
            ToolCall(id="goal-2", name="stop", arguments="{}"),
        ),
        "",
    )


def test_one_that_cannot_be_read_is_told_with_its_text_and_drops_no_other():
    written = [WrittenCall("call:go{x:", True), WrittenCall("call:stop{}", True)]
    read, error = read_calls(written, {"go", "stop"}, "goal")
    assert read == (ToolCall(id="goal-2", name="stop"),)
    assert error.startswith("tool call 1 cannot be read: a string, number")
    assert "its text is 'call:go{x:'" in error


def test_one_cut_short_names_what_cut_it():
    written = [WrittenCall("call:go{", True), WrittenCall('call:go{to:<|"|>do', False)]
    read, error = read_calls(written, {"go"}, "goal", cut="the limit of 20 tokens")
    assert read == ()
    first, second = error.split("; tool call 2 ")
    assert "a key is missing" in first
    assert second == (
        "cannot be read: the limit of 20 tokens cut it short; its text is 'call:go{to:<|\"|>do'"
    )


def test_a_complete_call_counts_without_its_end_marker():
    read, error = read_calls([WrittenCall("call:stop{}", False)], {"stop"}, "goal", cut="x")
    assert not error
    assert [call.name for call in read] == ["stop"]


def test_a_function_that_is_not_declared_is_refused():
    read, error = read_calls([WrittenCall("call:fly{}", True)], {"stop", "go"}, "goal")
    assert not read
    assert "no tool is called 'fly' (declared: go, stop)" in error
    assert "(declared: none)" in read_calls([WrittenCall("call:fly{}", True)], (), "goal").error
