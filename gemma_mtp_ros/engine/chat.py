# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Turns a conversation and its tools into what a chat template takes.

Pure: no tokenizer, no template. The form is that of transformers' ``apply_chat_template``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from ..api import Message, RequestError
from .channels import CALL_OPEN, CALL_PREFIX, CHANNEL_CLOSE, CHANNEL_OPEN, MARKERS

CONTROL = (
    *MARKERS, "<tool_response|>", "<|tool>", "<tool|>", "<|think|>", "<|turn>", "<turn|>",
    "<bos>", "<eos>",
)  # fmt: skip
"""Tokens of Gemma 4's tokenizer that structure a conversation (the multimodal ones aside)."""

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


class Tools(NamedTuple):
    """Functions that the model may call."""

    declarations: list[dict[str, Any]]
    """As OpenAI and transformers write them: ``{"type": "function", "function": {...}}``."""
    names: frozenset[str]
    forced: str | None
    """The beginning of the call that the model must make; ``None``: it chooses."""
    parameters: Mapping[str, Any] = MappingProxyType({})
    """JSON Schema of each function's arguments, as declared."""


NO_TOOLS = Tools([], frozenset(), None)


MAX_DEPTH = 64
"""Deepest nesting of JSON that a goal may hold; templates recurse into it."""


def load_json(text: str) -> Any:
    """Parse JSON in the strict sense: no NaN, no infinity, nested at most :data:`MAX_DEPTH` deep.

    :raises ValueError: saying where it is wrong.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON number")

    deep = f"it nests deeper than {MAX_DEPTH}"
    try:
        found = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError(deep) from None
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [inner for value in level for inner in _inside(value)]
    if any(isinstance(value, (dict, list)) for value in level):
        raise ValueError(deep)
    return found


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _strings(value: Any) -> Iterator[str]:
    """All strings in parsed JSON, keys too."""
    if isinstance(value, str):
        yield value
    if isinstance(value, dict):
        yield from value
    for inner in _inside(value):
        yield from _strings(inner)


def read_tools(tools: str, choice: str) -> Tools:
    """Read a goal's ``tools`` and ``tool_choice``.

    :param tools: JSON array of declarations, each ``{"name", "description", "parameters"}`` or
        that in ``{"type": "function", "function": ...}``; empty: none.
    :param choice: ``auto`` (or empty), ``none``, ``required`` or the name of a function.
    :raises RequestError: naming the declaration and what is wrong with it.
    """
    parameters: dict[str, Any] = {}
    declarations = [_declaration(i, one, parameters) for i, one in enumerate(_tool_list(tools))]
    names = [one["function"]["name"] for one in declarations]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(f"tools declares {name!r} twice; give each function its own name")
    if choice == "none":
        return NO_TOOLS
    forced = None
    if choice == "required":
        if not names:
            raise RequestError("tool_choice is 'required' but tools is empty; declare a function")
        forced = f"{CALL_PREFIX}{names[0]}{{" if len(names) == 1 else CALL_PREFIX
    elif choice not in ("", "auto"):
        if choice not in names:
            others = (
                f"'required' or one of: {', '.join(names)}" if names else "or declare it in tools"
            )
            raise RequestError(
                f"tool_choice is {choice!r}, which tools does not declare; take 'auto', 'none', "
                f"{others}"
            )
        forced = f"{CALL_PREFIX}{choice}{{"
    return Tools(declarations, frozenset(names), forced, parameters)


def _tool_list(tools: str) -> list[Any]:
    if not tools.strip():
        return []
    try:
        found = load_json(tools)
    except ValueError as error:
        raise RequestError(f"tools is no JSON ({error}); send an array of declarations") from error
    if not isinstance(found, list):
        raise RequestError(f"tools is no JSON array but begins {tools.strip()[:20]!r}; send one")
    return found


def _declaration(index: int, given: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """A declaration for the template; the schema of its parameters goes into ``schemas``."""
    function = given.get("function", given) if isinstance(given, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(
            f"tools.{index} is no function declaration; send an object with name, description "
            "and parameters (a JSON Schema)"
        )
    name = function["name"]
    if not _TOOL_NAME.fullmatch(name):
        raise RequestError(
            f"tools.{index}.name is {name!r}; use 1 to 128 of the characters a-z A-Z 0-9 _ . : / -"
        )
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise RequestError(f"tools.{index}.description is no string; send one")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if (
        not isinstance(parameters, dict)
        or str(parameters.get("type", "object")).lower() != "object"
    ):
        raise RequestError(
            f"tools.{index}.parameters is no JSON Schema of an object; send "
            '{"type": "object", "properties": {...}}'
        )
    schemas[name] = parameters
    full = {**function, "description": description, "parameters": _for_template(parameters)}
    return {"type": "function", "function": full}


def _for_template(schema: dict[str, Any]) -> dict[str, Any]:
    """Write ``"type": ["string", "null"]`` as Gemma 4's declarations do: nullable."""
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if isinstance(value, dict):
            found[key] = _for_template(value)
        elif isinstance(value, list):
            found[key] = [_for_template(v) if isinstance(v, dict) else v for v in value]
        else:
            found[key] = value
    kinds = found.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        rest = [kind for kind in kinds if kind != "null"]
        if len(rest) == 1:
            found |= {"type": rest[0], "nullable": True}
    return found


def template_turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them.

    Arguments of calls become objects, the answer of a tool gets its function's name, and a
    developer is a system: Gemma 4 knows system, user, model and tools.

    :raises RequestError: where calls and answers do not belong together, which templates would
        render as something else.
    """
    turns: list[dict[str, Any]] = []
    waiting: dict[str, str] = {}
    for index, message in enumerate(messages):
        if message.role == "tool":
            call_id = _answered(index, message, waiting)
            turns.append(
                {
                    "role": "tool",
                    "name": waiting.pop(call_id),
                    "tool_call_id": call_id,
                    "content": message.content,
                }
            )
            continue
        _refuse_unanswered(waiting)
        if message.tool_call_id:
            raise RequestError(
                f"messages.{index}.tool_call_id is set, but the role is {message.role!r}; set it "
                "on tool messages only"
            )
        role = "system" if message.role == "developer" else message.role
        turn: dict[str, Any] = {"role": role, "content": message.content}
        if message.reasoning:
            turn["reasoning"] = message.reasoning
        if message.tool_calls:
            if role != "assistant":
                raise RequestError(
                    f"messages.{index}.tool_calls is set, but the role is {message.role!r}; only "
                    "the assistant calls tools"
                )
            turn["tool_calls"] = _calls(index, message)
            waiting = {c["id"]: c["function"]["name"] for c in turn["tool_calls"]}
        turns.append(turn)
    _refuse_unanswered(waiting)
    return turns


def _calls(index: int, message: Message) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for number, call in enumerate(message.tool_calls):
        where = f"messages.{index}.tool_calls.{number}"
        try:
            arguments = load_json(call.arguments or "{}")
        except ValueError as error:
            raise RequestError(f"{where}.arguments is no JSON ({error}); send an object") from error
        if not isinstance(arguments, dict):
            raise RequestError(f"{where}.arguments is {call.arguments[:40]!r}; send a JSON object")
        # An identity is optional while there is but one call to answer.
        call_id = call.id or f"call-{number + 1}"
        if any(other["id"] == call_id for other in calls):
            raise RequestError(f"{where}.id is {call_id!r}, as another call's; make it unique")
        function = {"name": call.name, "arguments": arguments}
        calls.append({"id": call_id, "type": "function", "function": function})
    return calls


def _answered(index: int, message: Message, waiting: dict[str, str]) -> str:
    """The identity of the call that a tool message answers."""
    if message.tool_calls:
        raise RequestError(
            f"messages.{index}.tool_calls is set, but the role is 'tool'; only the assistant "
            "calls tools"
        )
    call_id = message.tool_call_id
    if not call_id and len(waiting) == 1:
        return next(iter(waiting))
    if call_id not in waiting:
        open_calls = ", ".join(map(repr, waiting)) or "none"
        raise RequestError(
            f"messages.{index}.tool_call_id is {call_id!r}, which no unanswered call before it "
            f"has (these wait: {open_calls}); send the answers right after the assistant's calls"
        )
    return call_id


def _refuse_unanswered(waiting: dict[str, str]) -> None:
    if waiting:
        calls = ", ".join(f"{name} ({call_id!r})" for call_id, name in waiting.items())
        raise RequestError(
            f"the conversation leaves calls unanswered: {calls}; send a tool message for each, "
            "with what it returned or why it did not run"
        )


def speech_before_calls(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns in the order in which the model wrote them.

    Gemma 4's templates put what the assistant said beside its calls after the tools' answers, and
    end the turn there. Said in a message of its own, it stays before the calls, in the same turn.
    """
    found: list[dict[str, Any]] = []
    for turn in turns:
        if turn.get("tool_calls") and turn["content"].strip():
            found.append({key: value for key, value in turn.items() if key != "tool_calls"})
            turn = {"role": turn["role"], "content": "", "tool_calls": turn["tool_calls"]}
        found.append(turn)
    return found


def with_responses(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns for templates that know no tool role: answers go into the turn that called.

    So did the first templates released with Gemma 4 (April 2026), under ``tool_responses``.
    """
    found: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] != "tool":
            found.append(dict(turn))
            continue
        response = {"name": turn["name"], "response": turn["content"]}
        found[-1].setdefault("tool_responses", []).append(response)
    return found


def refuse_control_tokens(
    messages: Sequence[Message], declarations: Sequence[dict[str, Any]], known: Collection[str]
) -> None:
    """Refuse text that the tokenizer would read as the conversation's structure.

    Templates paste text as it is, so a page that a tool fetched could end the turn and speak as
    the system.

    :param known: control tokens that the tokenizer has.
    :raises RequestError: naming the place and the token.
    """
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        _refuse_control(f"{where}.content", [message.content], known)
        _refuse_control(f"{where}.reasoning", [message.reasoning], known)
        for number, call in enumerate(message.tool_calls):
            texts = [call.name, call.arguments, *_parsed_strings(call.arguments)]
            _refuse_control(f"{where}.tool_calls.{number}", texts, known)
    for index, declaration in enumerate(declarations):
        _refuse_control(f"tools.{index}", _strings(declaration), known)


def _refuse_control(where: str, texts: Iterable[str], known: Collection[str]) -> None:
    for text in texts:
        for token in known:
            if token in text:
                raise RequestError(
                    f"{where} holds {token}, which the model takes for the structure of the "
                    "conversation; remove it or put a space into it"
                )


def _parsed_strings(text: str) -> Iterator[str]:
    """The strings of a JSON text, in which escapes may hide a token; none where it is no JSON."""
    with contextlib.suppress(ValueError):
        yield from _strings(load_json(text))


def forced_text(forced: str, prompt_end: str) -> str:
    """What to add to a prompt so that the answer is a tool call.

    :param forced: the call's beginning.
    :param prompt_end: the last marker that the template left open, or an empty string.
    """
    close = CHANNEL_CLOSE if prompt_end == CHANNEL_OPEN else ""
    return f"{close}{CALL_OPEN}{forced}"
