# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp ask``: one question, or a conversation with ``--chat``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from ..api import (
    Channel,
    ErrorCode,
    Finish,
    FinishReason,
    GemmaMtpError,
    Message,
    RequestError,
    SamplingParams,
    Stats,
)
from ..terminal import AnswerPrinter, call_line, statistics
from .askers import Asker, InProcess, Interrupt, Question, ThroughNode, as_options

INTERRUPTED = 130
BROKEN_OFF = 1
NODE = "/gemma_mtp"

MISTAKES = (ErrorCode.INVALID_GOAL, ErrorCode.PROMPT_TOO_LONG, ErrorCode.SCHEMA_UNSUPPORTED)
"""Codes of what the asker can put right."""

OF_THE_ENGINE = {
    "drafter": "",
    "draft_kind": "mtp",
    "threads": 0,
    "device": "auto",
    "weights": "float32",
    "reproducible": True,
    "draft_length": 4,
    "max_context": 4096,
}
"""Options of an engine in this process, and their defaults; a node has parameters instead."""

HELP = "/reset forgets the conversation, /quit leaves (so does Ctrl-D), /help says this"


def run(options: argparse.Namespace) -> int:
    """Ask, print, return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be done; says what to change.
        pydantic.ValidationError: an option is out of its bounds.
    """
    check(options)
    errors = Console(stderr=True, highlight=False)
    question = make_question(options)
    if options.model:
        return _run(options, question, InProcess(options, errors), errors)
    asker = ThroughNode(options.node or NODE, errors)
    wait = False
    try:
        status = _run(options, question, asker, errors)
        wait = True
        return status
    finally:
        asker.close(wait)


def check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other.

    Raises:
        RequestError: names them.
    """
    if options.model and options.node:
        raise RequestError("--model asks in this process and --node another one; drop one")
    if not options.model:
        for name, default in OF_THE_ENGINE.items():
            if getattr(options, name) != default:
                option = "no-reproducible" if name == "reproducible" else name.replace("_", "-")
                raise RequestError(
                    f"--{option} belongs to a model in this process; give --model too, or set the "
                    "node's parameter"
                )
    if options.prompt is None and not options.chat:
        raise RequestError("PROMPT is missing; give it, or - to read it, or --chat")
    if options.chat:
        for given, name in (
            (options.json, "--json"),
            (options.raw, "--raw"),
            (options.prompt == "-", "PROMPT of -"),
        ):
            if given:
                raise RequestError(f"{name} is of no use with --chat; drop one")
    if options.raw and options.system:
        raise RequestError("--system is part of the chat template that --raw leaves out; drop one")


def make_question(options: argparse.Namespace) -> Question:
    """The question that the options ask; with --chat the messages before the first turn.

    Raises:
        RequestError: a text or file cannot be read.
        pydantic.ValidationError: a value is out of its bounds.
    """
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt or ""
    for name, text in (("PROMPT", prompt), ("--system", options.system)):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise RequestError(f"{name} is not valid UTF-8; give text in UTF-8")
    turns = [Message(role="system", content=options.system)] if options.system else []
    if not options.chat:
        turns.append(Message(role="user", content=prompt))
    return Question(
        messages=() if options.raw else tuple(turns),
        raw_prompt=prompt if options.raw else None,
        enable_thinking=options.think,
        response_schema=read_json("--schema", options.schema, "{"),
        tools=read_json("--tools", options.tools, "["),
        tool_choice=options.tool_choice,
        sampling=SamplingParams.model_validate(
            {
                name: value
                for name in ("max_new_tokens", "temperature", "seed")
                if (value := getattr(options, name)) is not None
            }
        ),
    )


def read_json(option: str, given: str, begin: str) -> str:
    """JSON text of an option's value: itself if it begins so, else the content of that file.

    Raises:
        RequestError: the file cannot be read, or holds no JSON.
    """
    if not given:
        return ""
    text, where = given, option
    if not given.lstrip().startswith(begin):
        where = f"{option} {given}"
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise RequestError(
                f"{where} cannot be read: {reason}; give a file, or JSON that begins with {begin}"
            ) from error
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except (RecursionError, ValueError) as error:  # brackets or digits without end
        raise RequestError(f"{where} cannot be read: {error}; make it simpler") from error
    return text


def as_json(finish: Finish, model: dict[str, Any]) -> dict[str, Any]:
    """What --json prints; None is unknown."""
    stats = finish.stats
    rates = {
        "acceptance_rate": stats.acceptance_rate,
        "tokens_per_pass": stats.tokens_per_pass,
    }
    return {
        "text": finish.text,
        "reasoning": finish.reasoning,
        "tool_calls": [call.model_dump(mode="json") for call in finish.tool_calls],
        "finish_reason": finish.finish_reason.name.lower(),
        "error_code": int(finish.error_code),
        "error_msg": finish.error_msg,
        "seed": finish.seed,
        "model": model,
        "stats": stats.model_dump(mode="json")
        | {name: None if math.isnan(rate) else rate for name, rate in rates.items()},
    }


def _run(options: argparse.Namespace, question: Question, asker: Asker, errors: Console) -> int:
    if options.chat:
        return Chat(asker, question, errors).run(options.prompt)
    finish = _answer(asker, question, errors, quiet=options.json)
    if finish.error_code in MISTAKES:
        raise GemmaMtpError(as_options(finish.error_msg), finish.error_code)
    if options.json:
        print(json.dumps(as_json(finish, asker.model()), ensure_ascii=False), flush=True)
    else:
        errors.print(statistics(finish.stats))
    if finish.finish_reason is FinishReason.CANCELED:
        return INTERRUPTED
    if finish.error_code is not ErrorCode.NONE:
        print(f"gemma-mtp: {finish.error_msg}", file=sys.stderr)
        return BROKEN_OFF
    return 0


def _answer(asker: Asker, question: Question, errors: Console, quiet: bool = False) -> Finish:
    """Ask; write the answer as it comes unless it is to be quiet."""
    printer = AnswerPrinter(Console(highlight=False), errors)

    def show(text: str, channel: Channel) -> None:
        if not quiet:
            printer.round(text, channel)

    with Interrupt() as interrupt:
        try:
            finish = asker.ask(question, interrupt, show)
        finally:
            printer.end()
    for call in finish.tool_calls if not quiet else ():
        errors.print(call_line(call), soft_wrap=True)
    return finish


def _cost(stats: Stats) -> str:
    """What a turn cost, in a line."""
    return (
        f"[{stats.completion_tokens} tokens, {stats.tokens_per_second:.0f} tokens/s, "
        f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached]"
    )


class Chat:
    """A conversation on the terminal, or with the lines of the standard input."""

    def __init__(self, asker: Asker, question: Question, errors: Console) -> None:
        self._asker = asker
        self._question = question
        self._errors = errors
        self._turns: list[Message] = []
        self._session_id = ""
        self._reset()

    def run(self, first: str | None) -> int:
        """Talk until the end of the input; return the exit status."""
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (gives input() a history and keys to edit)
            self._say(HELP)
        line = first if first is not None else self._read("> ")
        while line is not None:
            command = COMMANDS.get(line.strip())
            if command is not None:
                if not command(self):
                    break
            elif line.startswith("/"):
                self._say(f"{line.split()[0]} is no command; {HELP}")
            elif line.strip():
                self._take_turn(line)
            line = self._read("> ")
        return 0

    def _take_turn(self, line: str) -> None:
        """One turn of the user, with what tools return; forgotten if it is not answered."""
        turns = [*self._turns, Message(role="user", content=line)]
        while True:
            question = dataclasses.replace(
                self._question, messages=tuple(turns), session_id=self._session_id
            )
            try:
                finish = _answer(self._asker, question, self._errors)
            except GemmaMtpError as error:
                self._say(f"{error}; this turn is forgotten")
                return
            if finish.finish_reason is FinishReason.CANCELED:
                self._say("canceled; this turn is forgotten")
                return
            if finish.error_code is not ErrorCode.NONE:
                self._say(f"{finish.error_msg}; this turn is forgotten")
                return
            self._say(_cost(finish.stats))
            calls = finish.tool_calls
            if finish.finish_reason is not FinishReason.TOOL_CALLS:
                calls = ()  # the answer broke off at its limit: not to be acted on
            turns.append(Message(role="assistant", content=finish.text, tool_calls=calls))
            if not calls:
                self._turns = turns
                return
            for call in calls:
                returned = self._read(f"{call.name} returned: ")
                if returned is None:
                    return
                turns.append(Message(role="tool", content=returned, tool_call_id=call.id))

    def _read(self, prompt: str) -> str | None:
        """The next line; None: there is none."""
        try:
            return input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return None

    def _say(self, text: str) -> None:
        self._errors.print(text, style="dim", markup=False, soft_wrap=True)

    def _reset(self) -> bool:
        self._turns = list(self._question.messages)
        self._session_id = f"ask-{uuid.uuid4()}"
        return True

    def _quit(self) -> bool:
        return False

    def _help(self) -> bool:
        self._say(HELP)
        return True


COMMANDS: dict[str, Callable[[Chat], bool]] = {
    "/reset": Chat._reset,
    "/quit": Chat._quit,
    "/help": Chat._help,
}
"""What each command does; False ends the chat."""
