# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded passes, as a GPU replays them: here their functions are called on the same fixed memory.

What a CUDA graph adds is that nothing may move: memory that is written to stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import pytest
import tiny
import torch
from engine_tools import arithmetic, load, request, run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.experts import Experts
from gemma_mtp_ros.engine.graphs import buckets
from gemma_mtp_ros.engine.linear import CudaLinear, Linear
from gemma_mtp_ros.engine.sampling import Rules, TokenCounts, penalise


@pytest.fixture(scope="module", params=[tiny.E_SIZE, tiny.K_EQ_V], ids=lambda kind: kind.name)
def folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


@pytest.fixture(
    scope="module",
    params=[True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["reproducible", "natural"],
)
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


AWAY = torch.device("meta")
"""Stands for a GPU: tensors there have shapes and no values, so nothing can be read back."""


def send_away(value: Any, done: dict[int, Any]) -> Any:
    """Move every tensor that an engine's object reaches to another device, in place."""
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, torch.Tensor):
        moved: Any = value.to(AWAY)
    elif isinstance(value, torch.device):
        return AWAY
    elif type(value) is tuple:
        moved = tuple(send_away(each, done) for each in value)
    else:
        moved = value
    done[id(value)] = value, moved  # kept alive: its id must not be given to another
    if isinstance(value, dict):
        value.update({key: send_away(each, done) for key, each in value.items()})
    elif isinstance(value, list):
        value[:] = [send_away(each, done) for each in value]
    elif type(value).__module__.startswith("gemma_mtp_ros.engine") and not is_dataclass(value):
        for name, each in list(getattr(value, "__dict__", {}).items()):
            setattr(value, name, send_away(each, done))
    if isinstance(value, Linear):
        value.__class__, value._tiles, value._scales = CudaLinear, None, None
    if isinstance(value, Experts):
        value._on_gpu = True
    return moved


class StaysAway(TorchDispatchMode):
    """Lets no operation see or make a tensor of the CPU: a CUDA graph would hold a copy from it,
    or could not be captured at all.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, result)):
            if isinstance(each, torch.Tensor):
                assert each.device.type == AWAY.type, f"{func} on {each.device}"
        return result


@pytest.fixture(
    scope="module", params=[tiny.E_SIZE, tiny.UNIFIED_12B, tiny.EXPERTS_26B], ids=lambda k: k.name
)
def kind_folders(request, tmp_path_factory):
    return tiny.make_pair(tmp_path_factory.mktemp(request.param.name), request.param)


@pytest.mark.parametrize("reproducible", [True, False])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "int8"])
def test_what_is_recorded_stays_on_its_device(kind_folders, reproducible, kv_dtype):
    """No tensor made on the CPU, no value read back, no shape that depends on values."""
    with arithmetic("torch"):
        engine = load(
            *kind_folders, reproducible=reproducible, kv_dtype=kv_dtype, weights="bfloat16"
        )
        with torch.inference_mode():
            engine.target.record(lambda: None)
            engine.drafter.record(lambda: None)
    done: dict[int, Any] = {}
    send_away(engine.target, done)
    send_away(engine.drafter, done)
    recordings = [*engine.target.recorded._recordings.values()]
    recordings += engine.drafter.recorded._recordings.values()
    assert len(recordings) > 4
    with torch.no_grad(), StaysAway():
        for recording in recordings:
            recording()


@pytest.fixture
def away() -> Iterator[None]:
    with torch.no_grad(), StaysAway():
        yield


def test_the_check_sees_what_it_is_for(away):
    there = torch.ones(3, device=AWAY)
    for mistake in (
        lambda: there + torch.ones(3),
        lambda: there * torch.tensor(2.0),
        lambda: there[0].item(),
        lambda: there.nonzero(),
    ):
        with pytest.raises((AssertionError, RuntimeError, NotImplementedError)):
            mistake()


def test_penalties_read_nothing_back():
    counts = TokenCounts(8, [1, 2], AWAY)
    drafts = torch.zeros(3, dtype=torch.long, device=AWAY)
    logits = torch.zeros(4, 8, device=AWAY)
    with torch.no_grad(), StaysAway():
        rules = Rules(repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.2)
        assert penalise(logits, rules, counts.prompt, counts.rows(drafts)).shape == (4, 8)
