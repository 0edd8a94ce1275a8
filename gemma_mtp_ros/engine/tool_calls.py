# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads tool calls as Gemma 4 writes them.

::

    call:name{key:<|"|>text<|"|>,list:[1,2.5,true],nested:{inner:null}}

Keys are bare and strings stand between quotation markers, in which nothing is escaped (Gemma 4
Prompt Formatting, ai.google.dev/gemma/docs/core; the macro ``format_argument`` of the released
chat templates). Accepted as well, as unambiguous: JSON's own strings and quoted keys, white space
between words, and the ``None``, ``True`` and ``False`` of Python that early templates show the
model. Anything else is refused, never guessed at: a robot acts on it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, NoReturn

from ..api import ToolCall
from .call_schema import ArgumentSchemas
from .channels import CALL_PREFIX, QUOTE, WrittenCall

MAX_DEPTH = 64
"""Deepest nesting of lists and objects."""

_JSON = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_NAME = re.compile(r"[^\s{}\[\](),\"]+")
_KEY = re.compile(r"[^\s{}\[\],:\"](?:[^{}\[\],:\"\r\n]*[^\s{}\[\],:\"])?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-])")
_WORD = re.compile(r"\w+")
_CONSTANTS = {
    "true": "true", "True": "true", "false": "false", "False": "false",
    "null": "null", "None": "null",
}  # fmt: skip


class ToolCallError(ValueError):
    """A tool call that cannot be read."""


class _Reader:
    """A recursive descent over one call, from Gemma 4's notation to JSON text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, expected: str) -> NoReturn:
        if self.at >= len(self.text):
            raise ToolCallError(f"{expected} is missing at its end")
        found = self.text[self.at : self.at + 12]
        raise ToolCallError(f"{expected} is missing before {found!r} at character {self.at}")

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def sees(self, word: str) -> bool:
        self.skip_space()
        return self.text.startswith(word, self.at)

    def take(self, word: str) -> None:
        if not self.sees(word):
            self.fail(repr(word))
        self.at += len(word)

    def match(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def call(self) -> tuple[str, str]:
        """Name and arguments, as JSON, of a whole call."""
        self.take(CALL_PREFIX)
        self.skip_space()
        name = self.match(_NAME)
        if name is None:
            self.fail("the function's name")
        arguments = self.object(1)
        self.skip_space()
        if self.at < len(self.text):
            self.fail("its end")
        return name, arguments

    def object(self, depth: int) -> str:
        self.take("{")
        keys: set[str] = set()

        def pair() -> str:
            key = self.key()
            if key in keys:
                raise ToolCallError(f"the key {key!r} comes twice")
            keys.add(key)
            self.take(":")
            return f"{as_json(key)}: {self.value(depth)}"

        return "{" + self.items("}", pair) + "}"

    def items(self, end: str, item: Callable[[], str]) -> str:
        """Items between commas up to ``end``, as JSON."""
        found: list[str] = []
        while not self.sees(end):
            if found:
                self.take(",")
            found.append(item())
        self.take(end)
        return ", ".join(found)

    def key(self) -> str:
        self.skip_space()
        key = self.string()
        if key is None:
            key = self.match(_KEY)
        if key is None:
            self.fail("a key")
        return key

    def string(self) -> str | None:
        """The string that begins here, if one does."""
        if self.text.startswith(QUOTE, self.at):
            begin = self.at + len(QUOTE)
            end = self.text.find(QUOTE, begin)
            if end < 0:
                raise ToolCallError(f"the string that begins at character {self.at} has no end")
            self.at = end + len(QUOTE)
            return self.text[begin:end]
        if not self.text.startswith('"', self.at):
            return None
        try:
            value, self.at = _JSON.raw_decode(self.text, self.at)
        except ValueError as error:
            raise ToolCallError(f"the string at character {self.at} is no JSON ({error})") from None
        return str(value)

    def value(self, depth: int) -> str:
        """The value that begins here, as JSON."""
        self.skip_space()
        string = self.string()
        if string is not None:
            return as_json(string)
        if self.sees("{") or self.sees("["):
            if depth >= MAX_DEPTH:
                raise ToolCallError(f"lists and objects nest deeper than {MAX_DEPTH}")
            if self.sees("{"):
                return self.object(depth + 1)
            self.take("[")
            return "[" + self.items("]", lambda: self.value(depth + 1)) + "]"
        number = self.match(_NUMBER)
        if number is not None:
            if not math.isfinite(float(number)):
                raise ToolCallError(f"the number {number} is too large")
            return number
        begin = self.at
        word = self.match(_WORD)
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        self.at = begin
        return self.fail("a string, number, list, object, true, false or null")


def as_json(text: str) -> str:
    """A string as JSON.

    :raises ToolCallError: for one that UTF-8 cannot hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolCallError(f"the string {text!r} holds half a character") from None
    return json.dumps(text, ensure_ascii=False)


def read_call(text: str) -> tuple[str, str]:
    """Name and arguments, as a JSON object, of a call written between its markers.

    Numbers keep their digits and keys their order.

    :raises ToolCallError: saying what is wrong with it, and where.
    """
    return _Reader(text).call()


class Calls(NamedTuple):
    """The calls of an answer."""

    read: tuple[ToolCall, ...]
    error: str
    """What is wrong with those that could not be read, with their text; empty: nothing."""


def read_calls(
    written: Sequence[WrittenCall],
    names: Collection[str],
    answer_id: str,
    *,
    cut: str = "",
    schemas: ArgumentSchemas | None = None,
) -> Calls:
    """Read the calls of an answer, each in its turn.

    A call gets the identity ``answer_id`` and its number, so that the same answer has the same
    ones. One that is complete counts even where its end marker is missing: the model may end its
    turn instead.

    :param names: functions that the goal declares; a call of any other is refused.
    :param schemas: which the arguments have to follow.
    :param cut: what cut the answer short, for the message about an unclosed call; empty: nothing.
    """
    read: list[ToolCall] = []
    errors: list[str] = []
    for number, call in enumerate(written, 1):
        try:
            name, arguments = read_call(call.text)
            if name not in names:
                declared = ", ".join(sorted(names)) or "none"
                raise ToolCallError(f"no tool is called {name!r} (declared: {declared})")
            wrong = schemas.violation(name, json.loads(arguments)) if schemas else ""
            if wrong:
                raise ToolCallError(f"its arguments do not follow their schema ({wrong})")
        except ToolCallError as error:
            why = f"{cut} cut it short" if cut and not call.closed else str(error)
            errors.append(f"tool call {number} cannot be read: {why}; its text is {call.text!r}")
        else:
            read.append(ToolCall(id=f"{answer_id}-{number}", name=name, arguments=arguments))
    return Calls(tuple(read), "; ".join(errors))
