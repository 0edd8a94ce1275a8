# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A drafter of a set acceptance, at the price of the real one."""

from __future__ import annotations

import random
from typing import Any

import torch

from gemma_mtp_ros.engine.decode import Engine
from gemma_mtp_ros.engine.draft_source import DraftSource

from .wide import ACCEPTANCE

DECK = 20
"""Of so many drafts in a row the share that is right is exact: independent draws would be off by
several hundredths in the 150 drafts of an answer."""


class Oracle(DraftSource):
    """Stands where the drafter stands: pays for its steps, proposes what the target will say."""

    def __init__(self, engine: Engine, prompt_tokens: int, answer: list[int], seed: int) -> None:
        self._engine = engine
        self._drafter: Any = engine.drafter
        self._prompt_tokens = prompt_tokens
        self._answer = answer
        self._random = random.Random(seed)
        self._deck: list[bool] = []
        self._length = -1
        self._at = 0

    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the drafter's."""
        length = self._engine.target.cache.length
        if length != self._length:
            self._length, self._at = length, length - self._prompt_tokens + 1
        found: tuple[torch.Tensor, torch.Tensor] = self._drafter.step(token, state)
        return found

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One candidate, after the drafter's head was computed."""
        scores, _ = self._drafter.logits(hidden)
        right = self._answer[self._at] if self._at < len(self._answer) else 0
        self._at += 1
        if not self._deck:
            good = round(ACCEPTANCE * DECK)
            self._deck = [True] * good + [False] * (DECK - good)
            self._random.shuffle(self._deck)
        guess = right if self._deck.pop() else (right + 1) % 1000
        return scores[:, :1], torch.tensor([guess])
