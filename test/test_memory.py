# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a 2 GB checkpoint while it loads and after, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file
from transformers import Gemma4ForCausalLM

MIB = 2**20
SMALL = "small/target"
PROBE = Path(__file__).parent / "memory_probe.py"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An E-size structure with a large table of per-layer embeddings: 2 GB in bfloat16."""
    folder = tmp_path_factory.mktemp("large")
    small, _ = tiny.make_pair(folder / "small", tiny.E_SIZE)
    large = folder / "target"
    large.mkdir()
    config = tiny.target_config(
        **tiny.E_SIZE.target
        | {
            "vocab_size": 131_072,
            "vocab_size_per_layer_input": 131_072,
            "hidden_size": 1536,
            "intermediate_size": 6144,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "global_head_dim": 256,
            "layer_types": [tiny.SLIDING, tiny.SLIDING, tiny.FULL] * 4,
            "hidden_size_per_layer_input": 128,
            "num_kv_shared_layers": 6,
            "sliding_window": 512,
        }
    )
    with torch.device("meta"):
        model = Gemma4ForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        scale = value.shape[-1] ** -0.5 if value.dim() > 1 else 1.0
        noise = torch.empty(value.shape, dtype=torch.bfloat16)
        tensors[name] = noise.normal_(0.0, scale, generator=generator)
    save_file(tensors, large / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(large)
    for file in small.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            shutil.copy(file, large / file.name)
    file = large / "model.safetensors"
    assert file.stat().st_size > 1.9e9
    with file.open("rb") as opened:  # what writing left in the page cache
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return large


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("weights", "ple"), [("bfloat16", "memory"), ("int8", "disk")])
def test_loading_holds_one_tensor_beside_the_weights(
    checkpoint: Path, weights: str, ple: str
) -> None:
    probe = subprocess.run(
        [sys.executable, str(PROBE), str(checkpoint), weights, ple, str(checkpoint.parent / SMALL)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROBE.parent.parent), *sys.path])},
    )
    assert probe.returncode == 0, probe.stderr
    found = json.loads(probe.stdout.splitlines()[-1])
    held = found["weights"] + found["ple"]
    assert found["peak"] <= held + found["largest_tensor"] + 200 * MIB, found
    assert found["grown"] == pytest.approx(found["total"], rel=0.05), found
    assert found["cached_file"] < 200 * MIB, found
    if ple == "disk":
        assert found["ple"] == 0
