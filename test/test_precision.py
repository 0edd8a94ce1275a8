# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded pair in every precision: the same bits for every draft length, and what it costs
in quality.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from engine_tools import arithmetic, load, request
from torch.utils._python_dispatch import TorchDispatchMode

from gemma_mtp_ros.api import MAX_DRAFT, ErrorCode, Finish, GemmaMtpError, Message, Piece, Request
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR
from gemma_mtp_ros.demo.corpus import held_out
from gemma_mtp_ros.engine import decode, ple, rounds
from gemma_mtp_ros.engine.builder import linear_bytes, table_precision
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.linear import precision_on

PRECISIONS = ["float32", "bfloat16", "int8", "int4"]
CUDA = torch.device("cuda")


@pytest.fixture(scope="module", params=PRECISIONS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with arithmetic("kernels"):
        yield load(TARGET_DIR, DRAFTER_DIR, weights=request.param, max_context=1024)


def answer(
    engine: Engine, asked: Request, lengths: Iterator[int]
) -> tuple[list[int], torch.Tensor]:
    """Token ids and the logits they were chosen by, drafting as many as `lengths` says."""
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    target = engine.target
    whole = target.decode

    def watched(ids: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, logits = whole(ids, position)
        rows.append(logits.clone())
        return hidden, logits

    target.decode = watched  # type: ignore[method-assign]
    stood: list[torch.Tensor] = []
    try:
        for event in engine.generate(asked, lambda: RoundControl(next(lengths))):
            if isinstance(event, Piece) and event.token_ids:
                tokens += event.token_ids
                if rows:
                    stood.append(rows.pop()[: len(event.token_ids)])
            elif isinstance(event, Finish):
                assert event.error_code is ErrorCode.NONE
    finally:
        del target.decode  # type: ignore[method-assign]
    return tokens, torch.cat(stood).view(torch.int32)


def always(k: int) -> Iterator[int]:
    while True:
        yield k


def at_random(seed: int) -> Iterator[int]:
    draw = random.Random(seed)
    while True:
        yield draw.randint(0, MAX_DRAFT)


def bits_for_every_draft_length(engine: Engine, prompts: int) -> None:
    """Compare tokens and logits, greedy and drawn, for k = 0..7 and for random sequences of k."""
    assert engine.info.reproducible == "verified"
    for number, example in enumerate(held_out(prompts)):
        sampling = {} if number % 2 else {"temperature": 1.0, "seed": number}
        asked = request(example.instruction, max_new_tokens=40, **sampling)
        tokens, logits = answer(engine, asked, always(0))
        for k in range(1, MAX_DRAFT + 1):
            again, bits = answer(engine, asked, always(k))
            assert again == tokens
            assert torch.equal(bits, logits)
        for seed in range(2):
            again, bits = answer(engine, asked, at_random(seed))
            assert again == tokens
            assert torch.equal(bits, logits)


def test_same_bits_for_every_draft_length(engine: Engine) -> None:
    bits_for_every_draft_length(engine, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_same_bits_for_every_draft_length_over_50_prompts(engine: Engine) -> None:
    bits_for_every_draft_length(engine, 8 if engine.config.weights == "int4" else 50)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_same_bits_without_kernels(weights: str) -> None:
    """By passes of fixed width."""
    with arithmetic("torch"):
        fallback = load(TARGET_DIR, DRAFTER_DIR, weights=weights, max_context=1024)
        bits_for_every_draft_length(fallback, 8)


def log_loss(engine: Engine, prompts: int) -> float:
    """Mean of -log p over the answers of held-out instructions, by passes of eight rows."""
    total, count = 0.0, 0
    with torch.inference_mode():
        for example in islice(held_out(prompts), prompts):
            prompt = engine.text.encode((Message(role="user", content=example.instruction),), None)
            said = engine.text.encode((), example.answer)[1:]
            ids = torch.tensor(prompt + said)
            target = engine.target
            target.cache.reset()
            found = target.prefill(ids[: len(prompt)], True)
            assert found is not None
            rows = [found[1]]
            for at in range(len(prompt), len(ids) - 1, 8):
                end = min(at + 8, len(ids) - 1)
                rows.append(target.decode(ids[at:end], at)[1])
                target.cache.commit(end)
            scores = torch.cat(rows).double().log_softmax(-1)
            total -= float(scores.gather(1, ids[len(prompt) :, None]).sum())
            count += len(said)
    return total / count


@pytest.fixture(scope="module")
def exact_loss() -> float:
    with arithmetic("kernels"):
        return log_loss(load(TARGET_DIR, weights="float32", max_context=1024), 100)


@pytest.mark.parametrize(
    ("weights", "kv_dtype", "allowed"),
    [
        ("bfloat16", "auto", 0.001),
        ("int8", "auto", 0.005),
        ("int8", "int8", 0.005),
        ("int4", "auto", 0.03),
    ],
)
def test_perplexity_of_answers(
    exact_loss: float, weights: str, kv_dtype: str, allowed: float
) -> None:
    with arithmetic("kernels"):
        rough = load(TARGET_DIR, weights=weights, kv_dtype=kv_dtype, max_context=1024)
        ratio = torch.tensor(log_loss(rough, 100) - exact_loss).exp().item()
    print(f"{weights}, keys and values {kv_dtype}: perplexity {100 * (ratio - 1):+.3f} %")
    assert abs(ratio - 1) < allowed


class LargestResult(TorchDispatchMode):
    """Notes the most values that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor):
                self.values = max(self.values, each.numel())
        return result


@pytest.mark.parametrize("chunk", [512, 8192])
def test_prefill_of_a_long_prompt_holds_no_matrix_of_scores(engine: Engine, chunk: int) -> None:
    if engine.config.weights != "float32":
        pytest.skip("attention is the same for all")
    target = load(TARGET_DIR, max_context=2048, prefill_chunk=chunk).target
    spec = target.spec
    prompt = torch.randint(5, spec.vocab, (2000,), generator=torch.Generator().manual_seed(0))
    widest = max(2 * max(layer.ffn for layer in spec.layers), len(spec.layers) * spec.ple)
    with torch.inference_mode(), LargestResult() as largest:
        for begin in range(0, len(prompt), chunk):
            target.prefill(prompt[begin : begin + chunk], begin + chunk >= len(prompt))
    # Activations, and masks that all heads share.
    bound = max(min(chunk, 2000) * widest, 4 * 2**20, target.table.out_features * spec.hidden)
    assert largest.values <= bound
    assert bound < spec.q_heads * 2000 * 2000


@pytest.mark.parametrize(("where", "trips"), [("memory", 1), ("disk", 2)])
def test_host_round_trips_of_a_round(
    monkeypatch: pytest.MonkeyPatch, where: str, trips: int
) -> None:
    """One with the per-layer table in memory; with it on disk its rows are asked for by number.

    A draft length that is fixed before the round needs no more, whatever the sampling rules are.
    """
    engine = load(TARGET_DIR, DRAFTER_DIR, ple=where, max_context=1024)
    count = 0
    original = decode.read_back

    def counted(ids: torch.Tensor) -> list[int]:
        nonlocal count
        count += 1
        return original(ids)

    monkeypatch.setattr(decode, "read_back", counted)
    monkeypatch.setattr(rounds, "read_back", counted)
    monkeypatch.setattr(ple, "read_back", counted)
    rules = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1, "seed": 1}
    for sampling in ({}, rules):
        seen = before = 0
        for event in engine.generate(
            request("Bring Anna the red cup.", **sampling), lambda: RoundControl(4)
        ):
            if isinstance(event, Piece):
                if seen >= 2 and event.draft_length:
                    assert count - before == trips
                seen, before = seen + 1, count
        assert seen > 4


def test_nothing_else_in_a_round_waits_for_the_device() -> None:
    folder = Path(decode.__file__).parent
    names = ("decode", "drafting", "draft_length", "target", "drafter", "torch_pass", "sampling")
    for name in (*names, "attention", "layers"):
        text = (folder / f"{name}.py").read_text()
        found = re.findall(r"\.(?:tolist|item|cpu|numpy)\(", text)
        allowed = 1 if name == "layers" else 0  # layer_scalar, at load
        assert len(found) == allowed, name


def test_precisions_that_a_gpu_has_no_product_for_are_refused_with_the_alternatives() -> None:
    with pytest.raises(GemmaMtpError, match=r"set engine\.weights to bfloat16 or int4") as caught:
        precision_on("int8", CUDA, 256, 256)
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    assert precision_on("int4", CUDA, 256, 256) == "int4"
    assert precision_on("int4", CUDA, 256, 96) == "bfloat16"
    assert table_precision("int4", CUDA) == "bfloat16"
    assert table_precision("int4", torch.device("cpu")) == "int8"


def test_a_gpu_keeps_zero_points_too_and_odd_shapes_in_bfloat16() -> None:
    assert linear_bytes(4, 64, "int4", torch.device("cpu")) == 4 * (32 + 4)
    gpu = torch.device("cuda")
    assert linear_bytes(8, 128, "int4", gpu) == 8 * (64 + 4 * 4)
    assert linear_bytes(8, 64, "int4", gpu) == 8 * 64 * 2
