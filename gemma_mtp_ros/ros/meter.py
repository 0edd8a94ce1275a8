# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How the engine does: figures of the running or else the latest goal, counts of goals. Pure."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque

from gemma_mtp_ros.api import Finish, Piece
from gemma_mtp_ros.ros.convert import Outcome


@dataclasses.dataclass(frozen=True)
class Figures:
    """What ~/stats says of one goal; NaN is not known (yet). Units as in msg/EngineStats."""

    tokens_per_second: float = math.nan
    acceptance_rate: float = math.nan
    tokens_per_pass: float = math.nan
    draft_length: float = math.nan
    ttft_s: float = math.nan


WINDOW_S = 1.0
"""What the watchdog is told of the engine is of the last second."""

LEAST_WINDOW_S = 0.5
"""An answer that decodes for less long says nothing yet."""

PIECES = 4096
"""Rounds kept for that; no engine makes more in a second."""


@dataclasses.dataclass(frozen=True)
class Recent:
    """What the watchdog wants to know of a goal that decodes; None is unknown.

    round_s: mean time of a round of this goal, pauses aside. draft_length, tokens_per_s: of the
    last second, pauses included.
    """

    round_s: float | None = None
    draft_length: float | None = None
    tokens_per_s: float | None = None


class Meter:
    """Collects from the host's thread, is read from the executor's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._goal_id = ""
        self._begun_s = 0.0
        self._pieces: deque[tuple[float, int, int]] = deque(maxlen=PIECES)
        self._begin()
        self.counts = dict.fromkeys(Outcome, 0)

    @property
    def figures(self) -> Figures:
        """Of the running or else the latest goal."""
        with self._lock:
            if self._final is not None:
                return self._final
            if not self._rounds:
                return Figures(ttft_s=self._ttft_s)
            return Figures(
                tokens_per_second=self._rate,
                acceptance_rate=self._accepted / self._drafted if self._drafted else math.nan,
                tokens_per_pass=self._tokens / self._rounds,
                draft_length=self._drafted / self._rounds,
                ttft_s=self._ttft_s,
            )

    def recent(self, now_s: float) -> Recent:
        """Of the goal that decodes at CLOCK_MONOTONIC `now_s`, if one does."""
        with self._lock:
            if self._final is not None or not self._rounds or self._rate <= 0.0:
                return Recent()
            round_s = self._tokens / self._rounds / self._rate
            window = [each for each in self._pieces if 0.0 <= now_s - each[0] <= WINDOW_S]
            span_s = min(WINDOW_S, now_s - self._first_s)
            if not window or span_s < LEAST_WINDOW_S:
                return Recent(round_s)
            return Recent(
                round_s,
                sum(drafted for _, _, drafted in window) / len(window),
                sum(tokens for _, tokens, _ in window) / span_s,
            )

    def _begin(self) -> None:
        self._pieces.clear()
        self._first_s = 0.0
        self._final: Figures | None = None
        self._ttft_s = self._rate = math.nan
        self._rounds = self._tokens = self._drafted = self._accepted = 0

    def started(self, goal_id: str, accepted_s: float) -> None:
        """The engine took goal `goal_id`, accepted at CLOCK_MONOTONIC `accepted_s`."""
        with self._lock:
            self._goal_id, self._begun_s = goal_id, accepted_s
            self._begin()

    def piece(self, piece: Piece) -> None:
        """One more round; the first piece is the prefill's and no round."""
        with self._lock:
            if piece.request_id != self._goal_id:
                return
            if math.isnan(self._ttft_s):
                self._first_s = piece.decided_s
                self._ttft_s = time.monotonic() - self._begun_s
                return
            self._rate = piece.tokens_per_second
            self._pieces.append((piece.decided_s, len(piece.token_ids), piece.draft_length))
            self._rounds += 1
            self._tokens += len(piece.token_ids)
            self._drafted += piece.draft_length
            self._accepted += min(max(len(piece.token_ids) - 1, 0), piece.draft_length)

    def finished(self, finish: Finish, outcome: Outcome) -> None:
        """The goal ended; the engine's own statistics replace what was seen from here."""
        stats = finish.stats
        with self._lock:
            self.counts[outcome] += 1
            if finish.request_id != self._goal_id or not stats.completion_tokens:
                return
            self._final = Figures(
                tokens_per_second=stats.tokens_per_second,
                acceptance_rate=stats.acceptance_rate,
                tokens_per_pass=stats.tokens_per_pass,
                draft_length=sum(stats.drafted_at) / stats.rounds if stats.rounds else math.nan,
                ttft_s=stats.ttft_s,
            )
