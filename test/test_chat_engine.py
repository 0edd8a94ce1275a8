# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A running engine answers in channels and calls tools, at every draft length."""

from __future__ import annotations

from typing import Any

import gemma4_template
import pytest
import torch
from engine_tools import OracleDrafter, load, run

from gemma_mtp_ros.api import (
    Cancel,
    Channel,
    ErrorCode,
    FinishReason,
    Message,
    Piece,
    Request,
    SamplingParams,
)
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.engine.decode import RoundControl

TOOLS = '[{"name": "go", "description": "Drive."}, {"name": "stop"}]'
THOUGHT = "<|channel>thought\nThe dock is free.\n<channel|>"
CALL = '<|tool_call>call:go{to:<|"|>dock<|"|>}<tool_call|>'


class Script:
    """Stands where the target's choices are made: the model says what is written, then ends.

    An oracle in the drafter's place proposes the same, so that every draft stands.
    """

    def __init__(self, engine, monkeypatch) -> None:
        self.engine = engine
        self.monkeypatch = monkeypatch
        self.ids: list[int] = []
        for module in ("decode", "rounds"):
            monkeypatch.setattr(f"gemma_mtp_ros.engine.{module}.choose", self.choose)

    def says(self, written: str) -> None:
        self.ids = self.engine.text.tokenizer.encode(written, add_special_tokens=False)

    def choose(self, logits, rules, index, ids=None):
        places = range(index, index + logits.shape[0])
        return torch.tensor([self.ids[i] if i < len(self.ids) else 1 for i in places])

    def answer(self, asked: Request, cap: int, poll=None):
        """Events of the request."""
        oracle = OracleDrafter(self.engine, [*self.ids, 1], acceptance=1.0)
        oracle.prompt_length = len(self.engine._open(asked).prompt)
        self.monkeypatch.setattr(self.engine, "drafter", oracle)
        return self.engine.generate(asked, poll or (lambda: RoundControl(cap)))

    def run(self, asked: Request, cap: int = 3):
        """Tokens and finish of the request, checked as every answer is."""
        events = list(self.answer(asked, cap))
        self.monkeypatch.setattr(self.engine, "generate", lambda *_: iter(events))
        try:
            return run(self.engine, asked, cap)
        finally:
            self.monkeypatch.delattr(self.engine, "generate")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    # Free to say what no schema allows: here is what comes of it.
    engine = load(TARGET_DIR, DRAFTER_DIR, structured_output=False)
    folder = tmp_path_factory.mktemp("tokenizer")
    engine.text = gemma4_template.text_with(gemma4_template.LARGE, folder)
    return engine


@pytest.fixture
def script(engine, monkeypatch):
    return Script(engine, monkeypatch)


def asked(**fields: Any) -> Request:
    turns = fields.pop("messages", (Message(role="user", content="Go to the dock."),))
    sampling = SamplingParams(temperature=0.0, max_new_tokens=fields.pop("limit", 200))
    return Request(id="goal", messages=turns, sampling=sampling, **fields)


@pytest.mark.parametrize("cap", [0, 1, 3, 7])
def test_thought_text_and_parallel_calls(script, cap):
    script.says(f"{THOUGHT}On my way.{CALL}<|tool_call>call:stop{{}}<tool_call|><turn|>")
    tokens, finish = script.run(asked(tools=TOOLS, enable_thinking=True), cap)
    assert finish.finish_reason is FinishReason.TOOL_CALLS
    assert finish.error_code is ErrorCode.NONE
    assert (finish.reasoning, finish.text) == ("The dock is free.", "On my way.")
    assert [(call.id, call.name, call.arguments) for call in finish.tool_calls] == [
        ("goal-1", "go", '{"to": "dock"}'),
        ("goal-2", "stop", "{}"),
    ]
    assert tokens == script.ids[:-1]
    assert finish.stats.accepted_at == finish.stats.drafted_at
    assert bool(sum(finish.stats.accepted_at)) is (cap > 0)


def test_pieces_of_a_round_are_told_by_channel(script):
    script.says(f"{THOUGHT}Yes.{CALL}<turn|>")
    events = list(script.answer(asked(tools=TOOLS), 7))
    pieces = [event for event in events if isinstance(event, Piece)]
    called = "".join(p.text for p in pieces if p.channel is Channel.TOOL_CALL)
    assert called == CALL
    order = [p.channel for p in pieces if p.text]
    assert order == sorted(order, key=[Channel.REASONING, Channel.TEXT, Channel.TOOL_CALL].index)


def test_thinking_open_at_the_limit(script):
    script.says(THOUGHT)
    tokens, finish = script.run(asked(limit=len(script.ids) - 3), 3)
    assert finish.finish_reason is FinishReason.LENGTH
    assert finish.text == ""
    assert finish.reasoning
    assert len(tokens) == len(script.ids) - 3


@pytest.mark.parametrize("cap", [0, 7])
def test_a_call_cut_short_at_the_limit(script, cap):
    script.says(f"Yes.{CALL}")
    limit = len(script.ids) - 3
    _, finish = script.run(asked(tools=TOOLS, limit=limit), cap)
    assert finish.finish_reason is FinishReason.ERROR
    assert finish.error_code is ErrorCode.TOOL_CALL_INVALID
    assert finish.text == "Yes."
    assert not finish.tool_calls
    assert f"the limit of {limit} tokens" in finish.error_msg
    assert "its text is 'call:go{to:<|\"|>dock'" in finish.error_msg
    assert finish.error_msg.endswith("allow more tokens")


def test_a_malformed_call_keeps_the_others(script):
    script.says(f"<|tool_call>call:go(to=1)<tool_call|>{CALL}<turn|>")
    _, finish = script.run(asked(tools=TOOLS), 3)
    assert finish.error_code is ErrorCode.TOOL_CALL_INVALID
    assert "call:go(to=1)" in finish.error_msg
    assert [call.id for call in finish.tool_calls] == ["goal-2"]


def test_a_call_of_what_was_not_declared(script):
    script.says(f"{CALL}<turn|>")
    _, finish = script.run(asked(), 3)
    assert finish.error_code is ErrorCode.TOOL_CALL_INVALID
    assert "no tool is called 'go'" in finish.error_msg


def test_arguments_that_break_their_schema(script):
    number = '[{"name": "go", "parameters": {"properties": {"to": {"type": "number"}}}}]'
    script.says(f"{CALL}<turn|>")
    _, finish = script.run(asked(tools=number), 3)
    assert finish.error_code is ErrorCode.TOOL_CALL_INVALID
    assert not finish.tool_calls
    assert "to: 'dock' is not of type 'number'" in finish.error_msg
    assert CALL[len("<|tool_call>") : -len("<tool_call|>")] in finish.error_msg


def test_the_model_does_not_answer_its_own_call(script):
    script.says(f"{CALL}<|tool_response>response:go{{value:1}}<tool_response|>Done.<turn|>")
    _, finish = script.run(asked(tools=TOOLS), 7)
    assert finish.finish_reason is FinishReason.TOOL_CALLS
    assert finish.text == ""


def test_a_required_call(script):
    script.says('to:<|"|>dock<|"|>}<tool_call|><turn|>')
    _, finish = script.run(asked(tools=TOOLS, tool_choice="go"), 3)
    assert finish.finish_reason is FinishReason.TOOL_CALLS
    assert finish.tool_calls[0].arguments == '{"to": "dock"}'


def test_a_cancel_keeps_what_was_written(script):
    script.says(f"{THOUGHT}Yes.{CALL}No.<turn|>")
    called = ""

    def poll() -> RoundControl:
        end = Cancel(request_id="goal") if called.endswith("<tool_call|>") else None
        return RoundControl(0, end=end)

    for event in script.answer(asked(tools=TOOLS), 0, poll):
        if isinstance(event, Piece) and event.channel is Channel.TOOL_CALL:
            called += event.text
    finish = event
    assert finish.finish_reason is FinishReason.CANCELED
    assert (finish.reasoning, finish.text) == ("The dock is free.", "Yes.")
    assert [call.name for call in finish.tool_calls] == ["go"]


def test_a_raw_prompt_is_answered_in_text_alone(script):
    script.says(f"{THOUGHT}Yes.<turn|>")
    raw = Request(id="goal", raw_prompt="Go.", sampling=SamplingParams(temperature=0.0))
    _, finish = script.run(raw, 3)
    assert finish.text == "thought\nThe dock is free.\nYes."
    assert finish.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tools": "{"}, "tools is no JSON"),
        ({"tools": TOOLS, "tool_choice": "fly"}, "tool_choice is 'fly'"),
        (
            {"tools": '[{"name": "go", "parameters": {"required": "to"}}]'},
            "the parameters of tool 'go' are no JSON Schema (parameters.required",
        ),
        ({"messages": (Message(role="tool", content="x"),)}, "no unanswered call"),
    ],
)
def test_a_bad_conversation_ends_with_a_sentence(engine, fields, sentence):
    (finish,) = engine.generate(asked(**fields), lambda: RoundControl(0))
    assert finish.error_code is ErrorCode.INVALID_GOAL
    assert sentence in finish.error_msg
