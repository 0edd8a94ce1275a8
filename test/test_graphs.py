# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded passes, as a GPU replays them: here their functions are called on the same fixed memory.

What a CUDA graph adds is that nothing may move: memory that is written to stays where it is.
"""

from __future__ import annotations

import pytest
import tiny
import torch
from engine_tools import arithmetic, load, request, run

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.graphs import buckets


@pytest.fixture(scope="module", params=[tiny.E_SIZE, tiny.K_EQ_V], ids=lambda kind: kind.name)
def folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


@pytest.fixture(scope="module", params=[True, False], ids=["reproducible", "natural"])
def engines(request, folders):
    """Eager and recorded."""
    with arithmetic("torch"):
        eager, recorded = (load(*folders, reproducible=request.param) for _ in range(2))
        with torch.inference_mode():
            recorded.target.record(lambda: None)
            recorded.drafter.record(lambda: None)
        yield eager, recorded


PROMPT = "Bring the red cup from the kitchen, then wait for the nurse at the front desk."


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "drawn"])
def test_same_tokens_as_eager(engines, sampling):
    asked = {"raw": True, "max_new_tokens": 40, **sampling}
    for k in range(MAX_DRAFT + 1):
        (expected, one), (tokens, other) = (
            run(engine, request(PROMPT, **asked), k) for engine in engines
        )
        assert tokens == expected
        assert other.stats.drafted_at == one.stats.drafted_at
        assert other.stats.accepted_at == one.stats.accepted_at


def test_nothing_moves(engines):
    """Inputs, outputs and caches keep their memory over a whole answer."""
    engine = engines[1]
    target, draft = engine.target.recorded, engine.drafter.recorded
    held = [target.ids, target.at, target.hidden, target.logits, draft.token, draft.state]
    held += [draft.drafts, draft.noise_keys, draft.step, draft.at]
    held += [layer.kv for layer in engine.target.cache.layers.values()]
    before = [tensor.data_ptr() for tensor in held]
    run(engine, request(PROMPT, raw=True, max_new_tokens=30), 3)
    assert [tensor.data_ptr() for tensor in held] == before


@pytest.mark.parametrize(
    ("capacity", "expected"), [(256, [256]), (768, [256, 512, 768]), (1024, [256, 512, 1024])]
)
def test_recordings_cover_every_length(capacity, expected):
    assert buckets(capacity) == expected
