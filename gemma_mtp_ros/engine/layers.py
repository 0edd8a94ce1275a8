# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights of a decoder layer, fused where that saves a product, and its feed-forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .builder import LinearBuilder, table_precision
from .checkpoint import Weights
from .experts import Experts
from .linear import Linear, Precision
from .ops import RmsNorm, gated, gelu_times, interleave
from .spec import LayerSpec, TextSpec


@dataclass(frozen=True)
class Store:
    """Where weights go: their precision and their device."""

    precision: Precision
    device: torch.device

    @property
    def for_tables(self) -> Store:
        """Where embedding tables and heads go."""
        return Store(table_precision(self.precision, self.device), self.device)

    def linear(self, weights: Weights, name: str, out: int, width: int) -> Linear:
        """Read ``(out, width)`` and quantise it on the way, piece by piece if it is large."""
        builder = LinearBuilder(out, width, self.precision, self.device)
        self.add(builder, weights, name, out, width)
        return builder.finish()

    def add(
        self, builder: LinearBuilder, weights: Weights, name: str, out: int, width: int
    ) -> None:
        """Append the rows of a tensor ``(out, width)`` to a weight that is being built."""
        for rows in weights.pieces(name, (out, width)):
            builder.add(rows)


def permute_heads(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of each head of a ``(heads * head_dim, …)`` projection for ``rotate``."""
    order = interleave(head_dim)
    return weight.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1)


class AttentionWeights:
    """Projections and norms of one attention, fused; ``writes`` tells whether it has keys of its
    own.
    """

    def __init__(self, w: Weights, i: int, spec: TextSpec, writes: bool, store: Store) -> None:
        layer, name = spec.layers[i], f"layers.{i}.self_attn."
        head = layer.head_dim
        q_rows, kv_rows = spec.q_heads * head, layer.kv_heads * head
        order = interleave(head)
        builder = LinearBuilder(
            q_rows + (2 * kv_rows if writes else 0), spec.hidden, store.precision, store.device
        )
        q = w.read(name + "q_proj.weight", (q_rows, spec.hidden))
        builder.add(permute_heads(q, head))
        del q
        q_norm = w.read(name + "q_norm.weight", (head,))[order].float()
        norms = [q_norm.expand(spec.q_heads, head)]
        if writes:
            k = w.read(name + "k_proj.weight", (kv_rows, spec.hidden))
            builder.add(permute_heads(k, head))
            v = k if layer.k_eq_v else w.read(name + "v_proj.weight", (kv_rows, spec.hidden))
            builder.add(v)
            k_norm = w.read(name + "k_norm.weight", (head,))[order].float()
            norms += [k_norm.expand(layer.kv_heads, head), torch.ones(layer.kv_heads, head)]
        self.qkv = builder.finish()
        self.norm = RmsNorm(torch.cat(norms), head, spec.eps, store.device)
        self.out = store.linear(w, name + "o_proj.weight", spec.hidden, q_rows)


class LayerWeights:
    """Weights of one decoder layer."""

    def __init__(self, w: Weights, i: int, spec: TextSpec, writes: bool, store: Store) -> None:
        layer, name = spec.layers[i], f"layers.{i}."

        def norm(key: str) -> RmsNorm:
            return RmsNorm(
                w.read(f"{name}{key}.weight", (spec.hidden,)), spec.hidden, spec.eps, store.device
            )

        self.spec: LayerSpec = layer
        self.attention = AttentionWeights(w, i, spec, writes, store)
        self.input_norm = norm("input_layernorm")
        self.post_attention_norm = norm("post_attention_layernorm")
        self.pre_ffn_norm = norm("pre_feedforward_layernorm")
        self.post_ffn_norm = norm("post_feedforward_layernorm")
        builder = LinearBuilder(2 * layer.ffn, spec.hidden, store.precision, store.device)
        store.add(builder, w, name + "mlp.gate_proj.weight", layer.ffn, spec.hidden)
        store.add(builder, w, name + "mlp.up_proj.weight", layer.ffn, spec.hidden)
        self.gate_up = builder.finish()
        self.down = store.linear(w, name + "mlp.down_proj.weight", spec.hidden, layer.ffn)
        self.experts = None if spec.experts is None else Experts(w, i, spec, store)
        self.ple_gate: Linear | None = None
        if spec.ple:
            self.ple_gate = store.linear(
                w, name + "per_layer_input_gate.weight", spec.ple, spec.hidden
            )
            self.ple_projection = store.linear(
                w, name + "per_layer_projection.weight", spec.hidden, spec.ple
            )
            self.ple_norm = norm("post_per_layer_input_norm")
        scalar = w.read(name + "layer_scalar", (1,)).item() if w.has(name + "layer_scalar") else 1.0
        self.scalar: float = scalar

    def feed_forward(self, x: torch.Tensor, ple: torch.Tensor | None) -> torch.Tensor:
        """All of a layer that follows attention: ``(n, hidden)`` and PLE rows ``(n, ple)``."""
        inner = self.down(gated(self.gate_up.rounded(self.pre_ffn_norm(x)), self.spec.ffn))
        if self.experts is not None:
            inner = self.experts.add_to(inner, x)
        if ple is None or self.ple_gate is None:
            return self.post_ffn_norm.add_to(x, inner, self.scalar)
        x = self.post_ffn_norm.add_to(x, inner)
        inner = self.ple_projection(gelu_times(self.ple_gate(x), ple))
        return self.ple_norm.add_to(x, inner, self.scalar)

    def linears(self) -> Iterator[Linear]:
        """Every product, for counting."""
        yield from (self.attention.qkv, self.attention.out, self.gate_up, self.down)
        if self.ple_gate is not None:
            yield from (self.ple_gate, self.ple_projection)
        if self.experts is not None:
            yield from self.experts.linears()
