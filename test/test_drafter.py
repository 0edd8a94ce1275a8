# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The drafter against transformers, and the rows it may see after a rejection."""

from __future__ import annotations

import pytest
import tiny
import torch
from engine_tools import arithmetic, load

STEPS = 3


@pytest.fixture(scope="module", params=["kernels", "torch"])
def engine(request, folders):
    with arithmetic(request.param):
        yield load(*folders)


@pytest.fixture(scope="module", params=tiny.KINDS, ids=lambda kind: kind.name)
def folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


def reference_chain(folders, ids, token, dtype):
    """Logits of transformers' assistant over a chain of steps.

    It gets the keys that the target's own rule shows to a query at the next position: its mask
    would let two more rows of the sliding layers in.
    """
    target, drafter = tiny.reference(folders[0], dtype), tiny.reference(folders[1], dtype)
    with torch.no_grad():
        out = target(
            ids[None], use_cache=False, output_hidden_states=True, return_shared_kv_states=True
        )
        shared = dict(out.shared_kv_states)
        keep = tiny.WINDOW - 1
        k, v = shared[tiny.SLIDING]
        shared[tiny.SLIDING] = (k[:, :, -keep:], v[:, :, -keep:])
        state, chain = out.hidden_states[-1][:, -1:], []
        position = torch.tensor([[len(ids)]])
        for _ in range(STEPS):
            inputs = torch.cat([target.get_input_embeddings()(token[None]), state], -1)
            step = drafter(inputs_embeds=inputs, position_ids=position, shared_kv_states=shared)
            chain.append(step.logits[0, -1].double())
            token = step.logits[0, -1:].argmax(-1)
            state = step.last_hidden_state
    return torch.stack(chain)


def our_chain(engine, token, state):
    """The same chain from the standing caches; unopened tokens stay at -inf."""
    chain = []
    with torch.inference_mode():
        for _ in range(STEPS):
            state, hidden = engine.drafter.step(token, state)
            scores, ids = engine.drafter.logits(hidden)
            row = torch.full((engine.target.spec.vocab,), float("-inf"), dtype=torch.float64)
            row[slice(None) if ids is None else ids] = scores[0].double()
            chain.append(row)
            token = row.argmax()[None]
    return torch.stack(chain)


def prefill(engine, ids):
    with torch.inference_mode():
        engine.target.cache.reset()
        chunk = engine.config.prefill_chunk
        for begin in range(0, len(ids), chunk):
            out = engine.target.prefill(ids[begin : begin + chunk], begin + chunk >= len(ids))
    return out[0]


@pytest.mark.parametrize("length", [7, 45])
def test_logits_as_close_to_float64_as_transformers(folders, engine, length):
    ids = torch.randint(5, 260, (length,), generator=torch.Generator().manual_seed(length))
    token = torch.tensor([77])
    exact = reference_chain(folders, ids, token, torch.float64)
    single = reference_chain(folders, ids, token, torch.float32)
    mine = our_chain(engine, token, prefill(engine, ids))
    opened = torch.isfinite(mine)
    assert opened.sum(-1).min() >= 6
    error = (mine - exact)[opened].square().mean().sqrt()
    allowed = (single - exact)[opened].square().mean().sqrt()
    assert error <= 2 * allowed + 1e-9
    assert torch.equal(mine.argmax(-1), exact.argmax(-1))


@pytest.mark.parametrize("length", [4, 11, 12, 13, 19, 20, 37])
@pytest.mark.parametrize("kept", [0, 2, 7])
def test_no_stale_row_after_a_rejection(engine, length, kept):
    """The drafter sees after a partly rejected pass what it sees after a fresh prefill."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 260, (length + 8,), generator=generator)
    wrong = torch.randint(5, 260, (8,), generator=generator)
    right = ids[length : length + kept + 1]
    prefill(engine, ids[:length])
    with torch.inference_mode():
        passed = torch.cat([right, wrong[kept + 1 :]])
        hidden, _ = engine.target.decode(passed, length)
        engine.target.cache.commit(length + kept + 1)
    token = torch.tensor([9])
    after = our_chain(engine, token, hidden[kept : kept + 1])
    fresh = our_chain(engine, token, prefill(engine, ids[: length + kept + 1]))
    torch.testing.assert_close(after, fresh, atol=1e-4, rtol=0)
