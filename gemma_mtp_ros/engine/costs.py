# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a target pass and a draft step cost on the machine at hand, and what memory allows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..api import MAX_DRAFT
from .cache import ROWS
from .draft_costs import REPEATS as COST_REPEATS
from .draft_costs import Costs
from .draft_source import DraftSource
from .ops import kernels_for
from .sampling import Rules
from .target import Target

REPEATS = 5
POSITION = 200
"""Rows in the caches while it is measured, or as many as fit."""

AT_MOST_S, AT_LEAST = 30.0, 3
"""Time after which costs are not timed again, once they were so many times: for large models on
slow boards."""

READ_AT_LEAST_S = 0.05
"""Time that one measurement of bandwidth takes at least, over as many reads as that needs."""


def measure(
    target: Target,
    drafter: DraftSource | None,
    beat: Callable[[], None],
    position: int = POSITION,
    repeats: int = COST_REPEATS,
) -> Costs:
    """Time passes of each width and draft steps, in turns; medians.

    A pass ends with reading back what it chose, as a round does; draft steps follow one another
    without, where they are recorded.

    :param drafter: None: a draft step costs infinitely much.
    :param beat: called between passes, as a sign of life.
    :param position: rows in the caches, or as many as fit; they hold noise.
    """
    cache = target.cache
    position = max(1, min(position, cache.max_context - ROWS))
    ids = torch.zeros(ROWS, dtype=torch.long, device=target.device)
    noise = torch.Generator(target.device).manual_seed(1)
    for layer in cache.layers.values():
        layer.fill(position + ROWS, noise)  # pages never written would all be the page of zeros
        beat()
    cache.commit(position)
    taken: list[list[float]] = [[] for _ in range(ROWS + 1)]
    began_s = time.monotonic()
    for repeat in range(repeats + 1):
        if repeat > AT_LEAST and time.monotonic() - began_s > AT_MOST_S:
            break
        for n in range(1, ROWS + 1):
            begin = time.perf_counter()
            _, logits = target.decode(ids[:n], position)
            _wait(logits)
            if repeat:
                taken[n].append(time.perf_counter() - begin)
            beat()
        if drafter is not None:
            drafter.rehearse(position)
            begin = time.perf_counter()
            _draft(drafter, ids[:1], target.spec.hidden)
            if repeat:
                taken[0].append((time.perf_counter() - begin) / MAX_DRAFT)
    cache.release()
    if drafter is not None:
        drafter.forget()
    draft = statistics.median(taken[0]) if taken[0] else math.inf
    return Costs(tuple(map(statistics.median, taken[1:])), draft, noise_of(taken))


def noise_of(timings: Sequence[Sequence[float]]) -> float:
    """Noise of one timing, as the standard deviation of its logarithm.

    From the median deviation from the median, of all quantities together, so that a few
    interruptions do not count; that of too few timings is taken to be that of :class:`Costs`.
    """
    off = [
        abs(math.log(each / statistics.median(of)))
        for of in timings
        if len(of) >= AT_LEAST
        for each in of
    ]
    return 1.4826 * statistics.median(off) if off else Costs.noise


def _draft(drafter: DraftSource, token: torch.Tensor, backbone: int) -> None:
    """``MAX_DRAFT`` steps, as a round takes them."""
    state = torch.zeros(1, backbone, device=token.device)
    whole = drafter.chain(token, state, MAX_DRAFT, Rules(), 0)
    if whole is not None:
        whole.tolist()
        return
    for _ in range(MAX_DRAFT):
        state, hidden = drafter.step(token, state)
        scores, _ = drafter.logits(hidden)
        _wait(scores)


def _wait(result: torch.Tensor) -> None:
    result.argmax(-1).tolist()


def pass_bytes(target: Target, position: int) -> int:
    """Bytes of weights, keys and values that a target pass of one row reads at least.

    Every weight once, chosen experts alone; of embedding tables, which are looked up, nothing;
    in each layer the keys and values that the row sees.
    """
    spec, cache = target.spec, target.cache
    total = target.head.bytes + (target.ple_projection.bytes if target.ple is not None else 0)
    for layer in target.layers:
        total += sum(linear.bytes for linear in layer.linears())
        if layer.experts is not None and spec.experts is not None:
            stacks = layer.experts.gate_up.bytes + layer.experts.down.bytes
            total -= stacks * (spec.experts.count - spec.experts.top_k) // spec.experts.count
        seen = min(position + 1, spec.window) if layer.spec.sliding else position + 1
        total += seen * cache.layers[layer.spec.kv_source].row_bytes
    return total


class Bandwidth(NamedTuple):
    """What memory gave.

    Attributes:
        bytes_per_s: read, or read and written.
        buffer: bytes of the memory that was gone through.
        how: in words.
    """

    bytes_per_s: float
    buffer: int
    how: str


def bandwidth(device: torch.device, size: int, repeats: int = REPEATS) -> Bandwidth:
    """Go through memory of ``size`` bytes, again and again; the best of some repeats.

    With the size of what a pass reads, caches help as much as they help the pass.
    """
    found = kernels_for(device)
    source = torch.ones(max(1, size // 4), device=device)
    target = torch.empty_like(source) if found is None else source

    def go() -> None:
        if found is None:
            target.copy_(source)
        else:
            found.read(source)

    def run(count: int) -> float:
        _finish(device)
        begin = time.perf_counter()
        for _ in range(count):
            go()
        _finish(device)
        return time.perf_counter() - begin

    run(1)
    count = max(1, math.ceil(READ_AT_LEAST_S / max(run(1), 1e-9)))
    best = min(run(count) for _ in range(repeats)) / count
    size = 4 * source.numel()
    if found is not None:
        return Bandwidth(size / best, size, f"reading by the CPU kernels ({found.isa})")
    where = "on the CPU" if device.type == "cpu" else "on the GPU"
    return Bandwidth(2 * size / best, 2 * size, f"torch copying {where}, read and write together")


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
