# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes from sizes alone, beside those that the engine takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from engine_tools import load

from gemma_mtp_ros.api import EngineConfig, GemmaMtpError
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.engine import costs, sizes
from gemma_mtp_ros.engine import load as load_module
from gemma_mtp_ros.engine.decode import Engine
from gemma_mtp_ros.engine.released import RELEASED, find_released

CPU, GPU = torch.device("cpu"), torch.device("cuda")
WITHIN = 0.03
PRECISIONS = ("float32", "bfloat16", "int8", "int4")
KV_DTYPES = ("float32", "bfloat16", "int8")
NO_WEIGHTS = {"cache", "rope", "torch_pass", "kernel_pass", "torch_draft", "kernel_draft", "pad"}
NO_WEIGHTS |= {"target", "recorded", "_eps"}


@pytest.fixture(scope="module", params=tiny.KINDS, ids=lambda kind: kind.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny.make_pair(tmp_path_factory.mktemp("sizes"), request.param)


def tensors(held: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor that an object holds, each memory once."""
    if id(held) in seen or held is None:
        return
    seen.add(id(held))
    if isinstance(held, torch.Tensor):
        if held.untyped_storage().data_ptr() not in seen:
            seen.add(held.untyped_storage().data_ptr())
            yield held
        return
    parts: Any = ()
    if isinstance(held, dict):
        parts = held.values()
    elif isinstance(held, (list, tuple)):
        parts = held
    elif type(held).__module__.startswith("gemma_mtp_ros.engine"):
        parts = [value for name, value in vars(held).items() if name not in NO_WEIGHTS]
    for part in parts:
        yield from tensors(part, seen)


def allocated(model: Any) -> int:
    """Bytes of the weights, norms included, that a target or a drafter holds."""
    return sum(t.untyped_storage().nbytes() for t in tensors(model, set()))


def check(engine: Engine, config: EngineConfig) -> None:
    """Planned bytes are those that are reported, and what the tensors take."""
    target, drafter = engine.target, engine.drafter
    assert drafter is not None
    planned = sizes.planned(target.spec, drafter.spec, config, CPU)
    reported = engine.info.memory
    assert planned.model_copy(update={"snapshots": 0}) == reported
    vectors = sizes.vector_bytes(target.spec)
    held = allocated(target)
    assert held == pytest.approx(planned.weights + planned.ple + vectors, rel=WITHIN)
    vectors = sizes.vector_bytes(drafter.spec.body, writes=False)
    assert allocated(drafter) == pytest.approx(planned.drafter + vectors, rel=WITHIN)
    kv = sum(t.nbytes for layer in target.cache.layers.values() for t in (layer.kv, layer.scales)
             if t is not None)  # fmt: skip
    assert kv == pytest.approx(planned.kv, rel=WITHIN)


def config_of(pair: tuple[Path, Path], **values: Any) -> EngineConfig:
    """What `engine_tools.load` makes of them."""
    fixed: dict[str, Any] = {"max_context": 512, "prefill_chunk": 16}
    return EngineConfig(model=str(pair[0]), drafter=str(pair[1]), **fixed, **values)


@pytest.mark.parametrize("weights", PRECISIONS)
def test_planned_bytes_are_those_that_are_allocated(pair: tuple[Path, Path], weights: str) -> None:
    kv = KV_DTYPES[PRECISIONS.index(weights) % len(KV_DTYPES)]
    values: dict[str, Any] = {"weights": weights, "kv_dtype": kv, "reproducible": False}
    check(load(*pair, **values), config_of(pair, **values))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("drafter_weights", ["same", "int8"])
def test_so_they_are_for_the_embedded_pair(kv_dtype: str, drafter_weights: str) -> None:
    values: dict[str, Any] = {
        "kv_dtype": kv_dtype,
        "drafter_weights": drafter_weights,
        "weights": "bfloat16",
        "reproducible": False,
        "ple": "disk",
    }
    folders = (TARGET_DIR, DRAFTER_DIR)
    check(load(*folders, **values), config_of(folders, **values))


@pytest.mark.parametrize(("where", "held"), [("memory", True), ("disk", False), ("auto", True)])
def test_the_table_of_per_layer_embeddings(tmp_path: Path, where: str, held: bool) -> None:
    target, _ = tiny.make_pair(tmp_path, tiny.E2B)
    spec = load(target, ple=where, reproducible=False).target.spec
    planned = sizes.planned(spec, None, EngineConfig(model="x", ple=where), CPU)
    assert planned.ple == (sizes.ple_bytes(spec, "float32") if held else 0)
    large = dataclasses.replace(spec, ple_vocab=2**22)
    assert sizes.ple_in_memory(large, "auto", "float32") is False


def test_what_a_pass_reads_is_what_costs_counts(pair: tuple[Path, Path]) -> None:
    engine = load(*pair, weights="int8", kv_dtype="int8", reproducible=False)
    spec = engine.target.spec
    read = sizes.pass_bytes(spec, "int8", "int8", CPU, 100)
    assert read == pytest.approx(costs.pass_bytes(engine.target, 100))
    more = sizes.pass_bytes(spec, "int8", "int8", CPU, 100, rows=4)
    assert more > read
    if spec.experts is not None:
        assert more > 1.2 * read  # rows choose other experts


def test_a_draft_step_reads_only_the_clusters_it_opens() -> None:
    e2b = find_released("E2B")
    assert e2b is not None
    target, drafter = e2b.specs
    centroid = sizes.draft_bytes(drafter, target, "bfloat16", "bfloat16", GPU, 1)
    plain = dataclasses.replace(drafter, centroids=0, centroid_top_k=0)
    whole = sizes.draft_bytes(plain, target, "bfloat16", "bfloat16", GPU, 1)
    assert centroid == pytest.approx(25e6, rel=0.2)
    assert whole > centroid + 120e6


def test_released_drafters_have_the_published_number_of_parameters() -> None:
    published = {"E2B": 78, "E4B": 79, "12B": 423, "26B-A4B": 420, "31B": 470}
    for released in RELEASED:
        _, drafter = released.specs
        found = sum(part.out * part.width for part in sizes.drafter_parts(drafter))
        assert round(found / 1e6) == pytest.approx(published[released.size], abs=1), released.size


def test_released_targets_have_about_the_published_number_of_parameters() -> None:
    """The towers, a few hundred million, are not read and not counted; values that come from the
    key projection are held twice, here once.
    """
    published = {"E2B": 4.65, "E4B": 7.5, "12B": 11.9, "26B-A4B": 25.2, "31B": 30.7}  # in 1e9
    for released in RELEASED:
        spec, _ = released.specs
        found = sum(part.out * part.width for part in sizes.target_parts(spec))
        found += spec.ple_vocab * len(spec.layers) * spec.ple
        found -= sum(
            layer.kv_heads * layer.head_dim * spec.hidden for layer in spec.layers if layer.k_eq_v
        )
        assert found / 1e9 == pytest.approx(published[released.size], rel=0.02), released.size


def test_released_pairs_fit_each_other_and_have_names() -> None:
    from gemma_mtp_ros.engine.spec import check_pair

    for released in RELEASED:
        target, drafter = released.specs
        check_pair(target, drafter, released.model, released.drafter)
        assert find_released(released.model.upper()) is released
        assert find_released(released.size.lower()) is released
    assert find_released("google/gemma-3-4b-it") is None


def test_a_gpu_refuses_when_planning_what_it_refuses_when_loading() -> None:
    dense, experts = (find_released(size) for size in ("31B", "26B-A4B"))
    assert dense is not None
    assert experts is not None
    with pytest.raises(GemmaMtpError, match=r"int8.*bfloat16 or int4"):
        sizes.planned(*dense.specs, EngineConfig(model="x", weights="int8"), GPU)
    with pytest.raises(GemmaMtpError, match=r"int4.*bfloat16"):
        sizes.planned(*experts.specs, EngineConfig(model="x", weights="int4"), GPU)
    small = sizes.planned(*dense.specs, EngineConfig(model="x", weights="int4"), GPU)
    large = sizes.planned(*dense.specs, EngineConfig(model="x", weights="bfloat16"), GPU)
    assert 0.3 < small.weights / large.weights < 0.4


def test_configure_refuses_by_the_same_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte less than is needed beside the reserve is too little, and nothing is read."""
    folders = tiny.make_pair(tmp_path)
    config = config_of(folders, memory_reserve_mib=1)
    engine = load(*folders, reproducible=False)
    assert engine.drafter is not None
    needed = sizes.needed(engine.target.spec, engine.drafter.spec, config, CPU)
    free = needed + 2**20
    monkeypatch.setattr(load_module, "available_memory", lambda device: free)
    load(*folders, reproducible=False, memory_reserve_mib=1)
    free -= 1
    monkeypatch.setattr(load_module.Weights, "read", lambda *_: pytest.fail("something was read"))
    with pytest.raises(GemmaMtpError, match="1 MiB are kept"):
        load(*folders, reproducible=False, memory_reserve_mib=1)
    # Cached prefixes give way when memory is short: they do not stand in the way.
    free += 1
    cached = config.model_copy(update={"cache_max_mib": 4096})
    assert sizes.needed(engine.target.spec, engine.drafter.spec, cached, CPU) == needed
