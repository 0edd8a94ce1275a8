# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers of the engine's tests: load a pair, run a request, an oracle in the drafter's place."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gemma_mtp_ros.api import Channel, EngineConfig, Finish, Message, Piece, Request, SamplingParams
from gemma_mtp_ros.engine import kernels
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.draft_source import DraftSource

_ids = itertools.count()


@contextlib.contextmanager
def arithmetic(name: str) -> Iterator[None]:
    """Let engines compute by "kernels" or by "torch" while the context lasts."""
    before = list(kernels._found)
    if name == "torch":
        kernels._found[:] = [None]
    elif kernels.kernels() is None:
        if os.environ.get("GEMMA_MTP_REQUIRE_ROS"):  # what make built has them
            raise AssertionError("the C++ kernels are missing: run make build")
        pytest.skip("the C++ kernels are not built")
    try:
        yield
    finally:
        kernels._found[:] = before


def load(target: Path, drafter: Path | None = None, **config: Any) -> Engine:
    """An engine over the folders given, with a small context."""
    values: dict[str, Any] = {"max_context": 512, "prefill_chunk": 16, **config}
    model, draft = str(target), "" if drafter is None else str(drafter)
    return Engine.load(EngineConfig(model=model, drafter=draft, **values), lambda stage, part: None)


def request(prompt: str = "Bring the red cup.", *, raw: bool = False, **sampling: Any) -> Request:
    """A request with one user turn."""
    params = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 40, **sampling})
    if raw:
        return Request(id=str(next(_ids)), raw_prompt=prompt, sampling=params)
    turns = (Message(role="user", content=prompt),)
    return Request(id=str(next(_ids)), messages=turns, sampling=params)


def run(engine: Engine, asked: Request, cap: int = 0) -> tuple[list[int], Finish]:
    """Token ids and finish of a request at one draft length; checks what holds for every answer."""
    events = list(engine.generate(asked, lambda: RoundControl(cap)))
    finish = events[-1]
    assert isinstance(finish, Finish)
    pieces = [event for event in events if isinstance(event, Piece)]
    tokens = [token for piece in pieces for token in piece.token_ids]
    for channel, joined in ((Channel.TEXT, finish.text), (Channel.REASONING, finish.reasoning)):
        assert "".join(piece.text for piece in pieces if piece.channel is channel) == joined
    assert [piece.completion_tokens for piece in pieces] == list(
        itertools.accumulate(len(piece.token_ids) for piece in pieces)
    )
    assert finish.stats.completion_tokens == len(tokens)
    drafted, accepted = finish.stats.drafted_at, finish.stats.accepted_at
    assert all(a <= d for a, d in zip(accepted, drafted, strict=True))
    assert not any(drafted[cap:])
    # Each round decides one token itself; an end-of-sequence token is decided but not sent.
    # What a schema forces is decided beside that.
    decided = sum(accepted) + finish.stats.rounds + 1
    assert len(tokens) <= decided or asked.response_schema or asked.tools
    return tokens, finish


class OracleDrafter(DraftSource):
    """Stands where the drafter stands and proposes a known answer, right with a set probability."""

    def __init__(self, engine: Engine, answer: list[int], acceptance: float, seed: int = 0) -> None:
        self.engine = engine
        self.answer = answer
        self.acceptance = acceptance
        self.random = random.Random(seed)
        self.prompt_length = 0
        self.at = 0
        self.length = -1

    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The state is not looked at; the rows committed tell when a round begins."""
        length = self.engine.target.cache.length
        if length != self.length:
            self.length = length
            self.at = length - self.prompt_length + 1
        return state, state

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All weight on the known token, or on another when this draft is to fail."""
        vocab = self.engine.target.spec.vocab
        right = self.answer[self.at] if self.at < len(self.answer) else 0
        self.at += 1
        guess = right if self.random.random() < self.acceptance else (right + 1) % vocab
        scores = torch.full((1, vocab), -1e9)
        scores[0, guess] = 1e9
        return scores, None


def with_oracle(engine: Engine, asked: Request, answer: list[int], acceptance: float) -> None:
    """Put an oracle for this request in the drafter's place."""
    oracle = OracleDrafter(engine, answer, acceptance)
    oracle.prompt_length = engine.count_tokens(asked.messages, asked.raw_prompt)
    engine.drafter = oracle
