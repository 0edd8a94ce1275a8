# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From the tokens of an answer to its text, reasoning and tool calls, as they are decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ..api import Channel
from .channels import ChannelSplitter, Part, WrittenCall
from .text import Detokenizer, StopScanner, Text


class Answer:
    """The parts of an answer while it is written.

    Stop strings end the text; reasoning and tool calls are not searched for them.

    :param prompt: its tokens, which may leave a channel or a call open; ``None``: the prompt was
        raw and the answer is text, whatever it holds.
    :param names: functions that the model may call.
    """

    def __init__(
        self,
        text: Text,
        prompt: Sequence[int] | None,
        *,
        stop: Sequence[str] = (),
        names: Collection[str] = (),
    ) -> None:
        self._detokenizer = Detokenizer(text)
        self._stops = StopScanner(stop)
        self._markers = text.markers if prompt is not None else {}
        self._splitter: ChannelSplitter | None = None
        self._texts = dict.fromkeys(Channel, "")
        self._before: list[Part] = []
        if prompt is not None and (text.markers or text.spells_markers):
            self._splitter = ChannelSplitter(names, spelled=text.spells_markers)
            marker, after = text.opening(prompt)
            if marker:
                self._before = self._splitter.open(marker, after)

    @property
    def channel(self) -> Channel:
        """The channel that is written now."""
        return Channel.TEXT if self._splitter is None else self._splitter.channel

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete, or the model went on to answer its own call."""
        return self._stops.hit or (self._splitter is not None and self._splitter.ended)

    @property
    def text(self) -> str:
        """What was shown of the answer's text."""
        return self._texts[Channel.TEXT]

    @property
    def reasoning(self) -> str:
        """What the model thought."""
        return self._texts[Channel.REASONING]

    @property
    def calls(self) -> Sequence[WrittenCall]:
        """Tool calls; with one that is still open only after :meth:`flush`."""
        return () if self._splitter is None else self._splitter.calls

    def push(self, token: int) -> list[Part]:
        """What this token makes certain."""
        piece = self._detokenizer.push(token)
        marker = self._markers.get(token)
        if self._splitter is None:
            return self._show([Part(Channel.TEXT, piece)])
        if marker is None:
            return self._show(self._splitter.push(piece))
        # A character that was left unfinished before the marker belongs before it.
        parts = self._splitter.push(piece.removesuffix(marker))
        return self._show([*parts, *self._splitter.mark(marker)])

    def flush(self) -> list[Part]:
        """What is still held back when the generation ends."""
        left = self._detokenizer.flush()
        if self._splitter is None:
            parts = [Part(Channel.TEXT, left)]
        else:
            parts = [*self._splitter.push(left), *self._splitter.flush()]
        if self._stops.hit:
            return []
        shown = self._show(parts)
        tail = [] if self._stops.hit else self._collect([Part(Channel.TEXT, self._stops.flush())])
        return shown + tail

    def _show(self, parts: Iterable[Part]) -> list[Part]:
        before, self._before = self._before, []
        found = before
        for part in parts:
            if self._stops.hit:
                break
            if part.channel is Channel.TEXT:
                part = Part(Channel.TEXT, self._stops.push(part.text))
            found.append(part)
        return self._collect(found)

    def _collect(self, parts: Iterable[Part]) -> list[Part]:
        found = [part for part in parts if part.text]
        for part in found:
            self._texts[part.channel] += part.text
        return found
