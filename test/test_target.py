# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The target against transformers: logits no farther from float64 than transformers' own
float32.
"""

from __future__ import annotations

import pytest
import tiny
import torch
from engine_tools import arithmetic, load

from gemma_mtp_ros.engine.cache import ROWS
from gemma_mtp_ros.engine.torch_pass import Masks

PASSES = (3, 8, 1, 5, 2)


MODES = [
    ("kernels", True),
    ("torch", True),
    pytest.param(("torch", False), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=MODES, ids=["kernels", "torch-reproducible", "torch"])
def engine(request, folders):
    name, reproducible = request.param
    with arithmetic(name):
        loaded = load(folders[0], reproducible=reproducible)
        assert loaded.info.reproducible == ("verified" if reproducible else "off")
        yield loaded


@pytest.fixture(scope="module", params=tiny.KINDS, ids=lambda kind: kind.name)
def folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


def reference(folder, ids, dtype):
    """Logits and post-norm states of transformers over the whole sequence."""
    model = tiny.reference(folder, dtype)
    with torch.no_grad():
        out = model(ids[None], use_cache=False, output_hidden_states=True)
    return out.logits[0].double(), out.hidden_states[-1][0].double()


def ours(engine, ids, prompt_length):
    """Chunked prefill, then passes of several widths with a rejected draft between them."""
    target = engine.target
    with torch.inference_mode():
        target.cache.reset()
        chunk = engine.config.prefill_chunk
        for begin in range(0, prompt_length, chunk):
            end = min(begin + chunk, prompt_length)
            out = target.prefill(ids[begin:end], end == prompt_length)
        hidden, logits = [out[0]], [out[1]]
        at = prompt_length
        for width in PASSES:
            wrong = (ids[at : at + 4] + 7) % target.spec.vocab
            target.decode(wrong, at)
            state, rows = target.decode(ids[at : at + width], at)
            hidden.append(state)
            logits.append(rows)
            at += width
            target.cache.commit(at)
    return torch.cat(logits).double(), torch.cat(hidden).double()


@pytest.mark.parametrize("prompt_length", [5, 40])
def test_logits_as_close_to_float64_as_transformers(folders, engine, prompt_length):
    generator = torch.Generator().manual_seed(prompt_length)
    ids = torch.randint(5, 260, (prompt_length + sum(PASSES),), generator=generator)
    exact, exact_hidden = reference(folders[0], ids, torch.float64)
    single, single_hidden = reference(folders[0], ids, torch.float32)
    logits, hidden = ours(engine, ids, prompt_length)
    rows = slice(prompt_length - 1, None)
    for mine, theirs, truth in (
        (logits, single[rows], exact[rows]),
        (hidden, single_hidden[rows], exact_hidden[rows]),
    ):
        error = (mine - truth).square().mean().sqrt()
        allowed = (theirs - truth).square().mean().sqrt()
        assert error <= 1.5 * allowed + 1e-9
        assert (mine - truth).abs().max() <= 3 * (theirs - truth).abs().max() + 1e-9
    assert torch.equal(logits.argmax(-1), exact[rows].argmax(-1))


@pytest.mark.parametrize("chunk", [8, 13, 100])
def test_chunks_of_any_length_give_the_same_logits(folders, chunk):
    """Chunks shorter and longer than the ring (window 12)."""
    ids = torch.randint(5, 260, (70,), generator=torch.Generator().manual_seed(1))
    exact, _ = reference(folders[0], ids, torch.float64)
    engine = load(folders[0], prefill_chunk=chunk)
    logits, _ = ours(engine, ids, 50)
    torch.testing.assert_close(logits, exact[49:69], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["kernels", "torch"])
def test_full_layers_take_memory_as_they_are_written(tmp_path, name):
    target, _ = tiny.make_pair(tmp_path, tiny.PLAIN)
    with arithmetic(name):
        engine = load(target, max_context=2048, prefill_chunk=512)
        cache = engine.target.cache
        empty = cache.bytes
        ids = torch.randint(5, 260, (1050,), generator=torch.Generator().manual_seed(2))
        exact, _ = reference(target, ids, torch.float64)
        logits, _ = ours(engine, ids, 1025)
    torch.testing.assert_close(logits, exact[1024:1044], atol=5e-4, rtol=0)
    row = sum(layer.row_bytes for layer in cache.layers.values() if not layer.sliding)
    assert cache.bytes - empty == 1280 * row  # five blocks of 256
    cache.release()
    assert cache.bytes == empty
    assert not any(bool(layer.kv[:, :1050].any()) for layer in cache.layers.values())


def test_bfloat16_weights_stray_no_farther_than_in_transformers(folders):
    exact = load(folders[0])
    half = load(folders[0], weights="bfloat16")
    ids = torch.randint(5, 260, (40,), generator=torch.Generator().manual_seed(1))
    one, _ = ours(exact, ids, 21)
    other, _ = ours(half, ids, 21)
    theirs, _ = reference(folders[0], ids, torch.bfloat16)
    allowed = (theirs[20:40] - one).square().mean().sqrt()
    assert (one - other).square().mean().sqrt() < allowed
    assert half.info.bytes < exact.info.bytes


def test_masks_equal_the_rule():
    window, ring, keys = 6, 13, 70
    masks = Masks(window, ring, keys, torch.device("cpu"))
    for first in (0, 1):
        for position in range(first, 60):
            at = torch.arange(position, position + ROWS)
            sliding, full = masks.sliding(at, first), masks.full(at, keys, first)
            for i in range(ROWS):
                seen = set(range(max(0, position + i - window + 1), position + i + 1 - first))
                assert {slot for slot in range(ring) if sliding[i, slot] == 0} == {
                    key % ring for key in seen
                }
                up_to = set(range(position + i + 1 - first))
                assert {key for key in range(keys) if full[i, key] == 0} == up_to
