# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The target against transformers: logits no farther from float64 than transformers' own
float32.
"""

from __future__ import annotations

import pytest
import tiny
import torch
from engine_tools import load
from transformers import Gemma4ForCausalLM

from gemma_mtp_ros.engine.cache import ROWS, FullMasks, SlidingMasks

PASSES = (3, 8, 1, 5, 2)


@pytest.fixture(scope="module", params=[True, False], ids=["reproducible", "natural"])
def engine(request, folders):
    loaded = load(folders[0], reproducible=request.param)
    assert loaded.info.reproducible == ("verified" if request.param else "off")
    return loaded


@pytest.fixture(scope="module", params=tiny.KINDS, ids=lambda kind: kind.name)
def folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


def reference(folder, ids, dtype):
    """Logits and post-norm states of transformers over the whole sequence."""
    model = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32).to(dtype)
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


def test_full_layers_grow_past_their_first_blocks(tmp_path):
    target, _ = tiny.make_pair(tmp_path, tiny.PLAIN)
    engine = load(target, max_context=2048, prefill_chunk=512)
    capacity = engine.target.cache.capacity
    ids = torch.randint(5, 260, (capacity + 30,), generator=torch.Generator().manual_seed(2))
    exact, _ = reference(target, ids, torch.float64)
    logits, _ = ours(engine, ids, capacity + 5)
    assert engine.target.cache.capacity > capacity
    torch.testing.assert_close(logits, exact[capacity + 4 : capacity + 24], atol=5e-4, rtol=0)


def test_bfloat16_weights_stay_near_float32(folders):
    exact = load(folders[0])
    half = load(folders[0], weights="bfloat16")
    ids = torch.randint(5, 260, (40,), generator=torch.Generator().manual_seed(1))
    one, _ = ours(exact, ids, 21)
    other, _ = ours(half, ids, 21)
    assert (one - other).square().mean().sqrt() < 0.1
    assert half.info.bytes < exact.info.bytes


def test_sliding_masks_equal_the_rule():
    window, ring = 6, 13
    for first in (0, 1):
        masks = SlidingMasks(window, ring, first, torch.device("cpu"))
        for position in range(60):
            rows = masks.rows(position, ROWS)
            for i in range(ROWS):
                query = position + i
                expected = {
                    key % ring for key in range(max(0, query - window + 1), query + 1 - first)
                }
                seen = {slot for slot in range(ring) if rows[i, slot] == 0}
                assert seen == expected


def test_full_masks_equal_the_rule():
    masks = FullMasks(32, torch.device("cpu"))
    for position in range(24):
        rows = masks.rows(position, 4, 32)
        for i in range(4):
            assert [key for key in range(32) if rows[i, key] == 0] == list(range(position + i + 1))
