# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokens of an answer become text, reasoning and calls as they are decided."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gemma4_template
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import Channel, Message
from gemma_mtp_ros.engine.answer import Answer
from gemma_mtp_ros.engine.channels import Part, WrittenCall
from gemma_mtp_ros.engine.chat import read_tools
from gemma_mtp_ros.engine.text import Text
from gemma_mtp_ros.engine.tool_calls import read_calls

TEXT, REASONING, TOOL_CALL = Channel
THOUGHT = "<|channel>thought\nThe dock is free. STOP?\n<channel|>"
CALL = '<|tool_call>call:go{to:<|"|>dock<|"|>}<tool_call|>'
TOOLS = read_tools('[{"name": "go"}, {"name": "stop"}]', "")
ASK = (Message(role="user", content="Go."),)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return gemma4_template.text_with(gemma4_template.LARGE, tmp_path_factory.mktemp("tokenizer"))


def tokens(text: Text, written: str) -> list[int]:
    return text.tokenizer.encode(written, add_special_tokens=False)


def written(text: Text, answer: Answer, ids: list[int]) -> list[Part]:
    """Parts until the answer stops or its tokens are used up."""
    parts: list[Part] = []
    for token in ids:
        parts += answer.push(token)
        if answer.stopped:
            break
    parts += answer.flush()
    for channel, joined in ((TEXT, answer.text), (REASONING, answer.reasoning)):
        assert joined == "".join(part.text for part in parts if part.channel is channel)
    return parts


def test_the_parts_of_an_answer(text):
    answer = Answer(text, text.encode(ASK, None), names=TOOLS.names)
    parts = written(text, answer, tokens(text, f"{THOUGHT}On my way.{CALL}"))
    assert answer.reasoning == "The dock is free. STOP?"
    assert answer.text == "On my way."
    assert answer.calls == [WrittenCall('call:go{to:<|"|>dock<|"|>}', True)]
    assert "".join(p.text for p in parts if p.channel is TOOL_CALL) == CALL
    assert len(parts) > 10, "pieces come as they are decided"


def test_stop_strings_end_the_text_alone(text):
    answer = Answer(text, text.encode(ASK, None), stop=["STOP", "dock"])
    written(text, answer, tokens(text, f"{THOUGHT}{CALL}Now STOP here."))
    assert answer.stopped
    assert answer.text == "Now "
    assert answer.reasoning == "The dock is free. STOP?"
    assert len(answer.calls) == 1


def test_a_stop_string_is_found_around_a_thought(text):
    answer = Answer(text, text.encode(ASK, None), stop=["STOP"])
    written(text, answer, tokens(text, f"x ST{THOUGHT}OP y"))
    assert (answer.text, answer.stopped) == ("x ", True)


def test_the_answer_to_its_own_call_ends_it(text):
    answer = Answer(text, text.encode(ASK, None), names=TOOLS.names)
    written(text, answer, tokens(text, f"{CALL}<|tool_response>response:go{{value:1}}"))
    assert answer.stopped
    assert answer.text == ""
    assert [call.closed for call in answer.calls] == [True]


def test_thinking_begun_by_the_prompt_is_reasoning(text):
    """After a tool's answer the template opens the channel itself."""
    call = {"role": "assistant", "tool_calls": [{"id": "1", "name": "go"}]}
    turns = [*ASK, Message.model_validate(call), Message(role="tool", content="there")]
    prompt = text.encode(turns, None, tools=TOOLS, thinking=True)
    answer = Answer(text, prompt)
    written(text, answer, tokens(text, "Well.\n<channel|>Arrived."))
    assert (answer.reasoning, answer.text) == ("Well.", "Arrived.")


def test_a_call_begun_by_the_prompt_is_whole(text):
    forced = read_tools('[{"name": "go"}, {"name": "stop"}]', "go")
    answer = Answer(text, text.encode(ASK, None, tools=forced), names=forced.names)
    parts = written(text, answer, tokens(text, 'to:<|"|>dock<|"|>}<tool_call|>'))
    assert "".join(part.text for part in parts) == CALL
    assert answer.calls == [WrittenCall('call:go{to:<|"|>dock<|"|>}', True)]


def test_what_the_token_limit_leaves_open(text):
    answer = Answer(text, text.encode(ASK, None))
    written(text, answer, tokens(text, THOUGHT)[:-2])
    assert (answer.text, answer.reasoning) == ("", "The dock is free. STOP?")
    answer = Answer(text, text.encode(ASK, None))
    written(text, answer, tokens(text, CALL)[:-2])
    assert answer.calls == [WrittenCall('call:go{to:<|"|>dock<|"|>', False)]


def test_a_raw_prompt_gives_text_alone(text):
    answer = Answer(text, None, names=TOOLS.names)
    ids = tokens(text, f"{THOUGHT}Hi.{CALL}")
    written(text, answer, ids)
    assert answer.text == text.decode(ids)
    assert not answer.calls


def test_half_a_character_stays_before_the_marker(text):
    half = text.tokenizer.convert_tokens_to_ids(["<0xF0>", "<0x9F>"])
    answer = Answer(text, text.encode(ASK, None))
    written(text, answer, [*half, *tokens(text, f"{THOUGHT}Hi.")])
    assert answer.text == "\ufffdHi."
    assert answer.reasoning == "The dock is free. STOP?"


@pytest.mark.parametrize(
    "said",
    [
        "Hello.",
        f"{THOUGHT}Hello.",
        CALL,
        f"{THOUGHT}On my way.{CALL}",
        CALL + '<|tool_call>call:stop{a:{b:[1,-2.5,true]},c:<|"|>say "hi", {}<|"|>}<tool_call|>',
    ],
)
def test_well_formed_answers_are_read_as_transformers_reads_them(text, said):
    serving = pytest.importorskip("transformers.cli.serving.utils", reason="transformers 5.24")
    theirs = serving.parse_assistant_message(
        text.tokenizer,
        SimpleNamespace(config=SimpleNamespace(model_type="gemma4")),
        tokens(text, said),
        text.encode(ASK, None),
    )
    answer = Answer(text, text.encode(ASK, None), names=TOOLS.names)
    written(text, answer, tokens(text, said))
    read, error = read_calls(answer.calls, TOOLS.names, "goal")
    assert not error
    content, reasoning, calls = theirs
    assert (answer.text, answer.reasoning) == (content, reasoning or "")
    assert [(call.name, json.loads(call.arguments)) for call in read] == [
        (call.name, json.loads(call.arguments)) for call in calls or []
    ]


@given(st.lists(st.integers(0, 1279), max_size=40))
def test_any_tokens_give_all_their_text(text, ids):
    """Markers aside, joined parts are what the detokeniser makes of the tokens."""
    ids = [token for token in ids if token not in text.markers]
    answer = Answer(text, text.encode(ASK, None))
    assert "".join(part.text for part in written(text, answer, ids)) == text.decode(ids)
    assert answer.channel is TEXT


def test_markers_spelled_by_bytes(tmp_path):
    """A tokenizer without the tokens, under a template that spells them."""
    wrapped = tiny.tokenizer()
    wrapped.chat_template = tiny.TEMPLATE + "{# <|channel> #}"
    wrapped.save_pretrained(tmp_path)
    text = Text(tmp_path)
    answer = Answer(text, text.encode(ASK, None), names=TOOLS.names)
    written(text, answer, tokens(text, f"{THOUGHT}grün{CALL}"))
    assert (answer.text, answer.reasoning) == ("grün", "The dock is free. STOP?")
    assert answer.calls == [WrittenCall('call:go{to:<|"|>dock<|"|>}', True)]
