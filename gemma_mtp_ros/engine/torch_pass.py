# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding passes in torch operations of static shapes: on a GPU, and where no kernels are built.

Nothing in a pass depends on Python numbers but its width and the number of keys that it looks at,
which grows by doubling; positions are tensors. So a CUDA graph of a pass stays valid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .attention import BLOCK, additive, attend, attend_blocks
from .cache import KVCache, round_up
from .ops import rotate
from .spec import DRAFT_POSITION_OFFSET

if TYPE_CHECKING:
    from .drafter import Drafter
    from .target import Target


ALIGNED = 8
"""Values that the rows of a mask are a multiple of apart; else torch copies it in each attention.

(``preprocess_mask`` of its memory-efficient kernel.)
"""


class Masks:
    """What rows at given positions see, in both kinds of layers.

    A ring's slot ``s`` holds the latest position that is ``s`` modulo the ring. Seen from position
    ``p`` it is ``(p - s) mod ring`` behind.
    """

    def __init__(self, window: int, ring: int, capacity: int, device: torch.device) -> None:
        self.window = window
        self.ring = ring
        self.columns = torch.arange(capacity, device=device)
        self.slots = torch.arange(round_up(ring, ALIGNED), device=device)

    def full(
        self, at: torch.Tensor, keys: int, first: int = 0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Additive ``(n, keys)``: positions up to ``at - first``."""
        return additive(self.columns[None, :keys] <= at[:, None] - first).to(dtype)

    def sliding(
        self, at: torch.Tensor, first: int = 0, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Additive ``(n, ring)``: from ``first`` to ``window - 1`` positions behind."""
        behind = (at[:, None] - self.slots) % self.ring
        seen = (behind >= first) & (behind < self.window) & (behind <= at[:, None])
        return additive(seen).to(dtype)[:, : self.ring]


def read_dtype(cache: KVCache) -> torch.dtype:
    """What a cache's keys and values are when they are read; int8 ones are multiplied out."""
    layer = next(iter(cache.layers.values()))
    return torch.float32 if layer.scales is not None else layer.kv.dtype


def bucket(end: int, capacity: int) -> int:
    """Keys that a pass up to position ``end`` looks at: blocks, doubled until they suffice."""
    keys = BLOCK
    while keys < end:
        keys *= 2
    return min(keys, capacity)


class TorchPass:
    """Target passes of one sequence."""

    def __init__(self, target: Target) -> None:
        cache = target.cache
        self.target = target
        self.read_dtype = read_dtype(cache)
        self.masks = Masks(target.spec.window, cache.ring, cache.capacity, target.device)

    def __call__(
        self, ids: torch.Tensor, at: torch.Tensor, keys: int, ple: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run ``n`` tokens through the target; write their keys and values.

        :param ids: ``(n,)`` token ids.
        :param at: ``(n,)`` their positions, consecutive.
        :param keys: how many rows of the full layers to look at, past the last position.
        :param ple: ``(n, layers * ple)`` rows of the per-layer table, of a model that has one.
        :return: post-norm states ``(n, hidden)`` and logits ``(n, vocab)``.
        """
        target, cache = self.target, self.target.cache
        n, ring = ids.shape[0], cache.ring
        x = target.embed(ids)
        mixed_ple = target.mix_ple(x, ple)
        # Natural-width attention takes masks in the dtype of the keys: converted here, once.
        dtype = torch.float32 if target.reproducible else self.read_dtype
        masks = {
            True: self.masks.sliding(at, dtype=dtype),
            False: self.masks.full(at, keys, dtype=dtype),
        }
        slots, rope = at % ring, target.rope.at(at)
        heads = target.spec.q_heads
        for i, layer in enumerate(target.layers):
            spec, attention = layer.spec, layer.attention
            angles = rope[spec.head_dim, spec.sliding]
            qkv = attention.norm(attention.qkv(layer.input_norm(x)).view(n, -1, spec.head_dim))
            store = cache.layers[spec.kv_source]
            if spec.kv_source == i:
                rotated = rotate(qkv[:, : heads + spec.kv_heads], angles)
                q = rotated[:, :heads]
                kv = torch.cat([rotated[:, heads:], qkv[:, heads + spec.kv_heads :]], 1)
                store.write(kv.transpose(0, 1), slots if spec.sliding else at)
            else:
                q = rotate(qkv, angles)
            k, v = store.read(ring if spec.sliding else keys)
            mask = masks[spec.sliding]
            if target.reproducible:
                mixed = attend_blocks(q, k, v, mask, ring if spec.sliding else BLOCK)
            else:
                mixed = attend(q, k, v, mask)
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None if mixed_ple is None else mixed_ple[i])
        hidden = target.norm(x)
        return hidden, target.logits(hidden)


class TorchDraft:
    """Draft steps over the target's keys and values."""

    def __init__(self, drafter: Drafter, masks: Masks) -> None:
        self.drafter = drafter
        self.masks = masks
        self.mask_dtype = read_dtype(drafter.target.cache)

    def __call__(
        self, token: torch.Tensor, state: torch.Tensor, at: torch.Tensor, keys: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step; see :meth:`Drafter.step`.

        :param at: ``(1,)`` how many rows of the target's caches are committed.
        :param keys: how many rows of the full layers to look at.
        """
        drafter, spec = self.drafter, self.drafter.spec.body
        cache = drafter.target.cache
        x = drafter.pre(torch.cat([drafter.target.embed(token), state], 1))
        masks = {
            True: self.masks.sliding(at, 1, self.mask_dtype),
            False: self.masks.full(at, keys, 1, self.mask_dtype),
        }
        rope = drafter.rope.at(at + DRAFT_POSITION_OFFSET)
        for layer in drafter.layers:
            sliding, dim = layer.spec.sliding, layer.spec.head_dim
            angles = rope[dim, sliding]
            q = layer.attention.qkv(layer.input_norm(x)).view(1, spec.q_heads, dim)
            k, v = cache.layers[drafter.source[sliding]].read(cache.ring if sliding else keys)
            mixed = attend(rotate(layer.attention.norm(q), angles), k, v, masks[sliding])
            x = layer.post_attention_norm.add_to(x, layer.attention.out(mixed))
            x = layer.feed_forward(x, None)
        hidden = drafter.norm(x)
        return drafter.post(hidden), hidden
