# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Thoughts, text and tool calls of one answer, each held to what the goal says of it."""

from __future__ import annotations

import json
from typing import Any

import gemma4_template
import jsonschema
import pytest
import torch
from engine_tools import load, run

from gemma_mtp_ros.api import (
    ErrorCode,
    Finish,
    FinishReason,
    Message,
    Request,
    SamplingParams,
    ToolCall,
)
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.engine import sampling
from gemma_mtp_ros.engine.channels import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.structured import Structured

GO = {
    "type": "object",
    "properties": {
        "place": {"enum": ["dock", "lab"]},
        "speed": {"type": "number", "minimum": 0, "maximum": 2},
    },
    "required": ["place"],
}
TOOLS = json.dumps([{"name": "go", "parameters": GO}, {"name": "stop"}])
REPORT: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "why": {"type": "string", "maxLength": 12}},
    "required": ["ok", "why"],
    "additionalProperties": False,
}
CAPS = (0, 2, 7)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The embedded pair under Gemma 4's template; it was never taught to think or to call."""
    engine = load(TARGET_DIR, DRAFTER_DIR)
    folder = tmp_path_factory.mktemp("tokenizer")
    engine.text = gemma4_template.text_with(gemma4_template.SMALL, folder)
    engine.structured = Structured(engine.text, engine.model.vocabulary)
    return engine


@pytest.fixture
def wanted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Tokens that the model prefers at places of its answer, by name, where they are allowed."""
    places: dict[int, str] = {}
    ids = engine.text.tokenizer.get_vocab()

    def choose(logits: torch.Tensor, rules: Any, first: int, *rest: Any) -> torch.Tensor:
        for row in range(logits.shape[0]):
            token = ids.get(places.get(first + row, ""))
            if token is not None and logits[row, token] > -torch.inf:
                logits[row, token] = 1e6
        return sampling.choose(logits, rules, first, *rest)

    for module in ("decode", "rounds"):
        monkeypatch.setattr(f"gemma_mtp_ros.engine.{module}.choose", choose)
    return places


def asked(seed: int = 0, limit: int = 200, **fields: Any) -> Request:
    turns = fields.pop("messages", (Message(role="user", content="Go to the dock."),))
    params = SamplingParams(temperature=0.8, seed=seed, max_new_tokens=limit)
    if "response_schema" in fields:
        fields["response_schema"] = json.dumps(fields["response_schema"])
    return Request(id="goal", messages=turns, sampling=params, **fields)


def said(engine: Engine, request: Request) -> tuple[list[int], Finish]:
    """The answer, which is the same at every draft length."""
    answers = [run(engine, request, cap) for cap in CAPS]
    tokens, finish = answers[0]
    for other, end in answers[1:]:
        assert other == tokens
        for field in ("text", "reasoning", "tool_calls", "finish_reason", "error_code"):
            assert getattr(end, field) == getattr(finish, field)
    return tokens, finish


def check_call(call: ToolCall) -> None:
    assert call.name in ("go", "stop")
    schema = GO if call.name == "go" else {"maxProperties": 0}
    jsonschema.validate(json.loads(call.arguments), schema)


@pytest.mark.parametrize("choice", ["required", "go"])
@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_the_prompt_begins(engine: Engine, choice: str, seed: int) -> None:
    _, finish = said(engine, asked(seed, 60, tools=TOOLS, tool_choice=choice))
    first = finish.tool_calls[0]
    check_call(first)
    assert choice == "required" or first.name == "go"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"properties": {"a": {"type": "array"}}}, "each array in the tools' parameters has items"),
        ({"properties": [1]}, "are no JSON Schema"),
        ({"properties": {"a": {"type": "object", "properties": 1}}}, "are no JSON Schema"),
    ],
)
def test_a_declaration_that_the_template_cannot_show(
    engine: Engine, parameters: dict[str, Any], sentence: str
) -> None:
    tools = json.dumps([{"name": "go", "parameters": parameters}])
    _, finish = said(engine, asked(tools=tools))
    assert finish.error_code is ErrorCode.INVALID_GOAL
    assert sentence in finish.error_msg


@pytest.mark.parametrize("tools", [TOOLS, ""])
def test_no_call_is_wanted(engine: Engine, tools: str) -> None:
    tokens, finish = said(engine, asked(1, 20, tools=tools, tool_choice="none"))
    free, _ = said(engine, asked(1, 20))
    assert tokens == free
    assert not finish.tool_calls
    _, finish = said(engine, asked(1, tools=tools, tool_choice="none", response_schema=REPORT))
    jsonschema.validate(json.loads(finish.text), REPORT)


@pytest.mark.parametrize("seed", range(2))
def test_a_call_that_the_model_begins(engine: Engine, wanted: dict[int, str], seed: int) -> None:
    wanted[5] = CALL_OPEN
    request = asked(seed, 80, tools=TOOLS)
    tokens, finish = said(engine, request)
    close = engine.text.tokenizer.convert_tokens_to_ids(CALL_CLOSE)
    assert close in tokens[6:]
    check_call(finish.tool_calls[0])
    wanted.clear()
    free, _ = run(engine, asked(seed, 20))
    told, plain = said(engine, request)
    assert not plain.tool_calls
    assert free  # without tools nothing is held
    assert told[:5] == tokens[:5]


def test_calls_in_parallel(engine: Engine, wanted: dict[int, str]) -> None:
    wanted |= dict.fromkeys(range(120), CALL_OPEN)
    tokens, finish = said(engine, asked(1, 90, tools=TOOLS))
    for call in finish.tool_calls:
        check_call(call)
    assert len(finish.tool_calls) > 2
    # Room is kept for the end of a call; one for which there was none from its beginning is cut.
    if finish.error_code is not ErrorCode.NONE:
        assert f"tool call {len(finish.tool_calls) + 1} cannot be read" in finish.error_msg
        assert "cut it short" in finish.error_msg
    assert len(tokens) <= 90


@pytest.mark.parametrize("seed", range(3))
def test_the_schema_holds_after_the_thought(
    engine: Engine, wanted: dict[int, str], seed: int
) -> None:
    wanted |= {0: CHANNEL_OPEN, 6: "<turn|>", 9: CALL_OPEN, 14: CHANNEL_CLOSE}
    request = asked(seed, response_schema=REPORT, enable_thinking=True)
    tokens, finish = said(engine, request)
    assert finish.finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(finish.text), REPORT)
    assert finish.reasoning
    names = engine.text.tokenizer.convert_ids_to_tokens(tokens)
    assert names.count(CHANNEL_OPEN) == names.count(CHANNEL_CLOSE) == 1
    assert CALL_OPEN not in names
    assert "<turn|>" not in names


def test_the_model_need_not_think(engine: Engine) -> None:
    _, finish = said(engine, asked(2, response_schema=REPORT, enable_thinking=True))
    if not finish.reasoning:
        jsonschema.validate(json.loads(finish.text), REPORT)


def test_it_may_not_think_unless_asked_to(engine: Engine, wanted: dict[int, str]) -> None:
    wanted[0] = CHANNEL_OPEN
    _, finish = said(engine, asked(3, response_schema=REPORT))
    assert finish.reasoning == ""
    jsonschema.validate(json.loads(finish.text), REPORT)


def test_a_thought_that_fills_the_limit(engine: Engine, wanted: dict[int, str]) -> None:
    wanted[0] = CHANNEL_OPEN
    request = asked(0, 30, response_schema=REPORT, enable_thinking=True)
    tokens, finish = said(engine, request)
    assert finish.finish_reason is FinishReason.LENGTH
    assert finish.text == ""
    assert len(tokens) == 30


@pytest.mark.parametrize("seed", range(3))
def test_calls_or_the_schema(engine: Engine, wanted: dict[int, str], seed: int) -> None:
    request = asked(seed, response_schema=REPORT, tools=TOOLS)
    _, finish = said(engine, request)
    assert finish.finish_reason is FinishReason.STOP
    jsonschema.validate(json.loads(finish.text), REPORT)
    wanted[0] = CALL_OPEN
    _, finish = said(engine, request)
    assert finish.finish_reason is FinishReason.TOOL_CALLS
    assert finish.text == ""
    for call in finish.tool_calls:
        check_call(call)


def test_a_thought_then_a_call_instead_of_text(engine: Engine, wanted: dict[int, str]) -> None:
    wanted |= {0: CHANNEL_OPEN, 7: CALL_OPEN}
    request = asked(0, response_schema=REPORT, tools=TOOLS, enable_thinking=True)
    _, finish = said(engine, request)
    assert finish.finish_reason is FinishReason.TOOL_CALLS
    assert finish.reasoning
    assert finish.text == ""
    check_call(finish.tool_calls[0])


def test_a_thought_that_the_prompt_begins(engine: Engine, wanted: dict[int, str]) -> None:
    wanted[4] = CHANNEL_CLOSE
    turns = (
        Message(role="user", content="Is the dock free?"),
        Message(role="assistant", tool_calls=(ToolCall(id="1", name="stop"),)),
        Message(role="tool", tool_call_id="1", content="yes"),
    )
    request = asked(0, messages=turns, response_schema=REPORT, enable_thinking=True)
    marker, _ = engine.text.opened(engine._open(request).prompt)
    assert marker == CHANNEL_OPEN
    _, finish = said(engine, request)
    assert finish.reasoning
    jsonschema.validate(json.loads(finish.text), REPORT)


def test_schemas_that_cannot_be_compiled_are_checked_afterwards(
    engine: Engine, wanted: dict[int, str], caplog: pytest.LogCaptureFixture
) -> None:
    huge = {f"p{i}": {"type": "string", "description": "x" * 900} for i in range(800)}
    circle = {"type": "object", "properties": {"x": {"$ref": "#/properties/x"}, **huge}}
    tools = json.dumps([{"name": "go", "parameters": {**circle, "required": ["x"]}}])
    (finish,) = engine.generate(asked(tools=tools), lambda: RoundControl(0))
    assert isinstance(finish, Finish)
    assert finish.error_code is ErrorCode.SCHEMA_UNSUPPORTED
    wanted[0] = CALL_OPEN
    circle["properties"] = {"x": {"$ref": "#/properties/x"}}
    tools = json.dumps([{"name": "go", "parameters": {**circle, "required": ["x"]}}])
    _, finish = run(engine, asked(0, 60, tools=tools), 3)
    assert "cannot be compiled" in caplog.text
    assert finish.error_code in (ErrorCode.NONE, ErrorCode.TOOL_CALL_INVALID)


@pytest.mark.parametrize(
    ("value", "warned"),
    [
        ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{2}$"}, False),
        ({"type": "integer", "multipleOf": 999983}, True),
    ],
    ids=["pattern", "hostile"],
)
@pytest.mark.slow
def test_what_may_be_costly_is_tried_first(
    engine: Engine,
    wanted: dict[int, str],
    caplog: pytest.LogCaptureFixture,
    value: Any,
    warned: bool,
) -> None:
    wanted[0] = CALL_OPEN
    schema = {"type": "object", "properties": {"x": value}, "required": ["x"]}
    tools = json.dumps([{"name": "go", "parameters": schema}])
    _, finish = run(engine, asked(0, 60, tools=tools), 3)
    assert ("cannot be compiled" in caplog.text) is warned
    if not warned:
        jsonschema.validate(json.loads(finish.tool_calls[0].arguments), schema)
    elif finish.error_code is not ErrorCode.NONE:
        assert finish.error_code is ErrorCode.TOOL_CALL_INVALID
