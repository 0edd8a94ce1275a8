# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Schemas, tool calls and thoughts through client and command line.

The embedded pair knows no tools: its chat template is exchanged for one that declares them, and
the masks see to it that a call that is begun for it is a valid one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gemma4_template
import pytest
from driver import NodeProcess
from pydantic import BaseModel, ConfigDict
from test_ask import ask, prompt_tokens

from gemma_mtp_ros.api import Channel, FinishReason
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.ros.client import GenerateClient

PLACES = {"type": "object", "properties": {"to": {"enum": ["dock", "kitchen"]}}, "required": ["to"]}
TOOLS = [{"name": "go", "description": "Drive there.", "parameters": PLACES}]
ASKED = [{"role": "user", "content": "Go to the dock."}]


class Step(BaseModel):
    """What the model is asked for."""

    model_config = ConfigDict(extra="forbid")

    action: Literal["navigate", "dock"]
    place: Literal["kitchen", "dock"]


@pytest.fixture(scope="module")
def parameters(
    embedded: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("pair") / "target"
    shutil.copytree(TARGET_DIR, folder)
    (folder / "chat_template.jinja").write_text(gemma4_template.SMALL, encoding="utf-8")
    engine = embedded["engine"] | {"max_duty_cycle": 1.0}
    return embedded | {"model": str(folder), "drafter": "demo", "engine": engine}


@pytest.fixture
def client(active: NodeProcess) -> Iterator[GenerateClient]:
    with GenerateClient() as client:
        yield client


def test_an_answer_follows_a_pydantic_model(client: GenerateClient) -> None:
    with client.ask("Go to the dock.", response_schema=Step) as answer:
        pieces = list(answer)
    result = answer.result()
    assert Step.model_validate_json(result.text).model_dump_json() == result.text
    assert "".join(piece.text for piece in pieces) == result.text


def test_a_call_is_answered_and_the_conversation_goes_on(client: GenerateClient) -> None:
    with client.ask(messages=ASKED, tools=TOOLS, tool_choice="go") as answer:
        pieces = list(answer)
    result = answer.result()
    assert result.finish_reason is FinishReason.TOOL_CALLS
    call = result.tool_calls[0]
    assert call.name == "go"
    assert json.loads(call.arguments)["to"] in ("dock", "kitchen")
    assert Channel.TOOL_CALL in {piece.channel for piece in pieces if piece.text}
    returned = [
        {"role": "tool", "content": "arrived", "tool_call_id": made.id}
        for made in result.tool_calls
    ]
    with client.ask(
        messages=[*ASKED, result.message, *returned],
        tools=TOOLS,
        enable_thinking=True,  # with this template the prompt ends in an open thought
        max_new_tokens=3,
    ) as answer:
        pieces = list(answer)
    result = answer.result()
    assert answer.reasoning == result.reasoning != ""
    assert {piece.channel for piece in pieces if piece.text} == {Channel.REASONING}


@pytest.mark.usefixtures("active")
def test_the_command_takes_a_schema(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    file.write_text(json.dumps(Step.model_json_schema()))
    status, out, err = ask("--schema", str(file), "Go to the dock.")
    assert status == 0, err
    Step.model_validate_json(out)


@pytest.mark.usefixtures("active")
def test_the_command_shows_calls(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS))
    options = ["--tools", str(file), "--tool-choice", "go"]
    status, out, err = ask(*options, "Go to the dock.")
    assert status == 0, err
    assert "call:" not in out
    assert '→ go {"to":' in err
    status, out, _ = ask("--json", *options, "Go to the dock.")
    assert status == 0
    found = json.loads(out)
    assert found["finish_reason"] == "tool_calls"
    assert found["tool_calls"][0]["name"] == "go"


@pytest.mark.usefixtures("active")
def test_chat_asks_what_a_call_returned() -> None:
    options = ["--tools", json.dumps(TOOLS), "--tool-choice", "go"]
    status, _, err = ask("--chat", *options, stdin="Go to the dock.\narrived\n")
    assert status == 0
    assert '→ go {"to":' in err
    assert "forgotten" not in err
    first, second = prompt_tokens(err)[:2]
    assert second > first + 10  # call and answer stand in the prompt
