# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys and values: preallocated, written in place, rolled back by moving a pointer.

A sliding layer keeps ``window + MAX_DRAFT`` rows in a ring, so that a pass of ``MAX_DRAFT + 1``
rows never overwrites a key that its first row may still read. A full layer keeps every row, in
blocks, up to the context limit. Rows at or past ``length`` are never shown to a reader: each mask
ends at a position, not at the end of a buffer.
"""

from __future__ import annotations

import torch

from ..api import MAX_DRAFT
from .ops import BLOCK, tensor_bytes
from .spec import TextSpec

ROWS = MAX_DRAFT + 1
"""Widest pass over the caches in decoding."""

NEVER = float("-inf")


def round_up(value: int, step: int) -> int:
    """Smallest multiple of ``step`` that is at least ``value``."""
    return -(-value // step) * step


class SlidingMasks:
    """Masks over a ring, as slices of one table.

    Slot ``s`` of a ring of ``ring`` rows holds the latest position that is ``s`` modulo ``ring``.
    Seen from position ``q`` it is ``d = (q - s) mod ring`` behind, and visible iff
    ``first <= d < window`` and ``d <= q``. That depends on ``q`` only through ``q mod ring`` once
    ``q >= ring``, so ``2 * ring`` rows (and a pass more) hold every mask there is.
    """

    def __init__(self, window: int, ring: int, first: int, device: torch.device) -> None:
        self.ring = ring
        rows = torch.arange(2 * ring + ROWS)
        slots = torch.arange(ring)
        behind = (rows[:, None] - slots[None, :]) % ring
        seen = (behind >= first) & (behind < window) & (behind <= rows[:, None])
        self.table = torch.where(seen, 0.0, NEVER).to(device)

    def rows(self, position: int, n: int) -> torch.Tensor:
        """``(n, ring)`` additive mask of positions ``position .. position + n - 1``."""
        start = position if position < self.ring else self.ring + position % self.ring
        return self.table[start : start + n]


class FullMasks:
    """Causal masks as slices of one strip: row ``i`` sees keys up to ``position + i``."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.capacity = capacity
        columns = torch.arange(2 * capacity)
        seen = columns[None, :] <= capacity + torch.arange(ROWS)[:, None]
        self.strip = torch.where(seen, 0.0, NEVER).to(device)

    def rows(self, position: int, n: int, keys: int) -> torch.Tensor:
        """``(n, keys)`` additive mask of positions ``position .. position + n - 1``."""
        start = self.capacity - position
        return self.strip[:n, start : start + keys]


class LayerCache:
    """Keys and values of one layer that writes its own: ``(2 * kv_heads, rows, head_dim)``."""

    def __init__(
        self,
        sliding: bool,
        kv_heads: int,
        head_dim: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.sliding = sliding
        self.kv_heads = kv_heads
        # Zeros, not empty memory: a masked key adds weight 0 times its value, which must be finite.
        self.kv = torch.zeros(2 * kv_heads, rows, head_dim, dtype=dtype, device=device)
        self._split()

    def _split(self) -> None:
        self.k = self.kv[: self.kv_heads]
        self.v = self.kv[self.kv_heads :]

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` positions of a full layer."""
        old = self.kv
        if rows > old.shape[1]:
            self.kv = torch.zeros(
                old.shape[0], rows, old.shape[2], dtype=old.dtype, device=old.device
            )
            self.kv[:, : old.shape[1]] = old
            self._split()


class KVCache:
    """The caches of one sequence and the masks to read them by.

    ``length`` positions are committed; :meth:`commit` moves the pointer, forwards and back.
    """

    def __init__(
        self,
        spec: TextSpec,
        max_context: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        drafter: bool,
    ) -> None:
        self.max_context = max_context
        self.length = 0
        self.ring = spec.window + MAX_DRAFT
        self.capacity_limit = round_up(max_context + ROWS, BLOCK)
        # One block, or all of a short context: growth copies, and short contexts are cheap.
        self.capacity = min(self.capacity_limit, 4 * BLOCK)
        self.layers: dict[int, LayerCache] = {}
        for i, layer in enumerate(spec.layers):
            if layer.kv_source == i:
                rows = self.ring if layer.sliding else self.capacity
                self.layers[i] = LayerCache(
                    layer.sliding, layer.kv_heads, layer.head_dim, rows, dtype, device
                )
        self.sliding_masks = SlidingMasks(spec.window, self.ring, 0, device)
        self.full_masks = FullMasks(self.capacity_limit, device)
        self.draft_masks = SlidingMasks(spec.window, self.ring, 1, device) if drafter else None
        self.slots = (torch.arange(2 * self.ring + ROWS) % self.ring).to(device)

    def reset(self) -> None:
        """Forget the sequence."""
        self.length = 0

    def ensure(self, positions: int) -> None:
        """Grow the full layers so that ``positions`` rows fit (at most the context and one
        pass).
        """
        if positions <= self.capacity:
            return
        self.capacity = min(self.capacity_limit, round_up(max(positions, 2 * self.capacity), BLOCK))
        for layer in self.layers.values():
            if not layer.sliding:
                layer.grow(self.capacity)

    def ring_slots(self, position: int, n: int) -> torch.Tensor:
        """Slots of positions ``position .. position + n - 1`` (``n`` at most the ring)."""
        start = position % self.ring
        return self.slots[start : start + n]

    def commit(self, length: int) -> None:
        """Let ``length`` positions stand; rows past them are as if never written."""
        self.length = length

    @property
    def bytes(self) -> int:
        """Memory of keys, values and masks."""
        masks = [self.sliding_masks.table, self.full_masks.strip]
        if self.draft_masks is not None:
            masks.append(self.draft_masks.table)
        return tensor_bytes(*masks, *(layer.kv for layer in self.layers.values()))
