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
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
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


E_SIZE = Kind(
    "e-size",  # as E2B: PLE, shared keys, double-wide FFN, centroid head
    {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 8},
    {"use_ordered_embeddings": True, "num_centroids": 32, "centroid_intermediate_top_k": 6},
)
PLAIN = Kind("plain", {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0})
K_EQ_V = Kind(
    "k-eq-v",  # as 12B and 31B: one projection for keys and values of full layers
    {
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
    },
    {"num_global_key_value_heads": 1, "attention_k_eq_v": True},
)
ONE_KV_HEAD = Kind(
    "one-kv-head",
    {"num_key_value_heads": 1, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 4},
    {"num_key_value_heads": 1},
)
UNTIED = Kind(
    "untied",
    {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "tie_word_embeddings": False},
)
KINDS = [E_SIZE, PLAIN, K_EQ_V, ONE_KV_HEAD, UNTIED]


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


def target_config(**overrides: Any) -> Gemma4TextConfig:
    """A target of six narrow layers."""
    values: dict[str, Any] = {
        "vocab_size": VOCAB,
        "vocab_size_per_layer_input": VOCAB,
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
        "hidden_size_per_layer_input": 8,
        "eos_token_id": [1, 4],
    }
    return Gemma4TextConfig(**{**values, **overrides})


def drafter_config(target: Gemma4TextConfig, **overrides: Any) -> Gemma4AssistantConfig:
    """A drafter of three narrow layers for a target."""
    head_keys = ("use_ordered_embeddings", "num_centroids", "centroid_intermediate_top_k")
    head = {key: overrides.pop(key) for key in head_keys if key in overrides}
    values: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "vocab_size_per_layer_input": 0,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "layer_types": [SLIDING, SLIDING, FULL],
        "sliding_window": target.sliding_window,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 3,
        "max_position_embeddings": target.max_position_embeddings,
    }
    return Gemma4AssistantConfig(
        text_config=Gemma4TextConfig(**{**values, **overrides}),
        backbone_hidden_size=target.hidden_size,
        **head,
    )


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int) -> None:
    """Random weights under which attention and logits behave: queries short, logits spread."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("q_norm.weight"):
            value.fill_(1.5 / value.shape[0] ** 0.5)
        elif name.endswith("layer_scalar"):
            value.fill_(0.9)
        elif name.endswith("token_ordering"):
            value.copy_(torch.randperm(value.shape[0], generator=generator))
        elif "norm" in name:
            value.copy_(1.0 + 0.2 * torch.randn(value.shape, generator=generator))
        elif value.is_floating_point() and value.dim() == 2:
            scale = value.shape[1] ** -0.5
            if "embed_tokens" in name:
                scale *= 2.0
            value.copy_(torch.randn(value.shape, generator=generator) * scale)


def save_target(
    folder: Path, *, seed: int = 0, generation: dict[str, Any] | None = None, **overrides: Any
) -> Path:
    """Make a random target with tokenizer and template in ``folder``."""
    model = Gemma4ForCausalLM(target_config(**overrides))
    randomise(model, seed)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    values = {"bos_token_id": 2, "eos_token_id": [1, 4], "pad_token_id": 0, **(generation or {})}
    (folder / "generation_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def save_drafter(folder: Path, target: Path, *, seed: int = 1, **overrides: Any) -> Path:
    """Make a random drafter for the target in ``target``."""
    model = Gemma4AssistantForCausalLM(
        drafter_config(Gemma4TextConfig.from_pretrained(target), **overrides)
    )
    randomise(model, seed)
    model.save_pretrained(folder)
    return folder


def make_pair(
    folder: Path, kind: Kind = E_SIZE, *, seed: int = 0, **generation: Any
) -> tuple[Path, Path]:
    """A random target and a random drafter for it: ``(target, drafter)`` folders."""
    target = save_target(folder / "target", seed=seed, generation=generation, **kind.target)
    drafter = save_drafter(folder / "drafter", target, seed=seed + 1, **kind.drafter)
    return target, drafter
