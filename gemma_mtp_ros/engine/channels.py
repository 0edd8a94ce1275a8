# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Splits what the model writes into answer, reasoning and tool calls, as it is decided.

Gemma 4 writes, inside one model turn (Gemma 4 Prompt Formatting, ai.google.dev/gemma/docs/core)::

    <|channel>thought
    what it thinks
    <channel|>what it says<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>

Each marker is one token. Text that merely spells a marker out is text, wherever the tokenizer has
the token; only a tokenizer without such tokens has its text searched for them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ..api import Channel

CHANNEL_OPEN, CHANNEL_CLOSE = "<|channel>", "<channel|>"
CALL_OPEN, CALL_CLOSE = "<|tool_call>", "<tool_call|>"
RESPONSE_OPEN = "<|tool_response>"
QUOTE = '<|"|>'
MARKERS = (CHANNEL_OPEN, CHANNEL_CLOSE, CALL_OPEN, CALL_CLOSE, RESPONSE_OPEN, QUOTE)
"""What the model writes around the parts of its turn. None begins another."""

LABEL = "thought\n"
"""Name of the thinking channel; part of the frame, as is the line break before its end."""
CALL_PREFIX = "call:"


class Part(NamedTuple):
    """A piece of one channel."""

    channel: Channel
    text: str


class WrittenCall(NamedTuple):
    """A tool call as the model wrote it, without its markers."""

    text: str
    closed: bool
    """Whether its end marker came."""


def overlap(text: str, word: str) -> int:
    """Length of the longest end of ``text`` that begins ``word`` without completing it."""
    for length in range(min(len(text), len(word) - 1), 0, -1):
        if word.startswith(text[-length:]):
            return length
    return 0


_PATTERN = re.compile("|".join(map(re.escape, MARKERS)))


def find_markers(text: str) -> list[re.Match[str]]:
    """Markers that are spelled out in a text."""
    return list(_PATTERN.finditer(text))


class MarkerScanner:
    """Finds markers spelled out in text, wherever piece borders fall.

    Text that may be the beginning of a marker is held back until it is decided.
    """

    def __init__(self) -> None:
        self._held = ""

    def push(self, piece: str) -> Iterator[tuple[str, str]]:
        """Pairs of text and the marker that ends it; the last marker is empty."""
        text, at = self._held + piece, 0
        for found in find_markers(text):
            yield text[at : found.start()], found[0]
            at = found.end()
        end = len(text) - max(overlap(text[at:], marker) for marker in MARKERS)
        self._held = text[end:]
        yield text[at:end], ""

    def flush(self) -> str:
        """Text still held back when the generation ends."""
        held, self._held = self._held, ""
        return held


class ChannelSplitter:
    """Tells to which channel each piece belongs, and keeps the tool calls written so far.

    The frame (markers around reasoning, the channel's name, the line break before its end) is
    dropped; all else that is pushed comes out once, in its channel, in order. The TOOL_CALL
    channel holds calls as written, markers included. A marker that means nothing where it stands
    is dropped, but for the quotation marker, which is text, and in a call everything is.

    A call that follows a channel or a call without its opening marker, as Gemma 4 writes at times
    (vllm#54256), is one if it begins with ``call:``, a declared name and a brace.

    :param names: functions that the model may call.
    :param spelled: search the text for markers; else they come through :meth:`mark` alone.
    """

    def __init__(self, names: Collection[str] = (), *, spelled: bool = False) -> None:
        self.channel = Channel.TEXT
        self.ended = False
        """Whether the model begins the response to its own call: its turn is over, and what else
        comes is dropped."""
        self.calls: list[WrittenCall] = []
        self._bare = tuple(f"{CALL_PREFIX}{name}{{" for name in names)
        self._scanner = MarkerScanner() if spelled else None
        self._call = ""
        self._held = ""
        self._undecided = bool(self._bare)
        """At the start of a run: of reasoning, where its name may come, or of text, where a call
        may come without its marker."""

    def open(self, marker: str, text: str) -> list[Part]:
        """Begin inside what the prompt has left open: ``text`` follows ``marker`` there.

        :return: the beginning of a call, which is part of it though the model did not write it.
        """
        parts = [*self.mark(marker), *self._text(text)]
        return [part for part in parts if part.channel is Channel.TOOL_CALL]

    def push(self, text: str) -> list[Part]:
        """Text that was decided."""
        if self._scanner is None:
            return self._text(text)
        parts: list[Part] = []
        for before, marker in self._scanner.push(text):
            parts += self._text(before)
            parts += self.mark(marker) if marker else []
        return parts

    def mark(self, marker: str) -> list[Part]:
        """A marker that was decided."""
        if self.ended:
            return []
        if marker == RESPONSE_OPEN:
            self.ended = True
            return self._release(framed=True)
        if self.channel is Channel.TOOL_CALL:
            return self._mark_in_call(marker)
        if marker == CALL_OPEN:
            parts = self._release(framed=True)
            self._enter(Channel.TOOL_CALL)
            return [*parts, Part(Channel.TOOL_CALL, marker)]
        if marker == CHANNEL_OPEN:
            parts = self._release(framed=False)
            self._enter(Channel.REASONING)
            return parts
        if marker == CHANNEL_CLOSE and self.channel is Channel.REASONING:
            parts = self._release(framed=True)
            self._enter(Channel.TEXT)
            return parts
        return self._text(marker) if marker == QUOTE else []

    def flush(self) -> list[Part]:
        """What is still held back when the generation ends; an open call ends unclosed."""
        parts = [] if self._scanner is None else self._text(self._scanner.flush())
        parts += self._release(framed=False)
        if self.channel is Channel.TOOL_CALL:
            self._end_call(closed=False)
        return parts

    def _mark_in_call(self, marker: str) -> list[Part]:
        if marker == CALL_CLOSE:
            self._end_call(closed=True)
        elif marker == CALL_OPEN:
            self._end_call(closed=False)
            self._enter(Channel.TOOL_CALL)
        else:
            self._call += marker
        return [Part(Channel.TOOL_CALL, marker)]

    def _end_call(self, *, closed: bool) -> None:
        self.calls.append(WrittenCall(self._call, closed))
        self._call = ""
        self._enter(Channel.TEXT)

    def _enter(self, channel: Channel) -> None:
        self.channel = channel
        reasons = channel is Channel.REASONING
        self._undecided = reasons or (channel is Channel.TEXT and bool(self._bare))

    def _text(self, text: str) -> list[Part]:
        if self.ended:
            return []
        text, self._held = self._held + text, ""
        if self.channel is Channel.TOOL_CALL:
            self._call += text
        elif self._undecided:
            return self._begin(text)
        elif self.channel is Channel.REASONING and text.endswith("\n"):
            text, self._held = text[:-1], "\n"
        return [Part(self.channel, text)] if text else []

    def _begin(self, text: str) -> list[Part]:
        """Decide what a run of text or reasoning begins with, or hold it back until it is known."""
        if self.channel is Channel.REASONING:
            if text != LABEL and LABEL.startswith(text):
                self._held = text
                return []
            self._undecided = False
            return self._text(text.removeprefix(LABEL))
        written = text.lstrip()
        if any(bare != written and bare.startswith(written) for bare in self._bare):
            self._held = text
            return []
        self._undecided = False
        if not written.startswith(self._bare):
            return self._text(text)
        space = text[: len(text) - len(written)]
        before = [Part(Channel.TEXT, space)] if space else []
        self._enter(Channel.TOOL_CALL)
        return before + self._text(written)

    def _release(self, *, framed: bool) -> list[Part]:
        """Let go of what is held back.

        :param framed: whether the channel ends here, so that a line break belongs to its frame.
        """
        held, self._held = self._held, ""
        if self.channel is Channel.REASONING:
            name = self._undecided and held == LABEL.rstrip()
            if name or (framed and not self._undecided and held == "\n"):
                held = ""
        self._undecided = False
        return [Part(self.channel, held)] if held else []
