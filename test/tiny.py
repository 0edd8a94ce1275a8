# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiny random Gemma 4 pairs of true structure, saved as Hugging Face folders by transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma4AssistantConfig,
    Gemma4AudioConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4UnifiedAssistantConfig,
    Gemma4UnifiedAudioConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedTextConfig,
    Gemma4UnifiedVisionConfig,
    Gemma4VisionConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

SLIDING, FULL = "sliding_attention", "full_attention"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
WINDOW = 12


@dataclass(frozen=True)
class Kind:
    """A structure to test: overrides of the target's and the drafter's config."""

    name: str
    target: dict[str, Any] = field(default_factory=dict)
    drafter: dict[str, Any] = field(default_factory=dict)
    unified: bool = False
    """Of the family ``gemma4_unified`` and not ``gemma4``."""
    towers: tuple[str, ...] = ()
    """Other inputs of the multimodal model around the text model: vision, audio."""
    shard: str = "1GB"
    """Largest file of weights."""
    branches: float = 1.0
    """Weight of what attention and feed-forward add: with little, greedy text repeats itself."""


CENTROIDS = {"use_ordered_embeddings": True, "num_centroids": 32, "centroid_intermediate_top_k": 6}
NO_PLE = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}


def layers(sliding: int, periods: int) -> dict[str, Any]:
    """``periods`` times so many sliding layers and a full one."""
    types = ([SLIDING] * sliding + [FULL]) * periods
    return {"num_hidden_layers": len(types), "layer_types": types}


def heads(queries: int, sliding: int, full: int) -> dict[str, Any]:
    """Query heads, and key heads of sliding and of full layers that differ or share K and V."""
    return {
        "num_attention_heads": queries,
        "num_key_value_heads": sliding,
        "num_global_key_value_heads": full,
        "attention_k_eq_v": True,
    }


FOUR = layers(3, 1)
"""Every released drafter: three sliding layers and a full one."""

E2B = Kind(
    "e2b",
    {
        **layers(4, 2),
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 5,
        "use_double_wide_mlp": True,
    },
    {**FOUR, **CENTROIDS, "num_key_value_heads": 1},
    towers=("vision", "audio"),
)
E4B = Kind(
    "e4b",
    {**layers(5, 2), "num_attention_heads": 8, "num_kv_shared_layers": 6},
    {**FOUR, **CENTROIDS},
)
UNIFIED_12B = Kind(
    "12b",
    {**NO_PLE, **layers(5, 1), **heads(8, 4, 1)},
    {**FOUR, **heads(8, 4, 1)},
    unified=True,
    towers=("vision", "audio"),
    branches=3.0,
)
DENSE_31B = Kind(
    "31b",
    {**NO_PLE, **layers(5, 2), **heads(8, 4, 1)},
    {**FOUR, **heads(8, 4, 1)},
    shard="150KB",
    branches=3.0,
)
EXPERTS_26B = Kind(
    "26b-a4b",
    {
        **NO_PLE,
        **layers(5, 1),
        **heads(8, 4, 2),
        "intermediate_size": 40,
        "enable_moe_block": True,
        "num_experts": 16,
        "top_k_experts": 3,
        "moe_intermediate_size": 24,
    },
    {**FOUR, **heads(8, 4, 2)},
    towers=("vision",),
    shard="300KB",
    branches=3.0,
)
RELEASED = [E2B, E4B, UNIFIED_12B, DENSE_31B, EXPERTS_26B]
"""The five released pairs, narrow and shallow."""

E_SIZE = Kind(
    "e-size",  # six layers, and layers that share the keys of one that is not the last of its kind
    {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8},
    CENTROIDS,
)
PLAIN = Kind("plain", NO_PLE)
K_EQ_V = Kind(
    "k-eq-v",
    {**NO_PLE, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    {"num_global_key_value_heads": 1, "attention_k_eq_v": True},
)
UNTIED = Kind("untied", {**NO_PLE, "tie_word_embeddings": False})
UNIFIED_TEXT = Kind("unified-text", UNIFIED_12B.target, UNIFIED_12B.drafter, unified=True)
KINDS = [*RELEASED, E_SIZE, UNTIED, UNIFIED_TEXT]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte tokenizer (each byte a token) with Gemma 4's turn markers: 5 + 256 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + alphabet)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        extra_special_tokens=["<|turn>", "<turn|>"],
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


VOCAB = 288
"""Vocabulary of the tiny models; a multiple of the clusters, larger than the tokenizer's."""


def target_config(unified: bool = False, **overrides: Any) -> PreTrainedConfig:
    """A text model of six narrow layers."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": [SLIDING, SLIDING, SLIDING, FULL, SLIDING, FULL],
        "sliding_window": WINDOW,
        "final_logit_softcapping": 30.0,
        "max_position_embeddings": 4096,
        "eos_token_id": [1, 4],
    }
    if unified:
        overrides.pop("hidden_size_per_layer_input", None)
        return Gemma4UnifiedTextConfig(**{**values, **overrides})
    ple = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8}
    return Gemma4TextConfig(**{**values, **ple, **overrides})


def with_towers(text: PreTrainedConfig, unified: bool, towers: tuple[str, ...]) -> PreTrainedConfig:
    """The config of the multimodal model around a text model."""
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if unified:
        vision = Gemma4UnifiedVisionConfig(
            patch_size=2, pooling_kernel_size=2, mm_embed_dim=16, mm_posemb_size=8
        )
        audio: PreTrainedConfig = Gemma4UnifiedAudioConfig(audio_embed_dim=16)
        return Gemma4UnifiedConfig(text_config=text, vision_config=vision, audio_config=audio)
    vision = Gemma4VisionConfig(
        **small, intermediate_size=32, num_key_value_heads=2, head_dim=8, position_embedding_size=16
    )
    audio = Gemma4AudioConfig(**small, output_proj_dims=16, subsampling_conv_channels=[4, 4])
    return Gemma4Config(
        text_config=text,
        vision_config=vision if "vision" in towers else None,
        audio_config=audio if "audio" in towers else None,
        tie_word_embeddings=text.tie_word_embeddings,
    )


def drafter_config(target: PreTrainedConfig, **overrides: Any) -> PreTrainedConfig:
    """A drafter of three narrow layers for a target's text model."""
    unified = isinstance(target, Gemma4UnifiedTextConfig)
    head = {key: overrides.pop(key) for key in CENTROIDS if key in overrides}
    values: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": [SLIDING, SLIDING, FULL],
        "sliding_window": target.sliding_window,
        "max_position_embeddings": target.max_position_embeddings,
        **overrides,
    }
    values["num_kv_shared_layers"] = values["num_hidden_layers"]
    backbone = {"backbone_hidden_size": target.hidden_size, **head}
    if unified:
        text: PreTrainedConfig = Gemma4UnifiedTextConfig(**values)
        return Gemma4UnifiedAssistantConfig(text_config=text, **backbone)
    text = Gemma4TextConfig(
        **{"vocab_size_per_layer_input": 0, "hidden_size_per_layer_input": 0, **values}
    )
    return Gemma4AssistantConfig(text_config=text, **backbone)


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int, branches: float = 1.0) -> None:
    """Random weights under which attention and logits behave: queries short, logits spread.

    :param branches: weight of what attention and feed-forward add to the residual.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("q_norm.weight"):
            value.fill_(1.5 / value.shape[0] ** 0.5)
        elif name.endswith("layer_scalar"):
            value.fill_(0.9)
        elif name.endswith("token_ordering"):
            value.copy_(torch.randperm(value.shape[0], generator=generator))
        elif "norm" in name or name.endswith(("router.scale", "per_expert_scale")):
            value.copy_(1.0 + 0.2 * torch.randn(value.shape, generator=generator))
            if name.endswith(
                ("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")
            ):
                value.mul_(branches)
        elif value.is_floating_point() and value.dim() in (2, 3):
            scale = value.shape[-1] ** -0.5
            if "embed_tokens" in name:
                scale *= 2.0
            if "router.proj" in name:
                scale = 1.0  # the router scales its input down itself
            value.copy_(torch.randn(value.shape, generator=generator) * scale)


def save_target(
    folder: Path,
    *,
    seed: int = 0,
    generation: dict[str, Any] | None = None,
    unified: bool = False,
    towers: tuple[str, ...] = (),
    shard: str = "1GB",
    branches: float = 1.0,
    **overrides: Any,
) -> Path:
    """Make a random target with tokenizer and template in ``folder``."""
    config = target_config(unified, **overrides)
    if towers:
        config = with_towers(config, unified, towers)
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, seed, branches)
    model.save_pretrained(folder, max_shard_size=shard)
    tokenizer().save_pretrained(folder)
    values = {"bos_token_id": 2, "eos_token_id": [1, 4], "pad_token_id": 0, **(generation or {})}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def save_drafter(folder: Path, target: Path, *, seed: int = 1, **overrides: Any) -> Path:
    """Make a random drafter for the target in ``target``."""
    text = AutoConfig.from_pretrained(target).get_text_config()
    model = AutoModelForCausalLM.from_config(drafter_config(text, **overrides))
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder


def make_pair(
    folder: Path, kind: Kind = E_SIZE, *, seed: int = 0, **generation: Any
) -> tuple[Path, Path]:
    """A random target and a random drafter for it: ``(target, drafter)`` folders."""
    target = save_target(
        folder / "target",
        seed=seed,
        generation=generation,
        unified=kind.unified,
        towers=kind.towers,
        shard=kind.shard,
        branches=kind.branches,
        **kind.target,
    )
    drafter = save_drafter(folder / "drafter", target, seed=seed + 1, **kind.drafter)
    return target, drafter


def reference(folder: Path | str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """What transformers makes of a target's or a drafter's folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if getattr(model.config.get_text_config(), "enable_moe_block", False):
        model.set_experts_implementation("eager")  # the grouped product knows no float64
    return model.to(dtype).eval()
