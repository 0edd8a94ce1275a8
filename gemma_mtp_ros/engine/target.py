# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 text decoder over preallocated caches, for one sequence.

Structure as in transformers ``Gemma4TextModel``: sliding and full layers, layers that share the
keys of an earlier one, per-layer embeddings (PLE), double-wide feed-forward in shared layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from .cache import ROWS, KVCache, round_up
from .checkpoint import Weights
from .ops import (
    BLOCK,
    TRANSPOSE_LIMIT,
    Linear,
    RmsNorm,
    attend,
    attend_blocks,
    gated,
    group_mask,
    interleave,
    rotate,
    tensor_bytes,
)
from .spec import LayerSpec, TextSpec


def rope_table(spec: TextSpec, head_dim: int, sliding: bool, positions: int) -> torch.Tensor:
    """``(positions, 1, head_dim / 2)`` complex64: e^(i * position * frequency)."""
    frequencies = spec.rope(sliding).inv_freq(head_dim)
    angles = torch.arange(positions).float()[:, None] * frequencies[None, :]
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def permute_heads(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of each head of a ``(heads * head_dim, …)`` projection for
    :func:`rotate`.
    """
    order = interleave(head_dim)
    return weight.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)


class AttentionWeights:
    """Projections and norms of one attention, fused; ``writes`` tells whether it has keys of its
    own.
    """

    def __init__(
        self,
        w: Weights,
        i: int,
        spec: TextSpec,
        writes: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        layer = spec.layers[i]
        head, name = layer.head_dim, f"layers.{i}.self_attn."
        q_rows, kv_rows = spec.q_heads * head, layer.kv_heads * head
        parts = [permute_heads(w.read(name + "q_proj.weight", (q_rows, spec.hidden)), head)]
        order = interleave(head)
        q_norm = w.read(name + "q_norm.weight", (head,))[order].float()
        norms = [q_norm.expand(spec.q_heads, head)]
        if writes:
            k = w.read(name + "k_proj.weight", (kv_rows, spec.hidden))
            v = k if layer.k_eq_v else w.read(name + "v_proj.weight", (kv_rows, spec.hidden))
            parts += [permute_heads(k, head), v]
            k_norm = w.read(name + "k_norm.weight", (head,))[order].float()
            norms += [k_norm.expand(layer.kv_heads, head), torch.ones(layer.kv_heads, head)]
        self.qkv = Linear(torch.cat(parts).to(device), dtype)
        self.norm = RmsNorm(torch.cat(norms), head, spec.eps, device)
        out = w.read(name + "o_proj.weight", (spec.hidden, q_rows))
        self.out = Linear(out.to(device), dtype)


class LayerWeights:
    """Weights of one decoder layer."""

    def __init__(
        self,
        w: Weights,
        i: int,
        spec: TextSpec,
        writes: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        layer, name = spec.layers[i], f"layers.{i}."

        def norm(key: str) -> RmsNorm:
            return RmsNorm(
                w.read(f"{name}{key}.weight", (spec.hidden,)), spec.hidden, spec.eps, device
            )

        self.spec: LayerSpec = layer
        self.attention = AttentionWeights(w, i, spec, writes, dtype, device)
        self.input_norm = norm("input_layernorm")
        self.post_attention_norm = norm("post_attention_layernorm")
        self.pre_ffn_norm = norm("pre_feedforward_layernorm")
        self.post_ffn_norm = norm("post_feedforward_layernorm")
        gate = w.read(name + "mlp.gate_proj.weight", (layer.ffn, spec.hidden))
        up = w.read(name + "mlp.up_proj.weight", (layer.ffn, spec.hidden))
        self.gate_up = Linear(torch.cat([gate, up]).to(device), dtype)
        self.down = Linear(
            w.read(name + "mlp.down_proj.weight", (spec.hidden, layer.ffn)).to(device), dtype
        )
        self.ple_gate: Linear | None = None
        if spec.ple:
            ple_gate = w.read(name + "per_layer_input_gate.weight", (spec.ple, spec.hidden))
            projection = w.read(name + "per_layer_projection.weight", (spec.hidden, spec.ple))
            self.ple_gate = Linear(ple_gate.to(device), dtype)
            self.ple_projection = Linear(projection.to(device), dtype)
            self.ple_norm = norm("post_per_layer_input_norm")
        scalar = w.read(name + "layer_scalar", (1,)).item() if w.has(name + "layer_scalar") else 1.0
        self.scalar: float = scalar

    def feed_forward(self, x: torch.Tensor, ple: torch.Tensor | None) -> torch.Tensor:
        """All of a layer that follows attention: ``(n, hidden)`` and PLE rows ``(n, ple)``."""
        inner = self.down(gated(self.gate_up(self.pre_ffn_norm(x)), self.spec.ffn))
        x = self.post_ffn_norm.add_to(x, inner)
        if ple is not None and self.ple_gate is not None:
            gate = F.gelu(self.ple_gate(x), approximate="tanh").mul_(ple)
            x = self.ple_norm.add_to(x, self.ple_projection(gate))
        return x if self.scalar == 1.0 else x.mul_(self.scalar)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor held, for counting."""
        linears = [self.attention.qkv, self.attention.out, self.gate_up, self.down]
        if self.ple_gate is not None:
            linears += [self.ple_gate, self.ple_projection]
        for linear in linears:
            yield linear.weight


class Target:
    """The target model and the caches of its sequence.

    :param reproducible: passes have a fixed width and block-wise attention, so that a row's bits
        do not depend on how many drafts surround it.
    """

    def __init__(
        self,
        spec: TextSpec,
        weights: Weights,
        *,
        max_context: int,
        dtype: torch.dtype,
        device: torch.device,
        reproducible: bool,
        drafter: bool = True,
    ) -> None:
        self.spec = spec
        self.device = device
        self.reproducible = reproducible
        weights.total = len(
            [key for key in weights.entries if key.startswith(weights.prefix or "")]
        )
        table = weights.read("embed_tokens.weight", (spec.vocab, spec.hidden))
        self.embedding = table.to(device, dtype)
        self.embed_scale = float(torch.tensor(spec.hidden**0.5).to(self.embedding.dtype))
        if spec.tied:
            small = tensor_bytes(self.embedding) <= TRANSPOSE_LIMIT
            self.head = Linear(self.embedding, dtype, share=not small)
        else:
            self.head = Linear(
                weights.read("lm_head.weight", (spec.vocab, spec.hidden)).to(device), dtype
            )
        self.layers = [
            LayerWeights(weights, i, spec, layer.kv_source == i, dtype, device)
            for i, layer in enumerate(spec.layers)
        ]
        self.norm = RmsNorm(
            weights.read("norm.weight", (spec.hidden,)), spec.hidden, spec.eps, device
        )
        if spec.ple:
            width = len(spec.layers) * spec.ple
            self.ple_table = weights.read(
                "embed_tokens_per_layer.weight", (spec.ple_vocab, width)
            ).to(device, dtype)
            projection = weights.read("per_layer_model_projection.weight", (width, spec.hidden))
            self.ple_model_projection = Linear(projection.to(device), dtype)
            norm = weights.read("per_layer_projection_norm.weight", (spec.ple,))
            self.ple_norm = RmsNorm(norm, spec.ple, spec.eps, device)
            self.ple_scale = float(torch.tensor(spec.ple**0.5).to(self.embedding.dtype))
        self.cache = KVCache(spec, max_context, dtype, device, drafter=drafter)
        self.rope = {
            (layer.head_dim, layer.sliding): rope_table(
                spec, layer.head_dim, layer.sliding, max_context + ROWS
            ).to(device)
            for layer in spec.layers
        }
        self.pad = torch.zeros(ROWS, dtype=torch.long, device=device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        total = tensor_bytes(self.embedding)
        if self.head.weight.data_ptr() != self.embedding.data_ptr():
            total += self.head.bytes
        if self.spec.ple:
            total += tensor_bytes(self.ple_table, self.ple_model_projection.weight)
        return total + sum(tensor_bytes(*layer.tensors()) for layer in self.layers)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Scaled token embeddings ``(n, hidden)`` float32, rounded as the checkpoint's dtype is."""
        return (F.embedding(ids, self.embedding) * self.embed_scale).float()

    def _ple(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Per-layer inputs ``(layers, n, ple)``, or None without PLE."""
        if not self.spec.ple:
            return None
        token = (F.embedding(ids, self.ple_table) * self.ple_scale).float()
        context = self.ple_model_projection(x) * self.spec.hidden**-0.5
        shape = (ids.shape[0], len(self.layers), self.spec.ple)
        mixed = self.ple_norm(context.view(shape)).add_(token.view(shape)).mul_(2.0**-0.5)
        return mixed.transpose(0, 1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Soft-capped logits ``(n, vocab)`` float32 of post-norm states ``(n, hidden)``."""
        logits = self.head(hidden)
        cap = self.spec.softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def decode(self, ids: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over at most ``MAX_DRAFT + 1`` tokens at ``position`` and after.

        Writes their keys and values; committing them is the caller's.

        :param ids: ``(n,)`` token ids.
        :return: post-norm states ``(n, hidden)`` and logits ``(n, vocab)``.
        """
        n = ids.shape[0]
        if self.reproducible and n < ROWS:
            ids = torch.cat([ids, self.pad[n:]])
        rows = ids.shape[0]
        cache = self.cache
        cache.ensure(position + rows)
        end = position + rows
        x = self.embed(ids)
        ple = self._ple(ids, x)
        slots = cache.ring_slots(position, rows)
        masks: dict[tuple[bool, int], torch.Tensor | None] = {}
        ring = cache.ring if self.reproducible else min(cache.ring, end)
        keys = round_up(end, BLOCK) if self.reproducible else end
        for i, layer in enumerate(self.layers):
            spec = layer.spec
            attention = layer.attention
            sliding = spec.sliding
            angles = self.rope[spec.head_dim, sliding][position:end]
            qkv = attention.norm(attention.qkv(layer.input_norm(x)).view(rows, -1, spec.head_dim))
            store = cache.layers[spec.kv_source]
            heads = self.spec.q_heads
            if spec.kv_source == i:
                rotated = rotate(qkv[:, : heads + spec.kv_heads], angles)
                q, k = rotated[:, :heads], rotated[:, heads:]
                v = qkv[:, heads + spec.kv_heads :]
                kv = torch.cat([k, v], 1).transpose(0, 1).to(store.kv.dtype)
                if sliding:
                    store.kv.index_copy_(1, slots, kv)
                else:
                    store.kv[:, position:end] = kv
            else:
                q = rotate(qkv, angles)
            group = heads // spec.kv_heads
            if (sliding, group) not in masks:
                masks[sliding, group] = self._mask(
                    position, rows, sliding, group, ring if sliding else keys
                )
            mask = masks[sliding, group]
            seen = ring if sliding else keys
            k_seen, v_seen = store.k[:, :seen], store.v[:, :seen]
            if self.reproducible:
                assert mask is not None
                mixed = attend_blocks(q, k_seen, v_seen, mask, ring if sliding else BLOCK)
            else:
                mixed = attend(q, k_seen, v_seen, mask)
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None if ple is None else ple[i])
        hidden = self.norm(x)
        logits = self.logits(hidden)
        return hidden[:n], logits[:n]

    def _mask(
        self, position: int, rows: int, sliding: bool, group: int, keys: int
    ) -> torch.Tensor | None:
        """Mask of a decoding pass: ``(rows * group, keys)``, in blocks when reproducible."""
        cache = self.cache
        if not self.reproducible and rows == 1 and (not sliding or position < self.spec.window):
            return None
        if sliding:
            mask = group_mask(cache.sliding_masks.rows(position, rows)[:, :keys], group)
            return mask.unsqueeze(0) if self.reproducible else mask
        mask = group_mask(cache.full_masks.rows(position, rows, keys), group)
        if not self.reproducible:
            return mask
        return mask.unflatten(1, (-1, BLOCK)).transpose(0, 1)

    def prefill(self, ids: torch.Tensor, last: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Append a chunk of the prompt at the committed length and commit it.

        Layers that share keys write none, so only the last row of the ``last`` chunk runs through
        them.

        :param ids: ``(n,)`` token ids, of any length.
        :return: post-norm state ``(1, hidden)`` and logits ``(1, vocab)`` of the last row, if
            ``last``.
        """
        cache, n = self.cache, ids.shape[0]
        position = cache.length
        end = position + n
        cache.ensure(end)
        x = self.embed(ids)
        ple = self._ple(ids, x)
        first_shared = self.spec.first_shared
        past = min(position, self.spec.window - 1)
        fresh: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        masks: dict[tuple[int, bool, int], torch.Tensor] = {}
        begin = position
        for i, layer in enumerate(self.layers):
            if i == first_shared:
                if not last:
                    break
                begin, x = end - 1, x[-1:]
                ple = None if ple is None else ple[:, -1:]
            spec, attention, rows = layer.spec, layer.attention, end - begin
            heads = self.spec.q_heads
            angles = self.rope[spec.head_dim, spec.sliding][begin:end]
            qkv = attention.norm(attention.qkv(layer.input_norm(x)).view(rows, -1, spec.head_dim))
            if spec.kv_source == i:
                rotated = rotate(qkv[:, : heads + spec.kv_heads], angles)
                q, k = rotated[:, :heads], rotated[:, heads:]
                kv = torch.cat([k, qkv[:, heads + spec.kv_heads :]], 1).transpose(0, 1)
                fresh[i] = self._store(i, kv, position, past)
            else:
                q = rotate(qkv, angles)
            k_seen, v_seen = fresh[spec.kv_source]
            kind = (begin, spec.sliding, heads // spec.kv_heads)
            if kind not in masks:
                seen = self._chunk_mask(begin, rows, end - k_seen.shape[1], spec.sliding)
                masks[kind] = group_mask(seen, heads // spec.kv_heads)
            mixed = attend(q, k_seen, v_seen, masks[kind])
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None if ple is None else ple[i])
        cache.commit(end)
        if not last:
            return None
        hidden = self.norm(x[-1:])
        return hidden, self.logits(hidden)

    def _store(
        self, i: int, kv: torch.Tensor, position: int, past: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a chunk's keys and values; return those the chunk attends to, in order.

        A chunk may be longer than the ring: it attends to the old ring and itself, then only its
        last rows are kept.
        """
        cache = self.cache
        store = cache.layers[i]
        kv = kv.to(store.kv.dtype)
        n = kv.shape[1]
        if not store.sliding:
            store.kv[:, position : position + n] = kv
            return store.k[:, : position + n], store.v[:, : position + n]
        old = store.kv.index_select(1, cache.ring_slots(position - past, past)) if past else None
        kept = min(n, cache.ring)
        store.kv.index_copy_(1, cache.ring_slots(position + n - kept, kept), kv[:, n - kept :])
        whole = kv if old is None else torch.cat([old, kv], 1)
        return whole[: store.kv_heads], whole[store.kv_heads :]

    def _chunk_mask(self, begin: int, rows: int, first_key: int, sliding: bool) -> torch.Tensor:
        """``(rows, keys)`` additive mask of a chunk whose keys begin at position ``first_key``."""
        queries = torch.arange(begin, begin + rows, device=self.device)[:, None]
        keys = torch.arange(first_key, begin + rows, device=self.device)[None, :]
        seen = keys <= queries
        if sliding:
            seen &= keys > queries - self.spec.window
        return torch.where(seen, 0.0, float("-inf"))
