# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys and values: one place for each position, written in place, rolled back by a pointer.

A sliding layer keeps at least ``window + MAX_DRAFT`` rows in a ring, so that the widest pass never
overwrites a key that its first row may still read. A full layer has a row for every position up to
the context limit; on a CPU that is address space only, of which the kernel commits the pages that
are written. Rows at or past ``length`` are never shown to a reader: what a row sees ends at a
position, not at the end of a buffer.
"""

from __future__ import annotations

import math
import mmap

import torch

from ..api import MAX_DRAFT
from .attention import BLOCK
from .spec import LayerSpec, TextSpec

ROWS = MAX_DRAFT + 1
"""Widest pass over the caches in decoding."""

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}

RING_STEP = 16
"""Rings are multiples of this long: products over their rows stay aligned, as a GPU wants them."""

INT8_MAX = 127.0
"""Largest magnitude of a quantised key or value: symmetric, so that negation is exact."""


def round_up(value: int, step: int) -> int:
    """Smallest multiple of ``step`` that is at least ``value``."""
    return -(-value // step) * step


def reserve(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, mmap.mmap]:
    """Zeros that take memory only where they are written to, and the mapping they lie in.

    Small pages, since a huge one would commit 2 MiB for the first row of each head.
    """
    size = math.prod(shape) * dtype.itemsize
    area = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(getattr(mmap, "MADV_NOHUGEPAGE", 15))
    return torch.frombuffer(area, dtype=dtype, count=math.prod(shape)).view(shape), area


def ring_rows(window: int) -> int:
    """Rows of a sliding layer's ring."""
    return round_up(window + MAX_DRAFT, RING_STEP)


class LayerCache:
    """Keys and values of one layer that writes its own.

    Attributes:
        kv: ``(2 * kv_heads, rows, head_dim)``, keys first; finite everywhere, since a masked key
            adds weight 0 times its value.
        scales: ``(2 * kv_heads, rows)`` float32, what int8 rows are multiplied by; else None.
    """

    def __init__(
        self, layer: LayerSpec, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.sliding = layer.sliding
        self.kv_heads = layer.kv_heads
        self.head_dim = layer.head_dim
        self.rows = rows
        self.scales: torch.Tensor | None = None
        self._areas: list[mmap.mmap] = []
        self.kv = self._zeros((2 * layer.kv_heads, rows, layer.head_dim), dtype, device)
        if dtype == torch.int8:
            self.scales = self._zeros((2 * layer.kv_heads, rows), torch.float32, device)

    def _zeros(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        if self.sliding or device.type != "cpu":
            return torch.zeros(shape, dtype=dtype, device=device)
        zeros, area = reserve(shape, dtype)
        self._areas.append(area)
        return zeros

    @property
    def row_bytes(self) -> int:
        """Memory of one position."""
        item = self.kv.element_size() * self.head_dim + (0 if self.scales is None else 4)
        return 2 * self.kv_heads * item

    def write(self, kv: torch.Tensor, rows: torch.Tensor) -> None:
        """Put keys and values ``(2 * kv_heads, n, head_dim)`` into ``rows (n,)``."""
        if self.scales is not None:
            scales = kv.abs().amax(-1).float() / INT8_MAX
            kv = (kv / scales.clamp_min(1e-30)[..., None]).round()
            self.scales.index_copy_(1, rows, scales)
        self.kv.index_copy_(1, rows, kv.to(self.kv.dtype))

    def read(self, rows: int | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``(kv_heads, n, head_dim)`` of the first ``rows``, or of those listed."""
        if isinstance(rows, int):
            kv = self.kv[:, :rows]
            scales = None if self.scales is None else self.scales[:, :rows]
        else:
            kv = self.kv.index_select(1, rows)
            scales = None if self.scales is None else self.scales.index_select(1, rows)
        if scales is not None:
            kv = kv.float() * scales[..., None]
        return kv[: self.kv_heads], kv[self.kv_heads :]

    def fill(self, rows: int, generator: torch.Generator) -> None:
        """Put noise into the first ``rows``, for a check."""
        rows = min(rows, self.rows)
        shape = (2 * self.kv_heads, rows, self.head_dim)
        noise = torch.randn(shape, generator=generator, device=self.kv.device)
        self.write(noise, torch.arange(rows, device=self.kv.device))

    @torch.inference_mode()
    def release(self) -> None:
        """Give the memory of all rows back; they read as zeros."""
        for area in self._areas:
            area.madvise(mmap.MADV_DONTNEED)
        if not self._areas:
            self.kv.zero_()


class KVCache:
    """The caches of one sequence.

    ``length`` positions are committed; :meth:`commit` moves the pointer, forwards and back.
    """

    def __init__(
        self, spec: TextSpec, max_context: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.max_context = max_context
        self.device = device
        self.length = 0
        self.ring = ring_rows(spec.window)
        self.capacity = round_up(max_context + ROWS, BLOCK)
        self.layers: dict[int, LayerCache] = {}
        for i, layer in enumerate(spec.layers):
            if layer.kv_source == i:
                rows = self.ring if layer.sliding else self.capacity
                self.layers[i] = LayerCache(layer, rows, dtype, device)
        self._written = 0

    def reset(self) -> None:
        """Forget the sequence."""
        self.length = 0

    def wrote(self, end: int) -> None:
        """Take note that rows before position ``end`` were written."""
        self._written = max(self._written, end)

    def commit(self, length: int) -> None:
        """Let ``length`` positions stand; rows past them are as if never written."""
        self.length = length
        self.wrote(length)

    def release(self) -> None:
        """Forget the sequence and give the memory of the full layers back, where it can be."""
        self.reset()
        for layer in self.layers.values():
            layer.release()
        self._written = 0

    @property
    def bytes(self) -> int:
        """Memory of the rows that were ever written; all of them on a GPU."""
        return self.bytes_at(self._written)

    def bytes_at(self, positions: int) -> int:
        """Memory once ``positions`` rows are written."""
        total = 0
        for layer in self.layers.values():
            rows = layer.rows
            if not layer.sliding and self.device.type == "cpu":
                rows = min(round_up(positions, BLOCK), layer.rows)
            total += rows * layer.row_bytes
        return total


def cache_bytes(spec: TextSpec, max_context: int, dtype: torch.dtype) -> int:
    """Bytes of keys and values at the full context."""
    full = round_up(max_context + ROWS, BLOCK)
    total = 0
    for i, layer in enumerate(spec.layers):
        if layer.kv_source == i:
            rows = ring_rows(spec.window) if layer.sliding else full
            scale = 4 if dtype == torch.int8 else 0
            total += 2 * layer.kv_heads * rows * (layer.head_dim * dtype.itemsize + scale)
    return total
