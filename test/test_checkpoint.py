# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Damaged and mismatched checkpoints: one sentence that names the value and the remedy."""

from __future__ import annotations

import json
import shutil
import struct

import pytest
import tiny
import torch
from engine_tools import load
from safetensors.torch import load_file, save_file

from gemma_mtp_ros.api import CheckpointError, ErrorCode, GemmaMtpError
from gemma_mtp_ros.engine.checkpoint import INDEX, SINGLE, check_memory


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    tiny.make_pair(folder)
    return folder


@pytest.fixture
def pair(made, tmp_path):
    shutil.copytree(made, tmp_path / "pair")
    return tmp_path / "pair" / "target", tmp_path / "pair" / "drafter"


def sentence(target, drafter=None, **config) -> str:
    """The refusal: one line, ending with a remedy."""
    with pytest.raises(GemmaMtpError) as caught:
        load(target, drafter, **config)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message
    return message


def edit_config(folder, **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.update(changes)
    file.write_text(json.dumps(config))


def edit_tensor(folder, name, change):
    tensors = load_file(folder / SINGLE)
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def test_missing_folder(tmp_path):
    assert "does not exist" in sentence(tmp_path / "nowhere")


def test_a_hub_name_that_was_not_downloaded(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="download it"):
        load("nobody/no-such-model")


def test_no_model_set():
    with pytest.raises(CheckpointError, match="no model is set"):
        load("")


def test_missing_config(pair):
    (pair[0] / "config.json").unlink()
    assert "has no config.json" in sentence(pair[0])


def test_damaged_config(pair):
    (pair[0] / "config.json").write_text('{"model_type": ')
    assert "cannot be read" in sentence(pair[0])


def test_wrong_field_in_config(pair):
    edit_config(pair[0], hidden_size="wide")
    assert "not a valid gemma4_text config" in sentence(pair[0])


def test_missing_weights(pair):
    (pair[0] / SINGLE).unlink()
    assert f"lacks {SINGLE}" in sentence(pair[0])


def test_missing_tokenizer(pair):
    (pair[0] / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in sentence(pair[0])


def test_truncated_weights(pair):
    file = pair[0] / SINGLE
    file.write_bytes(file.read_bytes()[:-100])
    assert "cut short or damaged" in sentence(pair[0])


def test_header_length_beyond_the_file(pair):
    file = pair[0] / SINGLE
    file.write_bytes(struct.pack("<Q", 2**40) + file.read_bytes()[8:])
    assert "cut short or damaged" in sentence(pair[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite(pair, value):
    def spoil(tensor):
        tensor[1, 1] = value
        return tensor

    name = "model.layers.2.mlp.up_proj.weight"
    edit_tensor(pair[0], name, spoil)
    assert "layers.2.mlp.up_proj.weight" in sentence(pair[0])


def test_a_tensor_of_another_shape(pair):
    edit_tensor(pair[0], "model.norm.weight", lambda t: torch.ones(7))
    assert "do not belong together" in sentence(pair[0])


def test_a_missing_tensor(pair):
    tensors = load_file(pair[0] / SINGLE)
    del tensors["model.layers.3.self_attn.o_proj.weight"]
    save_file(tensors, pair[0] / SINGLE)
    assert "lacks the tensor layers.3.self_attn.o_proj.weight" in sentence(pair[0])


def test_a_drafter_of_another_hidden_size(pair, tmp_path):
    other = tiny.save_target(tmp_path / "other", hidden_size=64)
    drafter = tiny.save_drafter(tmp_path / "drafter", other)
    message = sentence(pair[0], drafter)
    assert "hidden size 64" in message
    assert "has 48" in message


def test_a_drafter_of_another_vocabulary(pair, tmp_path):
    other = tiny.save_target(tmp_path / "other", vocab_size=320, vocab_size_per_layer_input=320)
    drafter = tiny.save_drafter(tmp_path / "drafter", other)
    assert "vocabulary 320" in sentence(pair[0], drafter)


def test_a_drafter_with_another_head_dimension(pair, tmp_path):
    other = tiny.save_target(tmp_path / "other", head_dim=8)
    drafter = tiny.save_drafter(tmp_path / "drafter", other, head_dim=8)
    assert "sliding head dimension 8" in sentence(pair[0], drafter)


def test_not_a_gemma_4(pair):
    edit_config(pair[0], model_type="llama")
    assert "'llama'" in sentence(pair[0])


def test_target_and_drafter_swapped(pair):
    assert "give a Gemma 4 model checkpoint" in sentence(pair[1])
    assert "give a Gemma 4 drafter checkpoint" in sentence(pair[0], pair[0])


def test_a_mixture_of_experts_is_refused_for_now(pair):
    edit_config(
        pair[0], enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16
    )
    assert "mixture of experts" in sentence(pair[0])


def test_context_is_bounded_by_the_model(pair):
    engine = load(pair[0], max_context=8192)
    assert engine.info.context == 4096
    assert engine.target.cache.max_context == 4096


def test_a_model_that_cannot_fit_is_refused_with_the_numbers(pair):
    reserve = 2**22
    message = sentence(pair[0], memory_reserve_mib=reserve)
    assert f"{reserve} MiB are kept" in message
    with pytest.raises(CheckpointError) as caught:
        check_memory(900 * 2**20, 1000 * 2**20, 200 * 2**20)
    assert caught.value.code == ErrorCode.OUT_OF_MEMORY
    assert "needs 900 MiB" in str(caught.value)
    assert "1000 MiB are available" in str(caught.value)
    check_memory(900 * 2**20, None, 200 * 2**20)


def test_cuda_where_there_is_none(pair):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    assert "sees no CUDA device" in sentence(pair[0], device="cuda")


def test_sharded_weights_load_like_one_file(pair):
    whole = load(pair[0])
    tensors = load_file(pair[0] / SINGLE)
    (pair[0] / SINGLE).unlink()
    names, weight_map = sorted(tensors), {}
    for part in range(3):
        file = f"model-{part + 1:05d}-of-00003.safetensors"
        chosen = {name: tensors[name] for name in names[part::3]}
        save_file(chosen, pair[0] / file)
        weight_map.update(dict.fromkeys(chosen, file))
    (pair[0] / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    sharded = load(pair[0])
    assert torch.equal(whole.target.embedding, sharded.target.embedding)
    assert torch.equal(whole.target.layers[4].down.weight, sharded.target.layers[4].down.weight)
    (pair[0] / "model-00002-of-00003.safetensors").unlink()
    assert "lacks model-00002-of-00003.safetensors" in sentence(pair[0])


def test_progress_is_told_per_tensor(pair):
    from gemma_mtp_ros.api import EngineConfig
    from gemma_mtp_ros.engine.decode import Engine

    told = []
    config = EngineConfig(model=str(pair[0]), drafter=str(pair[1]), max_context=64)
    Engine.load(config, lambda stage, part: told.append((stage, part)))
    parts = [part for stage, part in told if stage == "model"]
    assert parts == sorted(parts)
    assert len(parts) > 50
    assert parts[-1] > 0.95
    assert any(stage == "drafter" for stage, _ in told)
