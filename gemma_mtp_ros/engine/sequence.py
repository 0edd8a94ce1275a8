# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What stands of one request, and what it cost."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..api import (
    MAX_DRAFT,
    Cancel,
    Channel,
    ErrorCode,
    Finish,
    FinishReason,
    Request,
    Stats,
)
from .answer import Answer
from .call_schema import ArgumentSchemas
from .channels import Part
from .chat import NO_TOOLS, Tools
from .guide import Guide
from .sampling import Rules
from .text import Text
from .tool_calls import read_calls


class Shown(NamedTuple):
    """What one channel gained."""

    channel: Channel
    text: str
    tokens: list[int]
    completed: int
    """Tokens of the whole answer that stand, these included."""


class Sequence:
    """One request while it is served: what stands, and what it cost."""

    def __init__(
        self,
        request: Request,
        prompt: list[int],
        rules: Rules,
        limit: int,
        text: Text,
        tools: Tools = NO_TOOLS,
        schemas: ArgumentSchemas | None = None,
        guide: Guide | None = None,
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.rules = rules
        self.limit = limit
        self.tokens: list[int] = []
        self.tools = tools
        self.guide = guide
        self._schemas = schemas
        self.answer = Answer(
            text,
            prompt if request.raw_prompt is None else None,
            stop=request.sampling.stop,
            names=tools.names,
        )
        self.cached = 0
        self.rounds = 0
        self.drafted = [0] * MAX_DRAFT
        self.accepted = [0] * MAX_DRAFT
        self.started_s = time.monotonic()
        self.submitted_s = self.started_s if request.submitted_s is None else request.submitted_s
        self.first_s: float | None = None
        self.paused_s = 0.0
        self.decode_paused_s = 0.0
        self.finish: FinishReason | None = None
        self._round_ended_s: float | None = None

    def push(self, chosen: list[int], eos: frozenset[int]) -> tuple[list[Shown], list[int], int]:
        """Let chosen tokens stand one by one until the end of the text.

        :return: what to show, a channel at a time, at least one; the tokens that stand (an
            end-of-sequence token is not among them, the token that completes a stop string is);
            how many of ``chosen`` were looked at.
        """
        shown: list[Shown] = []
        kept: list[int] = []
        used = 0
        for token in chosen:
            used += 1
            if token in eos:
                self.finish = FinishReason.STOP
                break
            kept.append(token)
            self.tokens.append(token)
            self._show(shown, self.answer.push(token), [token])
            if self.answer.stopped:
                self.finish = FinishReason.STOP
                break
            if len(self.tokens) >= self.limit:
                self.finish = FinishReason.LENGTH
                break
        if self.guide is not None and self.guide.finished:
            self.finish = FinishReason.STOP  # whole, though it may end at the limit
        if not shown:
            self._show(shown, [], [])
        return shown, kept, used

    def flush(self) -> list[Shown]:
        """What is still held back when the generation ends."""
        shown: list[Shown] = []
        parts = self.answer.flush()
        if parts:
            self._show(shown, parts, [])
        return shown

    def round_s(self, paused_s: float) -> float:
        """Time since the last round ended (since the first token, in the first), pauses aside.

        What lies between two rounds is part of what a round costs.
        """
        now = time.monotonic()
        before = self.first_s if self._round_ended_s is None else self._round_ended_s
        self._round_ended_s = now
        return 0.0 if before is None else max(0.0, now - before - paused_s)

    def _show(self, shown: list[Shown], parts: list[Part], tokens: list[int]) -> None:
        """Append parts to what is shown; their tokens go with the last one."""
        parts = parts or [Part(self.answer.channel, "")]
        count = len(self.tokens)
        for at, part in enumerate(parts, 1):
            mine = tokens if at == len(parts) else []
            if shown and shown[-1].channel is part.channel:
                before = shown.pop()
                part = Part(part.channel, before.text + part.text)
                mine = before.tokens + mine
            shown.append(Shown(part.channel, part.text, mine, count))

    def finished(self, end: Cancel | None) -> Finish:
        """The result, once :meth:`flush` was called.

        :param end: what ended the generation from outside.
        """
        answer = self.answer
        cut = ""
        if self.finish is FinishReason.LENGTH:
            cut = f"the limit of {self.limit} tokens (max_new_tokens or the context)"
        calls = read_calls(
            answer.calls, self.tools.names, self.request.id, cut=cut, schemas=self._schemas
        )
        reason, code, message = self.finish or FinishReason.ERROR, ErrorCode.NONE, ""
        if end is not None:
            reason, code, message = end.finish_reason, end.error_code, end.error_msg
        elif calls.error:
            reason, code = FinishReason.ERROR, ErrorCode.TOOL_CALL_INVALID
            remedy = "allow more tokens" if cut else "ask again, with another seed"
            message = f"{calls.error}; {remedy}"
        elif calls.read and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return Finish(
            request_id=self.request.id,
            finish_reason=reason,
            error_code=code,
            error_msg=message,
            text=answer.text,
            reasoning=answer.reasoning,
            tool_calls=calls.read,
            seed=self.rules.seed,
            stats=self.stats(),
        )

    def decode_s(self, now: float) -> float:
        """Time since the first token, pauses aside."""
        if self.first_s is None:
            return 0.0
        return max(0.0, now - self.first_s - self.decode_paused_s)

    def rate(self, now: float) -> float:
        """Tokens per second of decoding: those after the first, over the time since it."""
        elapsed = self.decode_s(now)
        return (len(self.tokens) - 1) / elapsed if elapsed > 0 and len(self.tokens) > 1 else 0.0

    def stats(self) -> Stats:
        """The bill."""
        now = time.monotonic()
        return Stats(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached,
            completion_tokens=len(self.tokens),
            rounds=self.rounds,
            drafted_at=tuple(self.drafted),
            accepted_at=tuple(self.accepted),
            queue_s=max(0.0, self.started_s - self.submitted_s),
            ttft_s=0.0 if self.first_s is None else self.first_s - self.submitted_s,
            decode_s=self.decode_s(now),
            paused_s=self.paused_s,
            total_s=now - self.submitted_s,
            tokens_per_second=self.rate(now),
        )
