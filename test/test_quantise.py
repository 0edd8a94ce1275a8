# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantised weights: their layout, their error, and the grid of q4_0 checkpoints."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.engine import quantise as module
from gemma_mtp_ros.engine.kernels import kernels
from gemma_mtp_ros.engine.quantise import GROUP, activations, pack, quantise, unpack

shapes = st.tuples(st.integers(1, 5), st.integers(1, 1100))


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to search for int4 scales."""
    if request.param == "torch":
        monkeypatch.setattr(module, "kernels", lambda: None)
    elif kernels() is None:
        pytest.skip("the CPU kernels are not built")


def random(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("groups", [1, 3, 16, 17, 40])
def test_packing_is_undone_by_unpacking(bits: int, groups: int) -> None:
    limit = 2 ** (bits - 1) - 1
    levels = torch.randint(-limit, limit + 1, (7, groups, GROUP)).to(torch.int8)
    data = pack(levels, bits)
    assert data.shape == (7, groups * GROUP * bits // 8)
    assert torch.equal(unpack(data, bits), levels)


def test_the_layout_is_the_one_written_down() -> None:
    levels = (torch.arange(17 * GROUP) % 15 - 7).to(torch.int8).view(1, 17, GROUP)
    eight, four = pack(levels, 8)[0], pack(levels, 4)[0]
    # Block 0, step 3, lane 5: values 12 .. 15 of group 5.
    assert (eight[3 * 64 + 5 * 4 :][:4].int() - 128).tolist() == levels[0, 5, 12:16].tolist()
    byte = four[64 + 5 * 4 :][:4].int()
    assert ((byte & 15) - 8).tolist() == levels[0, 5, 8:12].tolist()
    assert ((byte >> 4) - 8).tolist() == levels[0, 5, 12:16].tolist()
    # The last block is one lane wide.
    assert (eight[512:].int() - 128).tolist() == levels[0, 16].tolist()


@settings(deadline=None, max_examples=40)
@given(shapes, st.integers(0, 99), st.sampled_from([8, 4]), st.integers(-30, 10))
def test_each_weight_is_off_by_at_most_half_a_step(
    shape: tuple[int, int], seed: int, bits: int, exponent: int
) -> None:
    weight = random(shape, seed) * 2.0**exponent
    packed = quantise(weight, bits)
    values = packed.values()
    assert values.shape == shape
    assert packed.bytes == packed.data.numel() + 2 * packed.scales.numel()
    pad = -shape[1] % GROUP
    grouped = torch.nn.functional.pad(weight, (0, pad)).view(shape[0], -1, GROUP)
    error = torch.nn.functional.pad(values - weight, (0, pad)).view(grouped.shape)
    largest = grouped.abs().amax(-1, keepdim=True)
    if bits == 8:  # half a step, and the rounding of the scale at full swing
        assert (error.abs() <= largest * (0.502 / 127 + 2**-11)).all()
    else:  # no worse than q4_0, whose scale is the value of largest magnitude over -8
        peak = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
        scale = (peak / -8 / packed.gain).half().float() * packed.gain
        own = (grouped / torch.where(scale == 0, 1.0, scale)).round().clamp(-8, 7) * scale
        bound = (own - grouped).square().sum(-1)
        assert (
            error.square().sum(-1) <= bound * 1.001 + 1e-12 * largest.square().squeeze(-1)
        ).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999))
def test_quantising_again_changes_nothing(seed: int) -> None:
    once = quantise(random((3, 100), seed), 8).values()
    assert torch.equal(quantise(once, 8).values(), once)


def grid(
    dtype: torch.dtype, scale_dtype: torch.dtype, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights ``d * q`` rounded to ``dtype``, and ``q``: each group has a level of -8."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(40, 20, 1, generator=generator) * 0.02 + 1e-4
    scale *= torch.where(torch.rand(40, 20, 1, generator=generator) < 0.5, -1, 1)
    scale = scale.to(scale_dtype).float()
    q = torch.randint(-8, 8, (40, 20, GROUP), generator=generator)
    q.scatter_(2, torch.randint(0, GROUP, (40, 20, 1), generator=generator), -8)
    q[3, 4] = 0  # a pruned group
    return (scale * q).to(dtype).flatten(1), q.to(torch.int8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_on_the_grid_of_q4_0_is_kept(
    dtype: torch.dtype, scale_dtype: torch.dtype, seed: int
) -> None:
    weight, levels = grid(dtype, scale_dtype, seed)
    packed = quantise(weight, 4)
    assert torch.equal(packed.levels(), levels)
    assert torch.equal(packed.values().to(dtype), weight)


def test_a_few_groups_off_the_grid_do_not_spoil_the_others() -> None:
    weight, levels = grid(torch.bfloat16, torch.float16, 5)
    weight[7, :GROUP] = random((GROUP,)).to(torch.bfloat16)
    packed = quantise(weight, 4)
    kept = torch.ones(40, 20, dtype=torch.bool)
    kept[7, 0] = False
    assert torch.equal(packed.levels()[kept], levels[kept])


def test_int4_search_beats_the_plain_grid() -> None:
    weight = random((64, 512)) * 0.02
    peak = weight.view(64, -1, GROUP)
    peak = peak.gather(-1, peak.abs().argmax(-1, keepdim=True))
    plain = (weight.view(64, -1, GROUP) / (peak / -8)).round().clamp(-8, 7) * (peak / -8)
    error = (quantise(weight, 4).values() - weight).norm()
    assert error < 0.95 * (plain.flatten(1) - weight).norm()


def test_both_searches_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random((16, 256))
    here = quantise(weight, 4).values()
    monkeypatch.setattr(module, "kernels", lambda: None)
    other = quantise(weight, 4).values()
    ours, theirs = (here - weight).norm(), (other - weight).norm()
    assert abs(ours - theirs) < 1e-3 * theirs


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random((50, 96))
    whole = quantise(weight, 8)
    monkeypatch.setattr(module, "CHUNK", 700)
    parts = quantise(weight, 8)
    assert torch.equal(whole.data, parts.data)
    assert torch.equal(whole.scales, parts.scales)


@pytest.mark.parametrize("bits", [8, 4])
def test_scales_of_any_size_fit(bits: int) -> None:
    for size in (1e-15, 1e-6, 1.0, 1e6, 1e15):
        weight = random((4, 64)) * size
        packed = quantise(weight, bits)
        assert packed.scales.isfinite().all()
        assert math.log2(packed.gain).is_integer()
        assert (packed.values() - weight).norm() < 0.12 * weight.norm()
    assert not quantise(torch.zeros(2, 40), bits).values().any()


def test_weights_that_are_not_finite_are_refused() -> None:
    weight = torch.zeros(2, 64)
    weight[1, 3] = math.nan
    with pytest.raises(ValueError, match="not finite; the checkpoint is damaged"):
        quantise(weight, 8)


def test_activations_are_rounded_row_by_row() -> None:
    x = random((3, 70))
    x[2] *= 1000
    rounded = activations(x)
    assert torch.equal(rounded[1:2], activations(x[1:2]))
    grouped = torch.nn.functional.pad((rounded - x).abs(), (0, 26)).view(3, 3, GROUP)
    largest = torch.nn.functional.pad(x.abs(), (0, 26)).view(3, 3, GROUP).amax(-1, keepdim=True)
    assert (grouped <= largest * 0.5001 / 127).all()
    assert not activations(torch.zeros(2, 8)).any()
