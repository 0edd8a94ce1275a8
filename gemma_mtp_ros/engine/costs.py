# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a target pass and a draft step cost on the machine at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from ..api import MAX_DRAFT
from .cache import ROWS
from .draft_length import Costs
from .drafter import Drafter
from .target import Target

REPEATS = 5
POSITION = 200
"""Rows in the caches while it is measured, or as many as fit."""


def measure(target: Target, drafter: Drafter, beat: Callable[[], None]) -> Costs:
    """Time passes of each width and draft steps, in turns; medians.

    :param beat: called between passes, as a sign of life.
    """
    cache = target.cache
    position = max(1, min(POSITION, cache.max_context - ROWS))
    ids = torch.zeros(ROWS, dtype=torch.long, device=target.device)
    state = torch.zeros(1, target.spec.hidden, device=target.device)
    cache.commit(position)
    taken: list[list[float]] = [[] for _ in range(ROWS + 1)]
    for repeat in range(REPEATS + 1):
        for n in range(1, ROWS + 1):
            begin = time.perf_counter()
            _, logits = target.decode(ids[:n], position)
            _wait(logits)
            if repeat:
                taken[n].append(time.perf_counter() - begin)
            beat()
        begin = time.perf_counter()
        for _ in range(MAX_DRAFT):
            state, hidden = drafter.step(ids[:1], state)
            scores, _ = drafter.logits(hidden)
            _wait(scores)
        if repeat:
            taken[0].append((time.perf_counter() - begin) / MAX_DRAFT)
    cache.release()
    draft, *passes = map(statistics.median, taken)
    return Costs(tuple(passes), draft)


def _wait(result: torch.Tensor) -> None:
    result.argmax(-1).tolist()
