# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes that the engine takes, from sizes alone: nothing is read, nothing is allocated.

``gemma-mtp plan`` asks for models that are not there yet, configure refuses with it what cannot
fit. Weights are counted as the engine fuses them, since their shape decides what a GPU can keep
quantised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch

from ..api import EngineConfig, MemoryUse
from .attention import MASK_BYTES
from .builder import linear_bytes, table_precision
from .cache import KV_DTYPES, ROWS, cache_bytes
from .experts import check_experts
from .linear import WORKSPACE as UNPACKED_VALUES
from .linear import Precision
from .ple import SMALL_BYTES
from .spec import DrafterSpec, TextSpec
from .target import storage_dtype
from .token_masks import BYTES_EACH

FLOAT = 4
INDEX = 8
"""Bytes of a float32 and of a token id."""

CUBLAS_BYTES = 32 * 2**20
"""Workspace that cuBLAS keeps for the stream that everything is recorded on (``graphs``)."""

MIB = 2**20

Kind = Literal["weight", "table", "router", "experts"]


class Part(NamedTuple):
    """One weight ``(out, width)`` as the engine holds it.

    ``table``: an embedding table or a head, ``router``: float32 always, ``experts``: of all experts
    of a layer.
    """

    name: str
    out: int
    width: int
    kind: Kind = "weight"

    def bytes(self, precision: Precision, device: torch.device) -> int:
        """Memory of the weight where ``precision`` is asked for.

        :raises GemmaMtpError: when the device has no product of this precision.
        """
        if self.kind == "router":
            return self.out * self.width * FLOAT
        if self.kind == "table":
            precision = table_precision(precision, device)
        return linear_bytes(self.out, self.width, precision, device)


def layer_parts(spec: TextSpec, i: int, writes: bool) -> Iterator[Part]:
    """Weights of layer ``i``; ``writes``: it has keys of its own."""
    layer, hidden, name = spec.layers[i], spec.hidden, f"layers.{i}."
    q_rows, kv_rows = spec.q_heads * layer.head_dim, layer.kv_heads * layer.head_dim
    yield Part(name + "qkv", q_rows + (2 * kv_rows if writes else 0), hidden)
    yield Part(name + "out", hidden, q_rows)
    yield Part(name + "gate_up", 2 * layer.ffn, hidden)
    yield Part(name + "down", hidden, layer.ffn)
    if spec.ple:
        yield Part(name + "ple_gate", spec.ple, hidden)
        yield Part(name + "ple_projection", hidden, spec.ple)
    if spec.experts is not None:
        count, ffn = spec.experts.count, spec.experts.ffn
        yield Part(name + "router", count, hidden, "router")
        yield Part(name + "experts.gate_up", count * 2 * ffn, hidden, "experts")
        yield Part(name + "experts.down", count * hidden, ffn, "experts")


def target_parts(spec: TextSpec) -> Iterator[Part]:
    """Weights of a target, its table of per-layer embeddings aside."""
    yield Part("embed_tokens", spec.vocab, spec.hidden, "table")
    if not spec.tied:
        yield Part("lm_head", spec.vocab, spec.hidden, "table")
    if spec.ple:
        yield Part("per_layer_model_projection", len(spec.layers) * spec.ple, spec.hidden)
    for i, layer in enumerate(spec.layers):
        yield from layer_parts(spec, i, layer.kv_source == i)


def drafter_parts(spec: DrafterSpec) -> Iterator[Part]:
    """Weights of a drafter."""
    body = spec.body
    yield Part("head", body.vocab, body.hidden, "table")
    if spec.centroids:
        yield Part("centroids", spec.centroids, body.hidden)
    yield Part("pre_projection", body.hidden, 2 * spec.backbone)
    yield Part("post_projection", spec.backbone, body.hidden)
    for i in range(len(body.layers)):
        yield from layer_parts(body, i, False)


def target_bytes(spec: TextSpec, precision: Precision, device: torch.device) -> int:
    """Memory of a target's weights, its table of per-layer embeddings aside.

    :raises GemmaMtpError: when the device has no product of this precision.
    """
    if spec.experts is not None:
        check_experts(precision, device)
    return sum(part.bytes(precision, device) for part in target_parts(spec))


def drafter_bytes(spec: DrafterSpec, precision: Precision, device: torch.device) -> int:
    """Memory of a drafter's weights and of the clusters of its head.

    :raises GemmaMtpError: when the device has no product of this precision.
    """
    clusters = spec.body.vocab * INDEX if spec.centroids else 0
    return clusters + sum(part.bytes(precision, device) for part in drafter_parts(spec))


def vector_bytes(spec: TextSpec, *, writes: bool = True) -> int:
    """Memory of norms and scales, which :class:`MemoryUse` does not count: they are float32.

    :param writes: whether layers have keys of their own; a drafter's have none.
    """
    total = spec.hidden + spec.ple
    for i, layer in enumerate(spec.layers):
        kv_heads = 2 * layer.kv_heads if writes and layer.kv_source == i else 0
        total += 4 * spec.hidden + layer.head_dim * (spec.q_heads + kv_heads)
        total += spec.hidden if spec.ple else 0
        if spec.experts is not None:
            total += 4 * spec.hidden + spec.experts.count
    return FLOAT * total


def ple_bytes(spec: TextSpec, precision: str) -> int:
    """Memory of the table of per-layer embeddings, were it in memory."""
    return spec.ple_vocab * len(spec.layers) * spec.ple * storage_dtype(precision).itemsize


def ple_in_memory(spec: TextSpec, where: str, precision: str) -> bool:
    """Whether the table of per-layer embeddings is kept in memory."""
    if not spec.ple or where != "auto":
        return bool(spec.ple) and where == "memory"
    return ple_bytes(spec, precision) <= SMALL_BYTES


def workspace_bytes(spec: TextSpec, precision: Precision, chunk: int, context: int) -> int:
    """Largest temporaries of a prefill chunk and of a pass; an estimate."""
    widest = max(layer.ffn for layer in spec.layers)
    heads = max(layer.head_dim * (spec.q_heads + 2 * layer.kv_heads) for layer in spec.layers)
    ple = len(spec.layers) * spec.ple
    row = 4 * (3 * spec.hidden + 3 * widest + 2 * heads + 3 * ple)
    kv = max(2 * layer.kv_heads * layer.head_dim for layer in spec.layers)
    keys = min(context, spec.window + chunk)
    # A product of many rows unpacks a part of its weight.
    unpacked = 2 * UNPACKED_VALUES if precision in ("int8", "int4") else 0
    return chunk * row + 2 * 4 * kv * keys + MASK_BYTES + 3 * 4 * ROWS * spec.vocab + unpacked


def recorded_bytes(spec: TextSpec, drafter: DrafterSpec | None, precision: Precision) -> int:
    """Fixed buffers of recorded passes and what their graphs keep, on a GPU; an estimate.

    Chosen experts are copied before they are multiplied: the graphs keep room for the copies.
    """
    row = spec.hidden + spec.vocab + len(spec.layers) * spec.ple
    total = CUBLAS_BYTES + ROWS * FLOAT * row
    if drafter is not None:
        total += FLOAT * drafter.backbone + INDEX * drafter.body.vocab
    if spec.experts is not None:
        expert = 3 * spec.experts.ffn * spec.hidden * storage_dtype(precision).itemsize
        total += ROWS * spec.experts.top_k * expert
    return total


def kv_dtype_of(config: EngineConfig) -> Literal["float32", "bfloat16", "int8"]:
    """What keys and values are kept in."""
    if config.kv_dtype != "auto":
        return config.kv_dtype
    return "float32" if config.weights == "float32" else "bfloat16"


def drafter_precision(config: EngineConfig) -> Precision:
    """What the drafter's weights are kept in."""
    return config.weights if config.drafter_weights == "same" else config.drafter_weights


def context_of(spec: TextSpec, config: EngineConfig) -> int:
    """Most tokens of prompt and answer together."""
    return min(config.max_context, spec.max_positions)


def kv_bytes(spec: TextSpec, config: EngineConfig) -> int:
    """Memory of keys and values at the full context."""
    return cache_bytes(spec, context_of(spec, config), KV_DTYPES[kv_dtype_of(config)])


def mask_bytes(spec: TextSpec, config: EngineConfig) -> int:
    """What structured output knows of every token of the vocabulary, in the CPU's memory."""
    return spec.vocab * BYTES_EACH if config.structured_output else 0


def held_workspace_bytes(spec: TextSpec, config: EngineConfig) -> int:
    """Workspace of a configuration, recorded passes aside."""
    context = context_of(spec, config)
    temporaries = workspace_bytes(spec, config.weights, config.prefill_chunk, context)
    return temporaries + mask_bytes(spec, config)


def planned(
    spec: TextSpec, drafter: DrafterSpec | None, config: EngineConfig, device: torch.device
) -> MemoryUse:
    """What the engine will hold with this configuration, cached prefixes at their bound.

    :raises GemmaMtpError: when the device has no product of a precision asked for.
    """
    precision = config.weights
    workspace = held_workspace_bytes(spec, config)
    if device.type == "cuda":
        workspace += recorded_bytes(spec, drafter, precision)
    in_memory = ple_in_memory(spec, config.ple, precision)
    return MemoryUse(
        weights=target_bytes(spec, precision, device),
        drafter=0 if drafter is None else drafter_bytes(drafter, drafter_precision(config), device),
        ple=ple_bytes(spec, precision) if in_memory else 0,
        kv=kv_bytes(spec, config),
        snapshots=config.cache_max_mib * MIB,
        workspace=workspace,
    )


def needed(
    spec: TextSpec, drafter: DrafterSpec | None, config: EngineConfig, device: torch.device
) -> int:
    """Bytes that must be free before anything is read. Cached prefixes are not among them: they
    give way when memory is short.

    :raises GemmaMtpError: when the device has no product of a precision asked for.
    """
    use = planned(spec, drafter, config, device)
    vectors = vector_bytes(spec)
    if drafter is not None:
        vectors += vector_bytes(drafter.body, writes=False)
    return use.total - use.snapshots + vectors


def row_bytes(spec: TextSpec, dtype: torch.dtype) -> dict[bool, int]:
    """Bytes of keys and values that one layer of each kind reads for one position, by whether it is
    sliding.
    """
    scale = FLOAT if dtype == torch.int8 else 0
    return {
        layer.sliding: 2 * layer.kv_heads * (layer.head_dim * dtype.itemsize + scale)
        for layer in spec.layers
    }


def pass_bytes(
    spec: TextSpec,
    precision: Precision,
    kv_dtype: str,
    device: torch.device,
    position: int,
    rows: int = 1,
) -> float:
    """Bytes of weights, keys and values that a target pass of ``rows`` rows reads.

    Every weight once; of embedding tables, which are looked up, nothing. Of experts those that some
    row chose, if rows choose independently; a GPU copies each row's own, so that they are read
    twice and written once.
    """
    head = next(part for part in target_parts(spec) if part.kind == "table")
    total = float(head.bytes(precision, device))
    chosen = 0.0
    if spec.experts is not None:
        count, top_k = spec.experts.count, spec.experts.top_k
        chosen = 1.0 - (1.0 - top_k / count) ** rows
        if device.type != "cpu":
            chosen = 3.0 * rows * top_k / count
    for part in target_parts(spec):
        if part.kind != "table":
            share = chosen if part.kind == "experts" else 1.0
            total += share * part.bytes(precision, device)
    row = row_bytes(spec, KV_DTYPES[kv_dtype])
    for layer in spec.layers:
        seen = position + rows
        total += (min(seen, spec.window + rows - 1) if layer.sliding else seen) * row[layer.sliding]
    return total


def draft_bytes(
    drafter: DrafterSpec,
    target: TextSpec,
    precision: Precision,
    kv_dtype: str,
    device: torch.device,
    position: int,
) -> float:
    """Bytes that one draft step reads: weights, of a centroid head the clusters it opens, and the
    target's keys and values.
    """
    total = 0.0
    for part in drafter_parts(drafter):
        share = 1.0
        if part.name == "head" and drafter.centroids:
            share = drafter.centroid_top_k / drafter.centroids
        total += share * part.bytes(precision, device)
    row = row_bytes(target, KV_DTYPES[kv_dtype])
    for layer in drafter.body.layers:
        seen = min(position, target.window) if layer.sliding else position
        total += seen * row[layer.sliding]
    return total
