# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The controller in the real engine, with a real pair, beside every fixed draft length."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    EngineConfig,
    Finish,
    Message,
    Piece,
    Request,
    SamplingParams,
    Stats,
)
from gemma_mtp_ros.cli.figures import rotated
from gemma_mtp_ros.models import resolve_pair

from .common import MORE, Row

OWN = -1
"""Case of the controller, among draft lengths."""


def rows(options: argparse.Namespace, say: Callable[[str], object]) -> list[Row]:
    """Decode the same prompts in every case, in turns; a rate is the median of a case's turns.

    The controller keeps what it learns from turn to turn, as an engine does.
    """
    import torch

    from gemma_mtp_ros.demo.corpus import held_out
    from gemma_mtp_ros.engine.decode import Engine, RoundControl

    torch.set_num_threads(options.threads)
    target, drafter = resolve_pair(options.model, options.drafter)
    config = EngineConfig(
        model=target,
        drafter=drafter,
        device="cpu",
        threads=options.threads,
        adaptive_draft=True,
        max_context=1024,
    )
    engine = Engine.load(config, lambda stage, part: None)
    costs = engine.model.costs
    assert costs is not None

    def answer(instruction: str, case: int) -> tuple[tuple[int, ...], Stats]:
        request = Request(
            id="benchmark",
            messages=(Message(role="user", content=instruction),),
            sampling=SamplingParams(temperature=0.0, max_new_tokens=options.max_new_tokens),
        )
        engine.model.costs = costs if case == OWN else None
        control = RoundControl(MAX_DRAFT if case == OWN else case)
        tokens: tuple[int, ...] = ()
        for event in engine.generate(request, lambda: control):
            if isinstance(event, Piece):
                tokens += event.token_ids
            elif isinstance(event, Finish):
                return tokens, event.stats
        raise AssertionError("the engine ended without saying how")

    cases = [*range(MAX_DRAFT + 1), OWN]
    prompts = [example.instruction for example in held_out(options.prompts)]
    expected = {prompt: answer(prompt, 0)[0] for prompt in prompts}
    rates: dict[int, list[float]] = {case: [] for case in cases}
    same = drafted = rounds = 0
    for turn in range(options.repeats):
        for case in rotated(cases, turn):
            say(f"decoding, turn {turn + 1} of {options.repeats}")
            decided, seconds = 0, 0.0
            for prompt in prompts:
                tokens, stats = answer(prompt, case)
                decided += stats.completion_tokens - 1
                seconds += stats.decode_s
                same += tokens == expected[prompt]
                if case == OWN:
                    drafted += sum(stats.drafted_at)
                    rounds += stats.rounds
            rates[case].append(decided / seconds)
    found = {case: statistics.median(of) for case, of in rates.items()}
    best = max(range(MAX_DRAFT + 1), key=lambda k: found[k])
    total = options.repeats * len(cases) * len(prompts)
    return [
        *(Row(f"draft.real_fixed{k}", found[k], "tokens/s") for k in range(MAX_DRAFT + 1)),
        Row("draft.real_controller", found[OWN], "tokens/s"),
        Row("draft.real_length", drafted / rounds, "tokens"),
        Row("draft.real_best_fixed", best, "tokens"),
        Row("draft.real_vs_best_fixed", found[OWN] / found[best], "ratio"),
        Row("draft.real_vs_plain", found[OWN] / found[0], "ratio"),
        Row("draft.real_same_answers", same / total, "share", (MORE, 1.0)),
    ]
