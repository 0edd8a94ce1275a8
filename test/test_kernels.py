# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The C++ kernels against float64 and torch; rows that are independent in bits."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gemma_mtp_ros.engine import kernels as module
from gemma_mtp_ros.engine.kernels import Kernels, KernelsUnusable, library_file, open_library
from gemma_mtp_ros.engine.linear import Linear, Precision
from gemma_mtp_ros.engine.ops import rotate

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8", "int4")
# Not multiples of a vector, narrower than a group, one block, blocks and a part of one.
SHAPES = ((5, 8), (37, 100), (64, 512), (33, 1536), (9, 713), (21, 704), (3, 32))

try:
    LIBRARY: Kernels | None = Kernels(open_library(library_file()))
except KernelsUnusable as error:
    if os.environ.get("GEMMA_MTP_REQUIRE_ROS"):
        raise
    LIBRARY = None
    pytestmark = pytest.mark.skip(reason=f"{error}; python setup.py build_ext --inplace builds it")

ISAS = [
    name
    for name in ("generic", "avx2", "avx512", "dotprod")
    if LIBRARY is not None and LIBRARY.select(name)
]


@pytest.fixture(params=ISAS)
def library(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    assert LIBRARY is not None
    before = LIBRARY.isa
    assert LIBRARY.select(request.param)
    assert LIBRARY.isa == request.param
    yield LIBRARY
    LIBRARY.set_threads(1)
    LIBRARY.select(before)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def weight_and_rows(out: int, columns: int, n: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out * columns)
    weight = torch.randn(out, columns, generator=generator) * columns**-0.5
    return weight, torch.randn(n, columns, generator=generator)


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_float64(
    library: Kernels, shape: tuple[int, int], precision: Precision
) -> None:
    weight, x = weight_and_rows(*shape)
    linear = Linear.from_weight(weight, precision, library=library)
    held = linear.rows(torch.arange(shape[0])).double()
    quantised = precision in ("int8", "int4")
    reference = x.double() @ held.t()
    error = (linear(x).double() - reference).norm() / reference.norm()
    assert error < (1.5e-2 if quantised else 5e-7)  # activations have 8 bits
    torch_only = Linear.from_weight(weight, precision, library=None)
    torch.testing.assert_close(linear(x), torch_only(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shape", [(37, 100), (700, 713), (3, 32)], ids=str)
def test_rows_of_a_product_are_independent_in_bits(
    library: Kernels, shape: tuple[int, int], precision: Precision
) -> None:
    weight, x = weight_and_rows(*shape, n=19)
    linear = Linear.from_weight(weight, precision, library=library)
    library.set_threads(1)
    single = torch.cat([linear(row[None]) for row in x])
    for threads in (1, 2, 3):
        library.set_threads(threads)
        assert library.threads == threads
        for n in (*range(1, 9), 11, 19):
            for begin in (0, 19 - n):
                assert same_bits(linear(x[begin : begin + n]), single[begin : begin + n])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_parts_of_a_weight(library: Kernels, precision: Precision) -> None:
    weight, x = weight_and_rows(96, 72, n=3)
    linear = Linear.from_weight(weight, precision, library=library)
    torch_only = Linear.from_weight(weight, precision, library=None)
    whole = linear(x)
    ids = torch.tensor([95, 0, 7, 7, 31])
    assert same_bits(linear.take(x, ids), whole[:, ids])
    assert same_bits(linear.view(13, 40)(x), whole[:, 13:40].contiguous())
    assert torch.equal(linear.rows(ids), torch_only.rows(ids))
    torch.testing.assert_close(torch_only.take(x, ids), whole[:, ids], rtol=1e-5, atol=1e-5)
    blocks = torch.tensor([3, 0, 2, 3, 1, 3])
    mixed = linear.blocks(x, blocks, 24, repeat=2)
    for pair, block in enumerate(blocks.tolist()):
        assert same_bits(mixed[pair], whole[pair // 2, block * 24 : block * 24 + 24])
    other = torch_only.blocks(x, blocks, 24, repeat=2)
    torch.testing.assert_close(mixed, other, rtol=1e-5, atol=1e-5)


def test_many_pairs_of_one_block(library: Kernels) -> None:
    weight, x = weight_and_rows(16, 40, n=20)
    linear = Linear.from_weight(weight, "int8", library=library)
    blocks = torch.ones(20, dtype=torch.long)
    assert same_bits(linear.blocks(x, blocks, 8), linear(x)[:, 8:].contiguous())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_long_passes_go_through_torch(library: Kernels, precision: Precision) -> None:
    weight, x = weight_and_rows(40, 96, n=50)
    linear = Linear.from_weight(weight, precision, library=library)
    held = linear.rows(torch.arange(40))
    tolerance = {"float32": 1e-6, "bfloat16": 1e-2}.get(precision, 1e-2)
    reference = x @ held.t()
    assert (linear(x) - reference).norm() / reference.norm() < tolerance


def test_zero_and_tiny_rows(library: Kernels) -> None:
    weight, _ = weight_and_rows(6, 64)
    linear = Linear.from_weight(weight, "int8", library=library)
    x = torch.zeros(3, 64)
    x[1, 3] = 1e-40
    x[2, 0] = 2.0
    y = linear(x)
    assert torch.equal(y[:2], torch.zeros(2, 6))
    torch.testing.assert_close(y[2], 2 * linear.rows(torch.arange(6))[:, 0])


# --- what stands between products ----------------------------------------------------------------


@pytest.mark.parametrize("dim", [8, 13, 64, 300])
def test_norms(library: Kernels, dim: int) -> None:
    x, residual, weight = torch.randn(5, 3, dim), torch.randn(5, 3, dim), torch.randn(3, dim)
    double = x.double()
    normed = double * (double.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    close = {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(library.rms_norm(x, None, 1e-6).double(), normed, **close)
    torch.testing.assert_close(
        library.rms_norm(x, weight, 1e-6).double(), normed * weight.double(), **close
    )
    expected = (residual.double() + normed * weight[0].double()) * 0.5
    got = library.add_rms_norm(residual, x, weight[0].contiguous(), 1e-6, 0.5)
    torch.testing.assert_close(got.double(), expected, **close)
    inplace = residual.clone()
    library.add_rms_norm(inplace, x, weight[0].contiguous(), 1e-6, 0.5, out=inplace)
    assert same_bits(inplace, got)


def test_gelu_and_softcap(library: Kernels) -> None:
    x = torch.cat([torch.linspace(-12, 12, 997), torch.tensor([0.0, -0.0, 1e-9, -80.0, 80.0])])
    up = torch.randn(2, 1002)
    fused = torch.cat([x.expand(2, -1), up], 1).contiguous()
    expected = F.gelu(x.double(), approximate="tanh") * up.double()
    got = library.gated(fused, 1002).double()
    error = (got - expected).abs()
    # Far left e^z magnifies the rounding of its argument, as in any float32 gelu.
    assert (error <= torch.where(x > -2, 5e-7, 4e-6) * expected.abs() + 1e-12).all()
    assert same_bits(library.gelu_mul(fused[:, :1002], fused[:, 1002:]), library.gated(fused, 1002))
    capped = library.softcap_(x * 10, 30.0).double()
    exact = 30 * torch.tanh(x.double() * 10 / 30)
    assert ((capped - exact).abs() <= 4e-7 * exact.abs()).all()


def test_rotary(library: Kernels) -> None:
    x = torch.randn(5, 6, 32)
    angles = torch.polar(torch.ones(5, 1, 16), torch.randn(5, 1, 16) * 100)
    expected = rotate(x[:, :4], angles)
    rest = x[:, 4:].clone()
    library.rotate_(x, 4, angles)
    torch.testing.assert_close(x[:, :4], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(x[:, 4:], rest)


# --- attention -----------------------------------------------------------------------------------

KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


class Cache:
    """Keys and values of ``length`` positions as the kernels store them, and in float64."""

    def __init__(
        self, library: Kernels, dtype: torch.dtype, heads: int, dim: int, length: int, ring: int
    ) -> None:
        generator = torch.Generator().manual_seed(length + dim)
        rows = ring or length + 37
        self.length, self.ring = length, ring
        # What no query may see is not a number.
        fill = 77 if dtype == torch.int8 else float("nan")
        self.k = torch.full((heads, rows, dim), fill, dtype=dtype)
        self.v = self.k.clone()
        self.k_scales = torch.full((heads, rows), float("nan"))
        self.v_scales = self.k_scales.clone()
        source = torch.randn(2, length, heads, dim, generator=generator)
        for x, cache, scales in zip(
            source, (self.k, self.v), (self.k_scales, self.v_scales), strict=True
        ):
            for begin in range(0, length, 7):
                library.store(x[begin : begin + 7], cache, begin, ring, scales)

    def arguments(self) -> dict[str, torch.Tensor | int]:
        scales = self.k.dtype == torch.int8
        extra = {"k_scales": self.k_scales, "v_scales": self.v_scales} if scales else {}
        return {"k": self.k, "v": self.v, "ring": self.ring, **extra}

    def seen(self, low: int, high: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of positions ``low .. high - 1`` in float64."""
        rows = torch.arange(low, high)
        rows = rows % self.ring if self.ring else rows
        k, v = self.k[:, rows].double(), self.v[:, rows].double()
        if self.k.dtype == torch.int8:
            k = k * self.k_scales[:, rows, None].double()
            v = v * self.v_scales[:, rows, None].double()
        return k, v


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim", "window", "first"),
    [(4, 1, 64, 0, 0), (4, 2, 24, 50, 0), (6, 1, 9, 20, 0), (2, 2, 16, 0, 1), (4, 1, 32, 30, 1)],
)
def test_attention(
    library: Kernels,
    dtype: torch.dtype,
    q_heads: int,
    kv_heads: int,
    dim: int,
    window: int,
    first: int,
) -> None:
    for length in (3, 64, 150):
        ring = window + 7 if window else 0
        cache = Cache(library, dtype, kv_heads, dim, length, ring)
        n = min(5, length)
        q = torch.randn(n, q_heads + 1, dim)  # as in a fused row, where keys follow the queries
        position = length - n + first
        got = library.attend(
            q, position=position, q_heads=q_heads, window=window, first=first, **cache.arguments()
        )
        for i in range(n):
            end = position + i + 1 - first
            k, v = cache.seen(max(0, position + i - window + 1) if window else 0, end)
            grouped = q[i, :q_heads].double().view(kv_heads, -1, dim)
            weights = torch.softmax(grouped @ k.transpose(1, 2), -1)
            expected = (weights @ v).reshape(-1)
            torch.testing.assert_close(got[i].double(), expected, rtol=2e-5, atol=2e-5)
        single = [
            library.attend(
                q[i : i + 1],
                position=position + i,
                q_heads=q_heads,
                window=window,
                first=first,
                **cache.arguments(),
            )
            for i in range(n)
        ]
        assert same_bits(torch.cat(single), got)
        library.set_threads(2)
        again = library.attend(
            q, position=position, q_heads=q_heads, window=window, first=first, **cache.arguments()
        )
        assert same_bits(again, got)
        library.set_threads(1)


def test_attention_does_not_depend_on_the_buffer(library: Kernels) -> None:
    cache = Cache(library, torch.bfloat16, 1, 32, 100, 0)
    q = torch.randn(3, 4, 32)
    got = library.attend(q, cache.k, cache.v, position=97)
    room = torch.zeros(1, 500, 32, dtype=torch.bfloat16)
    k, v = room.clone(), room
    k[:, :137], v[:, :137] = cache.k, cache.v
    assert same_bits(library.attend(q, k, v, position=97), got)


def test_nothing_seen_gives_zeros(library: Kernels) -> None:
    cache = Cache(library, torch.float32, 1, 16, 4, 0)
    out = library.attend(torch.randn(1, 2, 16), cache.k, cache.v, position=0, first=1)
    assert torch.equal(out, torch.zeros(1, 32))


@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_stored_rows(library: Kernels, dtype: torch.dtype) -> None:
    x = torch.randn(4, 5, 24)
    x[0, 0, 0] = 0.0
    cache = torch.zeros(3, 10, 24, dtype=dtype)
    scales = torch.zeros(3, 10)
    library.store(x[:, 1:4], cache, position=18, ring=10, scales=scales)
    expected = x[:, 1:4].transpose(0, 1)
    got = cache[:, [8, 9, 0, 1]]
    if dtype == torch.int8:
        largest = expected.abs().amax(-1)
        torch.testing.assert_close(scales[:, [8, 9, 0, 1]], largest / 127)
        step = (largest / 127)[..., None]
        assert ((got * step - expected).abs() <= 0.5001 * step).all()
    else:
        assert torch.equal(got, expected.to(dtype))
    assert not cache[:, 2:8].any()


# --- threads and loading -------------------------------------------------------------------------


def test_callers_at_the_same_time(library: Kernels) -> None:
    weight, x = weight_and_rows(2000, 256, n=4)
    linear = Linear.from_weight(weight, "float32", library=library)
    expected = linear(x)
    library.set_threads(2)
    wrong: list[int] = []

    def call() -> None:
        wrong.extend(i for i in range(50) if not same_bits(linear(x), expected))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


SCRIPT = """
import os, sys, torch
from gemma_mtp_ros.engine.kernels import kernels
from gemma_mtp_ros.engine.linear import Linear
library = kernels()
def tasks(): return len(os.listdir("/proc/self/task"))
torch.set_num_threads(1)
x = torch.ones(2, 256)
linear = Linear.from_weight(torch.ones(3000, 256), "float32")
before = tasks()
linear(x)
assert tasks() == before, "one thread starts none"
library.set_threads(3)
linear(x)
assert tasks() == before + 2, tasks()
child = os.fork()
if child == 0:
    good = bool((linear(x) == 256).all()) and tasks() == 3
    os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert bool((linear(x) == 256).all())
library.set_threads(1)
assert tasks() == before, "threads end when they are no longer wanted"
library.set_threads(2)
linear(x)
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent
    path = f"{root}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path} | environment,
    )


def test_threads_forks_and_exit() -> None:
    done = run(SCRIPT)
    assert done.returncode == 0, done.stderr


def test_environment_chooses() -> None:
    code = "from gemma_mtp_ros.engine.kernels import kernels; k = kernels(); print(k and k.isa)"
    assert run(code, GEMMA_MTP_KERNELS="off").stdout == "None\n"
    assert run(code, GEMMA_MTP_KERNELS="generic").stdout == "generic\n"
    refused = run(code, GEMMA_MTP_KERNELS="mmx")
    assert refused.returncode != 0
    assert "GEMMA_MTP_KERNELS=mmx is not an instruction set of this CPU" in refused.stderr


def test_a_missing_library_is_said_once_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "library_file", lambda: tmp_path / "_kernels.so")
    monkeypatch.setattr(module, "_found", [])
    with caplog.at_level(logging.WARNING):
        assert module.kernels() is None
        assert module.kernels() is None
    assert caplog.text.count("torch computes instead") == 1
    linear = Linear.from_weight(torch.eye(8), "int4")
    assert linear.library is None
    assert linear(torch.ones(1, 8)).shape == (1, 8)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    source, file = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("int gmtp_abi(void) { return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", file], check=True)
    with pytest.raises(KernelsUnusable, match=r"interface 0 .* needs 1; build it again"):
        open_library(file)


def test_a_damaged_library_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "_kernels.so"
    file.write_bytes(b"not a library")
    with pytest.raises(KernelsUnusable, match="cannot be loaded"):
        open_library(file)
