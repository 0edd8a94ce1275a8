# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a ``config.json`` means for the forward pass: sizes, layer kinds, who reads whose keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..api import CheckpointError

TARGET_TYPES = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"}
DRAFTER_TYPES = {"gemma4_assistant", "gemma4_unified_assistant"}

DRAFT_POSITION_OFFSET = 0
"""Position of a drafter's queries, from the count of committed rows.

transformers, llama.cpp and OpenVINO GenAI use 0 (the place of the token not yet processed);
vLLM, SGLang and mlx-vlm use -1.
"""


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer."""

    sliding: bool
    head_dim: int
    kv_heads: int
    ffn: int
    kv_source: int
    """Index of the layer whose keys and values this one reads (itself, if it writes its own)."""
    k_eq_v: bool
    """Values are the (unrotated, norm-only) key projection."""


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of one layer type; ``partial`` < 1 leaves the slow pairs unrotated."""

    theta: float
    partial: float = 1.0
    factor: float = 1.0

    def inv_freq(self, head_dim: int) -> torch.Tensor:
        """Angles per position, float32 ``(head_dim / 2,)``.

        The "proportional" kind divides by the whole head dimension and zeroes the rest
        (transformers ``_compute_proportional_rope_parameters``).
        """
        rotated = int(self.partial * head_dim // 2)
        steps = torch.arange(0, 2 * rotated, 2, dtype=torch.int64).float() / head_dim
        inv = torch.zeros(head_dim // 2)
        inv[:rotated] = 1.0 / (self.theta**steps) / self.factor
        return inv


@dataclass(frozen=True)
class ExpertSpec:
    """The mixture of experts beside the dense feed-forward of every layer."""

    count: int
    top_k: int
    """Experts chosen for each token."""
    ffn: int
    """Width of one expert."""


@dataclass(frozen=True)
class TextSpec:
    """A Gemma 4 text decoder, target or drafter body."""

    vocab: int
    hidden: int
    q_heads: int
    layers: tuple[LayerSpec, ...]
    window: int
    eps: float
    softcap: float | None
    ple: int
    ple_vocab: int
    tied: bool
    rope_sliding: RopeSpec
    rope_full: RopeSpec
    max_positions: int
    experts: ExpertSpec | None = None

    def rope(self, sliding: bool) -> RopeSpec:
        """Rotary parameters of a layer type."""
        return self.rope_sliding if sliding else self.rope_full

    def last_writer(self, sliding: bool) -> int:
        """Index of the last layer of this type that writes keys and values: the drafter reads
        it.
        """
        return max(
            i
            for i, layer in enumerate(self.layers)
            if layer.sliding == sliding and layer.kv_source == i
        )

    @property
    def first_shared(self) -> int:
        """Index of the first layer that only reads others' keys (the layer count, if none)."""
        writers = [i for i, layer in enumerate(self.layers) if layer.kv_source == i]
        return writers[-1] + 1


@dataclass(frozen=True)
class DrafterSpec:
    """The MTP assistant: a body without keys of its own, and its head."""

    body: TextSpec
    backbone: int
    centroids: int
    """Number of clusters of the ordered head; 0 for a plain head."""
    centroid_top_k: int


def _rope(params: Any, default_theta: float, default_partial: float) -> RopeSpec:
    params = params or {}
    kind = params.get("rope_type", "default")
    if kind not in ("default", "proportional"):
        raise CheckpointError(
            f"rope_type {kind!r} is not one that Gemma 4 text models use (default, proportional); "
            "use a Gemma 4 checkpoint"
        )
    proportional = kind == "proportional"
    return RopeSpec(
        theta=float(params.get("rope_theta", default_theta)),
        partial=float(params.get("partial_rotary_factor", default_partial))
        if proportional
        else 1.0,
        factor=float(params.get("factor", 1.0)) if proportional else 1.0,
    )


def _experts(config: Any) -> ExpertSpec | None:
    if not getattr(config, "enable_moe_block", False):
        return None
    spec = ExpertSpec(
        config.num_experts or 0, config.top_k_experts or 0, config.moe_intermediate_size or 0
    )
    if not (1 <= spec.top_k <= spec.count and spec.ffn >= 1):
        raise CheckpointError(
            f"the mixture of experts chooses {spec.top_k} of {spec.count} experts of width "
            f"{spec.ffn}, which cannot be; the config.json is damaged, download it again"
        )
    return spec


def text_spec(config: Any, *, shared_all: bool = False) -> TextSpec:
    """Read a transformers Gemma 4 text config.

    :param shared_all: for a drafter body, whose layers all read the target's keys.
    :raises CheckpointError: for structures that this engine does not run.
    """
    if config.hidden_activation != "gelu_pytorch_tanh":
        raise CheckpointError(
            f"hidden_activation {config.hidden_activation!r} is not gelu_pytorch_tanh; "
            "use a Gemma 4 checkpoint"
        )
    if getattr(config, "attention_bias", False):
        raise CheckpointError(
            "attention_bias is true, which no Gemma 4 checkpoint has; use one of those"
        )
    if getattr(config, "use_bidirectional_attention", None) == "all":
        raise CheckpointError(
            "use_bidirectional_attention is 'all', which is for embedding models, not for writing "
            "text; use a Gemma 4 checkpoint that generates"
        )
    count = config.num_hidden_layers
    kinds = [kind == "sliding_attention" for kind in config.layer_types]
    first_shared = 0 if shared_all else count - config.num_kv_shared_layers
    layers = []
    for i in range(count):
        per_layer = config.per_layer_config[i]
        if i < first_shared or shared_all:
            source = i
        else:
            source = max((j for j in range(first_shared) if kinds[j] == kinds[i]), default=-1)
            if source < 0:
                raise CheckpointError(
                    f"layer {i} shares keys of a type that no earlier layer writes; "
                    "the config.json is damaged, download it again"
                )
        wide = 2 if config.use_double_wide_mlp and i >= first_shared and not shared_all else 1
        layers.append(
            LayerSpec(
                sliding=kinds[i],
                head_dim=per_layer.head_dim,
                kv_heads=per_layer.num_key_value_heads,
                ffn=config.intermediate_size * wide,
                kv_source=source,
                k_eq_v=bool(config.attention_k_eq_v) and not kinds[i],
            )
        )
    rope = config.rope_parameters or {}
    return TextSpec(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        q_heads=config.num_attention_heads,
        layers=tuple(layers),
        window=config.sliding_window,
        eps=config.rms_norm_eps,
        softcap=config.final_logit_softcapping,
        ple=getattr(config, "hidden_size_per_layer_input", 0) or 0,
        ple_vocab=getattr(config, "vocab_size_per_layer_input", 0) or 0,
        tied=bool(config.tie_word_embeddings),
        rope_sliding=_rope(rope.get("sliding_attention"), 10_000.0, 1.0),
        rope_full=_rope(rope.get("full_attention"), 1_000_000.0, 0.25),
        max_positions=config.max_position_embeddings,
        experts=_experts(config),
    )


def drafter_spec(config: Any) -> DrafterSpec:
    """Read a transformers Gemma 4 assistant config.

    :raises CheckpointError: for structures that this engine does not run.
    """
    ordered = bool(config.use_ordered_embeddings)
    body = text_spec(config.get_text_config(), shared_all=True)
    count, opened = config.num_centroids, config.centroid_intermediate_top_k
    if ordered and not (1 <= opened <= count and body.vocab % count == 0):
        raise CheckpointError(
            f"the centroid head opens {opened} of {count} clusters of a vocabulary of "
            f"{body.vocab}, which cannot be; the config.json is damaged, download it again"
        )
    return DrafterSpec(
        body=body,
        backbone=config.backbone_hidden_size,
        centroids=count if ordered else 0,
        centroid_top_k=opened if ordered else 0,
    )


def check_pair(target: TextSpec, drafter: DrafterSpec, target_name: str, drafter_name: str) -> None:
    """Refuse a drafter that was not made for this target.

    :raises CheckpointError: naming the first size that differs.
    """
    pairs = [
        ("hidden size", drafter.backbone, target.hidden),
        ("vocabulary", drafter.body.vocab, target.vocab),
    ]
    for sliding, word in ((True, "sliding"), (False, "full")):
        kinds = [layer for layer in drafter.body.layers if layer.sliding == sliding]
        if not kinds:
            continue
        if not any(layer.sliding == sliding for layer in target.layers):
            raise CheckpointError(
                f"drafter {drafter_name} reads {word} layers, which target {target_name} has "
                "none of; "
                "use the drafter that was trained with this target"
            )
        source = target.layers[target.last_writer(sliding)]
        pairs.append((f"{word} head dimension", kinds[0].head_dim, source.head_dim))
        if drafter.body.q_heads % source.kv_heads:
            raise CheckpointError(
                f"drafter {drafter_name} has {drafter.body.q_heads} query heads, which the "
                "target's "
                f"{source.kv_heads} key heads do not divide; use the drafter of target "
                f"{target_name}"
            )
    for what, ours, theirs in pairs:
        if ours != theirs:
            raise CheckpointError(
                f"drafter {drafter_name} was made for a target with {what} {ours}, but "
                f"{target_name} "
                f"has {theirs}; use the drafter that was trained with this target"
            )
