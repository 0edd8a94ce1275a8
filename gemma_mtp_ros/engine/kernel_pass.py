# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding passes by the C++ kernels: no masks, no padding, row-invariant by their nature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .cache import LayerCache
from .kernels import Kernels
from .spec import DRAFT_POSITION_OFFSET

if TYPE_CHECKING:
    from .drafter import Drafter
    from .target import Target


def attend(
    kernels: Kernels,
    q: torch.Tensor,
    store: LayerCache,
    *,
    heads: int,
    position: int,
    window: int,
    ring: int,
    first: int = 0,
) -> torch.Tensor:
    """Attention of a pass over a layer's cache; see :meth:`Kernels.attend`."""
    h, scales = store.kv_heads, store.scales
    return kernels.attend(
        q,
        store.kv[:h],
        store.kv[h:],
        q_heads=heads,
        position=position,
        window=window if store.sliding else 0,
        ring=ring if store.sliding else 0,
        first=first,
        k_scales=None if scales is None else scales[:h],
        v_scales=None if scales is None else scales[h:],
    )


class KernelPass:
    """Target passes of one sequence."""

    def __init__(self, target: Target, kernels: Kernels) -> None:
        self.target = target
        self.kernels = kernels

    def __call__(self, ids: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Run ``n`` tokens through the target; write their keys and values.

        :param ids: ``(n,)`` token ids.
        :return: post-norm states ``(n, hidden)`` and logits ``(n, vocab)``.
        """
        target, kernels, cache = self.target, self.kernels, self.target.cache
        n, heads, window = ids.shape[0], target.spec.q_heads, target.spec.window
        x = target.embed(ids)
        ple = target.mix_ple(x, target.ple_rows(ids))
        rope = target.rope.rows(position, position + n)
        for i, layer in enumerate(target.layers):
            spec, attention = layer.spec, layer.attention
            store = cache.layers[spec.kv_source]
            qkv = attention.qkv(layer.input_norm(x)).view(n, -1, spec.head_dim)
            attention.norm(qkv, out=qkv)
            writes = spec.kv_source == i
            rotated = heads + spec.kv_heads if writes else heads
            kernels.rotate_(qkv, rotated, rope[spec.head_dim, spec.sliding])
            if writes:
                ring = cache.ring if spec.sliding else 0
                kernels.store(qkv[:, heads:], store.kv, position, ring, store.scales)
            mixed = attend(
                kernels,
                qkv,
                store,
                heads=heads,
                position=position,
                window=window,
                ring=cache.ring,
            )
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None if ple is None else ple[i])
        hidden = target.norm(x)
        return hidden, target.logits(hidden)


class KernelDraft:
    """Draft steps over the target's keys and values."""

    def __init__(self, drafter: Drafter, kernels: Kernels) -> None:
        self.drafter = drafter
        self.kernels = kernels

    def __call__(
        self, token: torch.Tensor, state: torch.Tensor, length: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step; see :meth:`Drafter.step`.

        :param length: how many rows of the target's caches are committed.
        """
        drafter, kernels, spec = self.drafter, self.kernels, self.drafter.spec.body
        cache, window = drafter.target.cache, drafter.target.spec.window
        place = length + DRAFT_POSITION_OFFSET
        rope = drafter.rope.rows(place, place + 1)
        x = drafter.pre(torch.cat([drafter.target.embed(token), state], 1))
        for layer in drafter.layers:
            sliding, dim = layer.spec.sliding, layer.spec.head_dim
            q = layer.attention.qkv(layer.input_norm(x)).view(1, spec.q_heads, dim)
            layer.attention.norm(q, out=q)
            kernels.rotate_(q, spec.q_heads, rope[dim, sliding])
            mixed = attend(
                kernels,
                q,
                cache.layers[drafter.source[sliding]],
                heads=spec.q_heads,
                position=length,
                window=window,
                ring=cache.ring,
                first=1,
            )
            x = layer.post_attention_norm.add_to(x, layer.attention.out(mixed))
            x = layer.feed_forward(x, None)
        hidden = drafter.norm(x)
        return drafter.post(hidden), hidden
