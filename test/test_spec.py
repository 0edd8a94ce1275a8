# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the engine makes of configs of the released sizes, against transformers' own modules."""

from __future__ import annotations

import pytest
import torch
from tiny import FULL, NO_PLE, SLIDING, heads, layers
from transformers import AutoModelForCausalLM, Gemma4TextConfig, Gemma4UnifiedTextConfig

from gemma_mtp_ros.engine.spec import text_spec

SIZES = {
    "E2B": {
        **layers(4, 7),
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
    },
    "E4B": {
        **layers(5, 7),
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
    },
    "12B": {
        **layers(5, 8),
        **heads(16, 8, 1),
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_kv_shared_layers": 0,
    },
    "26B-A4B": {
        **layers(5, 5),
        **heads(16, 8, 2),
        **NO_PLE,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "31B": {
        **layers(5, 10),
        **heads(32, 16, 4),
        **NO_PLE,
        "hidden_size": 5376,
        "intermediate_size": 21504,
    },
}


@pytest.mark.parametrize("size", SIZES)
def test_every_layer_is_what_transformers_builds(size):
    kind = Gemma4UnifiedTextConfig if size == "12B" else Gemma4TextConfig
    config = kind(**SIZES[size])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config).model
    spec = text_spec(config)
    assert len(spec.layers) == len(model.layers)
    written: dict[bool, int] = {}
    for i, (ours, theirs) in enumerate(zip(spec.layers, model.layers, strict=True)):
        attention = theirs.self_attn
        assert ours.sliding == attention.is_sliding
        assert attention.q_proj.out_features == spec.q_heads * ours.head_dim
        assert attention.head_dim == ours.head_dim == (256 if ours.sliding else 512)
        assert theirs.mlp.down_proj.in_features == ours.ffn
        if attention.is_kv_shared_layer:
            assert ours.kv_source == written[ours.sliding]
        else:
            assert ours.kv_source == i
            written[ours.sliding] = i
            assert attention.k_proj.out_features == ours.kv_heads * ours.head_dim
            assert (attention.v_proj is None) == ours.k_eq_v
        if spec.experts:
            shape = (spec.experts.count, 2 * spec.experts.ffn, spec.hidden)
            assert theirs.experts.gate_up_proj.shape == shape
            assert theirs.router.config.top_k_experts == spec.experts.top_k
    assert spec.first_shared == config.num_hidden_layers - config.num_kv_shared_layers
    for sliding in (True, False):
        store = [mode == "store" for mode in config.kv_sharing_modes]
        assert store[spec.last_writer(sliding)]
    assert (spec.ple > 0) == hasattr(model, "embed_tokens_per_layer")
    if spec.ple:
        shape = (spec.ple_vocab, len(spec.layers) * spec.ple)
        assert model.embed_tokens_per_layer.weight.shape == shape


@pytest.mark.parametrize("kind", [Gemma4TextConfig, Gemma4UnifiedTextConfig])
def test_rotary_frequencies_equal_transformers(kind):
    config = kind(num_hidden_layers=6)
    spec = text_spec(config)
    rotary = AutoModelForCausalLM.from_config(
        kind(num_hidden_layers=6, hidden_size=16, vocab_size=8, vocab_size_per_layer_input=8)
    ).model.rotary_emb
    for layer in spec.layers:
        name = SLIDING if layer.sliding else FULL
        theirs = getattr(rotary, f"{name}_inv_freq")
        assert torch.equal(spec.rope(layer.sliding).inv_freq(layer.head_dim), theirs)
    full = spec.rope(False).inv_freq(512)
    assert int((full > 0).sum()) == 64  # a quarter of the pairs turn
