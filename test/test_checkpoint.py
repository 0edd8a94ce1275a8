# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Damaged and mismatched checkpoints: one sentence that names the value and the remedy."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import struct

import pytest
import tiny
import torch
from engine_tools import load
from safetensors.torch import load_file, save_file

from gemma_mtp_ros.api import CheckpointError, EngineConfig, ErrorCode, GemmaMtpError
from gemma_mtp_ros.engine import tensor_file
from gemma_mtp_ros.engine.checkpoint import INDEX, SINGLE, Weights, check_memory, find_folder
from gemma_mtp_ros.engine.decode import Engine


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


@pytest.mark.parametrize("role", ["model", "drafter"])
def test_a_size_is_told_from_a_folder(role, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        find_folder("e2b", role)
    said = str(caught.value)
    assert said.startswith(f"{role} 'e2b' is a size and no folder")
    assert "gemma-mtp fetch e2b" in said
    assert "google/gemma-4-E2B-it, or its drafter google/gemma-4-E2B-it-assistant" in said


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
    said = sentence(pair[0], pair[0])
    assert "is a whole model (model_type gemma4_text) and no MTP assistant" in said


def test_a_mixture_of_experts_that_cannot_be(pair):
    edit_config(
        pair[0], enable_moe_block=True, num_experts=4, top_k_experts=5, moe_intermediate_size=16
    )
    assert "chooses 5 of 4 experts" in sentence(pair[0])


@pytest.mark.parametrize("changes", [{"num_centroids": 31}, {"centroid_intermediate_top_k": 33}])
def test_a_centroid_head_that_cannot_be(pair, changes):
    edit_config(pair[1], **changes)
    assert "the centroid head opens" in sentence(*pair)


@pytest.mark.parametrize("token", [-1, tiny.VOCAB])
def test_clusters_of_tokens_that_are_none(pair, token):
    edit_tensor(
        pair[1], "masked_embedding.token_ordering", lambda ids: ids.index_fill(0, ids[:1], token)
    )
    assert "outside the vocabulary of 288" in sentence(*pair)


def test_attention_in_both_directions(pair):
    edit_config(pair[0], use_bidirectional_attention="all")
    assert "use_bidirectional_attention is 'all'" in sentence(pair[0])


@pytest.mark.parametrize(
    "quantised",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "compressed-tensors", "format": "pack-quantized"},
        {"quant_method": "torchao"},
    ],
    ids=lambda found: found["quant_method"],
)
def test_weights_that_were_quantised_before(pair, quantised):
    edit_config(pair[0], quantization_config=quantised, hidden_size=1536)
    message = sentence(pair[0])
    assert f"quantised already ({quantised['quant_method']})" in message
    assert "google/gemma-4-E2B-it)" in message


def test_a_drafter_that_was_quantised_before(pair):
    quantised = {"quant_method": "fp8"}
    edit_config(pair[1], quantization_config=quantised, backbone_hidden_size=5376)
    assert "google/gemma-4-31B-it-assistant)" in sentence(*pair)
    edit_config(pair[1], backbone_hidden_size=48)
    assert "(the one it was made from)" in sentence(*pair)


def test_a_tensor_in_a_quantised_form(pair):
    name = "model.layers.1.mlp.down_proj.weight"
    edit_tensor(pair[0], name, lambda tensor: tensor.to(torch.float8_e4m3fn))
    message = sentence(pair[0])
    assert "layers.1.mlp.down_proj.weight" in message
    assert "stored as F8_E4M3" in message


def test_gguf(tmp_path):
    (tmp_path / "gemma-4-E2B-it-Q4_0.gguf").write_bytes(b"GGUF")
    assert "is a GGUF file" in sentence(tmp_path)
    assert "is a GGUF file" in sentence(tmp_path / "gemma-4-E2B-it-Q4_0.gguf")


def edit_header(file, change):
    """Change the header of a safetensors file and keep its length."""
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= length
    file.write_bytes(raw[:8] + text.ljust(length) + raw[8 + length :])


NAME = "model.norm.weight"


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(data_offsets=[0, entry["data_offsets"][1]]),
        lambda entry: entry.update(data_offsets=[o + 4 for o in entry["data_offsets"]]),
        lambda entry: entry.update(data_offsets=entry["data_offsets"][::-1]),
        lambda entry: entry.update(shape=[47]),
        lambda entry: entry.update(dtype="F99"),
    ],
    ids=["overlap", "gap", "reversed", "another size", "unknown dtype"],
)
def test_a_header_that_cannot_be(pair, change):
    edit_header(pair[0] / SINGLE, lambda header: change(header[NAME]))
    assert "cut short or damaged" in sentence(pair[0])


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
    assert torch.equal(whole.target.table.weight, sharded.target.table.weight)
    assert torch.equal(whole.target.layers[4].down.weight, sharded.target.layers[4].down.weight)
    (pair[0] / "model-00002-of-00003.safetensors").unlink()
    assert "lacks model-00002-of-00003.safetensors" in sentence(pair[0])


def test_progress_is_told_per_tensor_and_piece(pair, monkeypatch):
    monkeypatch.setattr(tensor_file, "PIECE", 4096)
    told = []
    config = EngineConfig(model=str(pair[0]), drafter=str(pair[1]), max_context=64)
    Engine.load(config, lambda stage, part: told.append((stage, part)))
    parts = [part for stage, part in told if stage == "model"]
    assert parts == sorted(parts)
    assert len(parts) > 130
    assert parts[-1] == 1.0
    assert any(stage == "drafter" for stage, _ in told)


TABLE = "embed_tokens_per_layer.weight"


@pytest.fixture
def weights(pair):
    return Weights(pair[0], "model")


@pytest.fixture
def table(pair):
    return load_file(pair[0] / SINGLE)["model." + TABLE]


def test_rows_are_read_like_the_whole(weights, table):
    assert torch.equal(weights.read(TABLE, tuple(table.shape)), table)
    assert torch.equal(weights.read_rows(TABLE, 7, 19), table[7:19])
    assert weights.read_rows(TABLE, 5, 5).shape == (0, table.shape[1])
    with pytest.raises(CheckpointError, match="do not belong together"):
        weights.read_rows(TABLE, 0, 1, (288, 1))
    with pytest.raises(IndexError, match="280 to 289"):
        weights.read_rows(TABLE, 280, 289)


def test_rows_on_disk(weights, table):
    rows = weights.rows_on_disk(TABLE, tuple(table.shape))
    assert (rows.count, rows.width, rows.dtype) == (*table.shape, table.dtype)
    ids = [3, 287, 0, 3, 44]
    assert torch.equal(rows.rows(ids), table[ids])
    assert torch.equal(rows.rows([9]), table[9:10])
    out = torch.empty(2, table.shape[1])
    assert rows.rows([1, 2], out) is out
    assert torch.equal(out, table[1:3])
    for wrong in (-1, 288):
        with pytest.raises(IndexError, match=f"row {wrong} of"):
            rows.rows([0, wrong])
    rows.close()
    rows.close()
    with pytest.raises(CheckpointError, match="can no longer be read"):
        rows.rows([1])


def test_rows_on_disk_close_with_their_owner(weights):
    def opened():
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    rows = weights.rows_on_disk(TABLE)
    assert opened() == before + 1
    del rows
    assert opened() == before


def test_rows_on_disk_of_a_file_that_shrinks_or_spoils(pair, table):
    spoilt = table.clone()
    spoilt[5, 1] = float("nan")
    edit_tensor(pair[0], "model." + TABLE, lambda _: spoilt)
    rows = Weights(pair[0], "model").rows_on_disk(TABLE)
    assert torch.equal(rows.rows([4, 6]), table[[4, 6]])
    with pytest.raises(CheckpointError, match=f"{TABLE} of model .* holds NaN or infinity"):
        rows.rows([4, 5])
    os.truncate(pair[0] / SINGLE, 100)
    with pytest.raises(CheckpointError, match="can no longer be read"):
        rows.rows([287])


def test_a_file_cut_short_after_its_header_was_read(pair, weights):
    os.truncate(pair[0] / SINGLE, 20_000)
    with pytest.raises(CheckpointError, match="cut short or damaged"):
        weights.read("norm.weight", (48,))


def test_a_part_only_reads_its_own_bytes(pair, table):
    spoilt = table.clone()
    spoilt[5, 1] = float("inf")
    edit_tensor(pair[0], "model." + TABLE, lambda _: spoilt)
    weights = Weights(pair[0], "model")
    assert torch.equal(weights.read_rows(TABLE, 6, 288), table[6:])
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        weights.read_rows(TABLE, 5, 6)


def cached_bytes(file):
    """Bytes of a file in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = file.stat().st_size
    with file.open("r+b") as raw, mmap.mmap(raw.fileno(), size) as mapped:
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0
        return sum(page & 1 for page in pages) * mmap.PAGESIZE


def test_reading_leaves_nothing_in_the_page_cache(tmp_path, monkeypatch):
    size = 24 * 2**20
    shape = (size // 256, 64)
    name = "model.layers.0.self_attn.q_proj.weight"
    file = tmp_path / SINGLE
    save_file({name: torch.ones(shape), "model.norm.weight": torch.ones(64)}, file)
    with file.open("rb") as raw:
        os.fsync(raw.fileno())
        os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(file):
        pytest.skip("this file system lives in memory or keeps its pages")
    assert file.read_bytes()[-1:]
    assert cached_bytes(file) >= size
    weights = Weights(tmp_path, "model")
    weights.read(name[6:], shape)
    assert cached_bytes(file) < 2**20
    monkeypatch.setattr(tensor_file, "ROW_CACHE", 4 * 2**20)
    rows = weights.rows_on_disk(name[6:])
    for begin in range(0, rows.count, 5000):
        rows.rows(range(begin, min(begin + 5000, rows.count)))
    assert cached_bytes(file) < 8 * 2**20
