# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Passes recorded once and replayed: on a GPU each is one launch, where eager torch has hundreds.

A recording has fixed input and output memory. It is made for one width and one number of keys;
both come from small sets, so that all are made at configure and no round allocates anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .attention import BLOCK
from .cache import ROWS
from .sampling import Rules, gumbel_of, place_keys

if TYPE_CHECKING:
    from .drafter import Drafter
    from .target import Target

WARM_UP_CALLS = 2
"""Calls before a recording, in which libraries choose their kernels and allocate what they keep."""


def buckets(capacity: int) -> list[int]:
    """Numbers of keys that recordings are made for: see ``torch_pass.bucket``."""
    found = [BLOCK]
    while found[-1] < capacity:
        found.append(min(2 * found[-1], capacity))
    return found


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that everything is warmed up and captured on.

    cuBLAS keeps a workspace of up to 32 MiB for each stream that it is called on. With one stream
    there is one, allocated in the first warm-up and so outside the graphs' pool.
    """
    return torch.cuda.Stream(device)


class Recording:
    """A function without arguments that works on fixed memory, as a CUDA graph.

    :param run: what to record.
    :param device: a CPU has no graphs; there it is called each time.
    :param pool: memory pool to share among recordings that never run at the same time.
    """

    def __init__(self, run: Callable[[], None], device: torch.device, pool: Any) -> None:
        self._run = run
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type != "cuda":
            return
        stream = side_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                run()
        torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            run()

    def __call__(self) -> None:
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()


class Pool:
    """Memory that recordings share, and how much it came to."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._handle: Any = None
        self._reserved_before = 0
        if device.type == "cuda":
            self._handle = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()
            self._reserved_before = torch.cuda.memory_reserved(device)

    def record(self, run: Callable[[], None]) -> Recording:
        """Record a function; see :class:`Recording`."""
        return Recording(run, self._device, self._handle)

    def bytes(self, buffers: Iterable[torch.Tensor | None]) -> int:
        """Memory of the fixed buffers and of all recordings, those of the driver aside."""
        total = sum(b.numel() * b.element_size() for b in buffers if b is not None)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            total += max(0, torch.cuda.memory_reserved(self._device) - self._reserved_before)
        return total


class RecordedTarget:
    """Target passes of given widths."""

    def __init__(self, target: Target, widths: list[int], beat: Callable[[], None]) -> None:
        """
        :param beat: called after each recording, as a sign of life.
        """
        device, spec = target.device, target.spec
        self.target = target
        self.widths = sorted(widths)
        self.ids = torch.zeros(ROWS, dtype=torch.long, device=device)
        self.at = torch.zeros(ROWS, dtype=torch.long, device=device)
        self.offsets = torch.arange(ROWS, device=device)
        self.ple: torch.Tensor | None = None
        if target.ple is not None:
            self.ple = torch.zeros(ROWS, len(spec.layers) * spec.ple, device=device)
        self.hidden = torch.zeros(ROWS, spec.hidden, device=device)
        self.logits = torch.zeros(ROWS, spec.vocab, device=device)
        pool = Pool(device)
        self._recordings: dict[tuple[int, int], Recording] = {}
        self.keys = buckets(target.cache.capacity)
        for keys in reversed(self.keys):  # the largest first: the pool need not grow
            for n in reversed(self.widths):
                self._recordings[n, keys] = pool.record(self._runner(n, keys))
                beat()
        self.bytes = pool.bytes((self.ple, self.hidden, self.logits))
        """Memory of fixed buffers and graphs."""

    def _runner(self, n: int, keys: int) -> Callable[[], None]:
        def run() -> None:
            ple = None if self.ple is None else self.ple[:n]
            hidden, logits = self.target.torch_pass(self.ids[:n], self.at[:n], keys, ple)
            self.hidden[:n] = hidden
            self.logits[:n] = logits

        return run

    def __call__(self, ids: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``Target.decode``. The logits hold until the next call."""
        n = ids.shape[0]
        width = next(each for each in self.widths if each >= n)
        keys = next(each for each in self.keys if each >= position + width)
        self.ids[:n] = ids
        torch.add(self.offsets, position, out=self.at)
        ple = self.target.ple_rows(ids)
        if self.ple is not None and ple is not None:
            self.ple[:n] = ple
        self._recordings[width, keys]()
        return self.hidden[:n].clone(), self.logits[:n]


class RecordedDraft:
    """Draft steps that feed one another: a chain is one launch a step and no wait between."""

    def __init__(self, drafter: Drafter, beat: Callable[[], None]) -> None:
        """
        :param beat: called after each recording, as a sign of life.
        """
        device = drafter.target.device
        self.drafter = drafter
        self.token = torch.zeros(1, dtype=torch.long, device=device)
        self.state = torch.zeros(1, drafter.spec.backbone, device=device)
        self.at = torch.ones(1, dtype=torch.long, device=device)
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self.drafts = torch.zeros(ROWS, dtype=torch.long, device=device)
        self.noise_keys = torch.zeros(ROWS, dtype=torch.long, device=device)
        self.temperature = torch.zeros((), dtype=torch.double, device=device)
        self.vocabulary = torch.arange(drafter.spec.body.vocab, device=device)
        pool = Pool(device)
        self._recordings: dict[tuple[int, bool], Recording] = {}
        self.keys = buckets(drafter.target.cache.capacity)
        for keys in reversed(self.keys):
            for drawn in (False, True):
                self.step.zero_()
                self._recordings[keys, drawn] = pool.record(self._runner(keys, drawn))
                beat()
        self.bytes = pool.bytes((self.state, self.vocabulary))
        """Memory of fixed buffers and graphs."""

    def _runner(self, keys: int, drawn: bool) -> Callable[[], None]:
        def run() -> None:
            state, hidden = self.drafter.torch_draft(self.token, self.state, self.at, keys)
            scores, ids = self.drafter.logits(hidden)
            ids = self.vocabulary if ids is None else ids
            if drawn:  # noise in float64 for a whole vocabulary takes a small GPU a while
                noise = gumbel_of(self.noise_keys.index_select(0, self.step), ids)
                scores = scores.double() + self.temperature * noise
            best = scores.argmax(-1)
            self.token.copy_(ids.index_select(0, best))
            self.state.copy_(state)
            self.drafts.index_copy_(0, self.step, self.token)
            self.step.add_(1)

        return run

    def __call__(
        self, token: torch.Tensor, state: torch.Tensor, k: int, rules: Rules, index: int
    ) -> torch.Tensor:
        """``(k,)`` drafts: argmax of scores + temperature * noise, filters and penalties aside.

        :param index: place of the first draft in the completion.
        """
        length = self.drafter.target.cache.length
        keys = next(each for each in self.keys if each >= length)
        self.token.copy_(token)
        self.state.copy_(state)
        self.at.fill_(length)
        self.step.zero_()
        drawn = rules.temperature > 0.0
        if drawn:
            self.temperature.fill_(rules.temperature)
            noise = place_keys(rules.seed, index, k)
            self.noise_keys[:k] = torch.tensor(noise, dtype=torch.long, device=self.at.device)
        for _ in range(k):
            self._recordings[keys, drawn]()
        return self.drafts[:k].clone()
