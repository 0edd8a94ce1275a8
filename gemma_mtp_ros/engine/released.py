# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the released pairs, so that one can plan before one downloads.

From public copies of the checkpoints' ``config.json`` (tests and documentation of other engines),
each value found in at least two of them; for the longest context of 26B-A4B they say 131,072 and
262,144, of which the latter is taken. No checkpoint was at hand. The number of parameters of each
drafter comes out as published (``test/test_sizes.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .spec import DrafterSpec, TextSpec, drafter_spec, text_spec

SLIDING, FULL = "sliding_attention", "full_attention"
VOCABULARY = 262_144

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "head_dim": 256,
    "global_head_dim": 512,
    "tie_word_embeddings": True,
}
NO_PLE: dict[str, Any] = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
PLE: dict[str, Any] = {
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": VOCABULARY,
}


@dataclass(frozen=True)
class Released:
    """A target and its drafter.

    Attributes:
        size: as in the names of the repositories.
        target: fields of the target's text config that differ from transformers' defaults.
        body: those of the drafter's.
        clusters: of the drafter's head, and how many it opens; None: a plain head.
    """

    size: str
    target: dict[str, Any]
    body: dict[str, Any]
    clusters: tuple[int, int] | None

    @property
    def model(self) -> str:
        """Name of the target's repository."""
        return f"google/gemma-4-{self.size}-it"

    @property
    def drafter(self) -> str:
        """Name of the drafter's repository."""
        return f"{self.model}-assistant"

    @cached_property
    def specs(self) -> tuple[TextSpec, DrafterSpec]:
        """What the engine makes of the configs; reading them takes transformers."""
        target, drafter = self.configs()
        return text_spec(target), drafter_spec(drafter)

    def configs(self) -> tuple[Any, Any]:
        """The target's text config and the drafter's config, of transformers' classes."""
        from transformers import Gemma4AssistantConfig, Gemma4TextConfig

        head: dict[str, Any] = {}
        if self.clusters is not None:
            count, opened = self.clusters
            head = {
                "use_ordered_embeddings": True,
                "num_centroids": count,
                "centroid_intermediate_top_k": opened,
            }
        drafter = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**self.body),
            backbone_hidden_size=self.target["hidden_size"],
            **head,
        )
        return Gemma4TextConfig(**self.target), drafter


def _released(
    size: str,
    shape: tuple[int, int, int],
    period: int,
    heads: tuple[int, int, int | None],
    drafter: tuple[int, int, int],
    *,
    shared: int = 0,
    **more: Any,
) -> Released:
    """:param shape: hidden, layers, feed-forward.
    :param period: layers of which the last is full.
    :param heads: of queries; of keys in sliding layers; in full layers, which then use one
        projection for keys and values (None: as in sliding ones, and two projections).
    :param drafter: hidden, feed-forward, query heads.
    :param shared: last layers that reuse keys and values.
    """
    hidden, layers, ffn = shape
    queries, keys, full_keys = heads
    small = bool(shared)
    common = {
        **COMMON,
        "num_key_value_heads": keys,
        "num_global_key_value_heads": full_keys,
        "attention_k_eq_v": full_keys is not None,
        "sliding_window": 512 if small else 1024,
        "max_position_embeddings": 131_072 if small else 262_144,
    }
    target = {
        **common,
        **(PLE if small else NO_PLE),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": queries,
        "layer_types": ([SLIDING] * (period - 1) + [FULL]) * (layers // period),
        "num_kv_shared_layers": shared,
        "final_logit_softcapping": 30.0,
        **more,
    }
    body = {
        **common,
        **NO_PLE,
        "hidden_size": drafter[0],
        "intermediate_size": drafter[1],
        "num_attention_heads": drafter[2],
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 4,
        "layer_types": [SLIDING] * 3 + [FULL],
    }
    return Released(size, target, body, (2048, 32) if small else None)


RELEASED = (
    _released(
        "E2B",
        (1536, 35, 6144),
        5,
        (8, 1, None),
        (256, 2048, 4),
        shared=20,
        use_double_wide_mlp=True,
    ),
    _released("E4B", (2560, 42, 10_240), 6, (8, 2, None), (256, 2048, 4), shared=18),
    _released("12B", (3840, 48, 15_360), 6, (16, 8, 1), (1024, 8192, 16)),
    _released(
        "26B-A4B",
        (2816, 30, 2112),
        6,
        (16, 8, 2),
        (1024, 8192, 16),
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    _released("31B", (5376, 60, 21_504), 6, (32, 16, 4), (1024, 8192, 32)),
)
"""Smallest first."""


def find_released(name: str) -> Released | None:
    """The pair whose target has this name or size (``E2B``), or None."""
    wanted = name.lower()
    return next((r for r in RELEASED if wanted in (r.model.lower(), r.size.lower())), None)
