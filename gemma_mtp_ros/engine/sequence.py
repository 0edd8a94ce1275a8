# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What stands of one request, and what it cost."""

from __future__ import annotations

import time

from ..api import MAX_DRAFT, FinishReason, Request, Stats
from .sampling import Rules
from .text import Detokenizer, StopScanner, Text


class Sequence:
    """One request while it is served: what stands, and what it cost."""

    def __init__(
        self, request: Request, prompt: list[int], rules: Rules, limit: int, text: Text
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.rules = rules
        self.limit = limit
        self.tokens: list[int] = []
        self.text = ""
        self.detokenizer = Detokenizer(text)
        self.stops = StopScanner(request.sampling.stop)
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

    def push(self, chosen: list[int], eos: frozenset[int]) -> tuple[str, list[int], int]:
        """Let chosen tokens stand one by one until the end of the text.

        :return: text to show; the tokens that stand (an end-of-sequence token is not among them,
            the token that completes a stop string is); how many of ``chosen`` were looked at.
        """
        shown, kept, used = "", [], 0
        for token in chosen:
            used += 1
            if token in eos:
                self.finish = FinishReason.STOP
                break
            kept.append(token)
            self.tokens.append(token)
            shown += self.stops.push(self.detokenizer.push(token))
            if self.stops.hit:
                self.finish = FinishReason.STOP
                break
            if len(self.tokens) >= self.limit:
                self.finish = FinishReason.LENGTH
                break
        self.text += shown
        return shown, kept, used

    def flush(self) -> str:
        """Text still held back when the generation ends."""
        if self.stops.hit:
            return ""
        shown = self.stops.push(self.detokenizer.flush())
        shown += self.stops.flush()
        self.text += shown
        return shown

    def round_s(self, paused_s: float) -> float:
        """Time since the last round ended (since the first token, in the first), pauses aside.

        What lies between two rounds is part of what a round costs.
        """
        now = time.monotonic()
        before = self.first_s if self._round_ended_s is None else self._round_ended_s
        self._round_ended_s = now
        return 0.0 if before is None else max(0.0, now - before - paused_s)

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
