# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Noise, filters, penalties and the acceptance rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gemma_mtp_ros.engine.sampling import (
    Rules,
    TokenCounts,
    choose,
    filtered,
    gumbel,
    mix64,
    penalise,
    probability_of,
    standing,
    uniform,
)

VOCAB = 40
CPU = torch.device("cpu")


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def test_noise_depends_on_seed_place_and_token_alone():
    ids = torch.arange(100)
    noise = uniform(7, 5, 4, ids)
    assert torch.equal(uniform(7, 8, 1, ids)[0], noise[3])
    shuffled = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniform(7, 5, 4, shuffled), noise[:, shuffled])
    per_row = shuffled[:10].expand(4, 10)
    assert torch.equal(uniform(7, 5, 4, per_row), noise[:, shuffled[:10]])
    assert not torch.equal(uniform(8, 5, 4, ids), noise)


def test_tensor_hash_equals_the_integer_one():
    """The int64 arithmetic of the tensors wraps as unsigned 64-bit integers do."""
    key = mix64(mix64(2**63 - 1) + 4 * 0x9E3779B97F4A7C15)
    for token in (0, 1, 262_143):
        bits = mix64(key + (token + 1) * 0x9E3779B97F4A7C15)
        expected = ((bits >> 12) + 0.5) * 2.0**-52
        assert uniform(2**63 - 1, 3, 1, torch.tensor([token])).item() == expected


def test_noise_is_uniform_and_independent_over_places():
    noise = uniform(3, 0, 200, torch.arange(500))
    assert abs(noise.mean().item() - 0.5) < 5 * (1 / 12 / noise.numel()) ** 0.5
    assert abs(noise.var().item() - 1 / 12) < 1e-3
    along_places = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))
    along_tokens = torch.corrcoef(torch.stack([noise[:, :-1].flatten(), noise[:, 1:].flatten()]))
    assert abs(along_places[0, 1]) < 0.02
    assert abs(along_tokens[0, 1]) < 0.02
    assert torch.isfinite(gumbel(3, 0, 200, torch.arange(500))).all()


@pytest.mark.parametrize(
    "rules",
    [
        Rules(temperature=1.0),
        Rules(temperature=0.7, top_k=6),
        Rules(temperature=1.3, top_p=0.8),
        Rules(temperature=1.0, top_k=9, top_p=0.9, min_p=0.05),
    ],
)
def test_draws_follow_the_softmax_of_the_filtered_logits(rules):
    """Total variation under 0.01 with 40,000 draws of 8 tokens: a bias of 0.02 would show."""
    logits = torch.tensor([[2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5]])
    z, ids = filtered(logits, rules)
    expected = torch.zeros(8, dtype=torch.float64)
    expected[ids.flatten()] = z.softmax(-1)[0]
    draws, counts = 40_000, torch.zeros(8)
    for first in range(0, draws, 4000):
        tokens = choose(logits.expand(4000, 8), Rules(**{**vars(rules), "seed": 11}), first)
        counts += torch.bincount(tokens, minlength=8)
    distance = 0.5 * (counts / draws - expected).abs().sum().item()
    assert distance < 0.01
    # The power of the check: a shift of 0.02 from one token to another is outside it.
    biased = expected.clone()
    biased[0], biased[1] = biased[0] - 0.02, biased[1] + 0.02
    assert 0.5 * (counts / draws - biased).abs().sum().item() > 0.01


@pytest.mark.parametrize("seed", range(8))
def test_filters_keep_what_those_of_transformers_keep(seed):
    logits = logits_of(seed)
    rules = Rules(temperature=0.8, top_k=15, top_p=0.85, min_p=0.02)
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(0.8),
            TopKLogitsWarper(15),
            TopPLogitsWarper(0.85),
            MinPLogitsWarper(0.02),
        ]
    )(torch.zeros(1, 1, dtype=torch.long), logits.double())
    z, ids = filtered(logits, rules)
    mine = torch.full((1, VOCAB), float("-inf"), dtype=torch.float64).scatter(1, ids, z)
    torch.testing.assert_close(mine, theirs)


def test_at_least_one_token_survives_every_filter():
    z, _ = filtered(logits_of(0), Rules(temperature=1.0, top_k=1, top_p=1e-9, min_p=1.0))
    assert torch.isfinite(z).sum() == 1


def test_repetition_penalty_equals_that_of_transformers():
    logits = logits_of(4)
    prompt, text = [3, 8, 8, 20], [5, 3]
    counts = TokenCounts(VOCAB, prompt, CPU)
    counts.add(text)
    rules = Rules(temperature=1.0, repetition_penalty=1.3)
    mine = penalise(logits, rules, counts.prompt, counts.standing[None])
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + text]), logits)
    torch.testing.assert_close(mine, theirs)


def test_presence_and_frequency_count_standing_text_only():
    counts = TokenCounts(VOCAB, [1, 2, 3], CPU)
    counts.add([7, 7, 9])
    rules = Rules(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    change = penalise(torch.zeros(1, VOCAB), rules, counts.prompt, counts.standing[None])[0]
    assert change[7] == -1.0
    assert change[9] == -0.75
    assert not change[[1, 2, 3]].any()


def test_a_draft_counts_for_the_rows_after_it_and_leaves_no_trace():
    counts = TokenCounts(VOCAB, [], CPU)
    counts.add([4])
    rows = counts.rows(torch.tensor([4, 6]))
    assert rows[:, 4].tolist() == [1, 2, 2]
    assert rows[:, 6].tolist() == [0, 0, 1]
    assert counts.standing[6] == 0
    assert counts.standing[4] == 1


@given(st.lists(st.integers(0, 3), max_size=7), st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_standing_is_the_longest_equal_prefix(drafts, chosen):
    kept = standing(drafts, chosen)
    assert drafts[:kept] == chosen[:kept]
    assert kept == len(drafts) or drafts[kept] != chosen[kept]


def test_greedy_takes_the_best_of_the_candidates():
    logits = torch.tensor([[0.1, 0.9, 0.3]])
    assert choose(logits, Rules(), 0).item() == 1
    assert choose(logits, Rules(), 0, torch.tensor([10, 20, 30])).item() == 20


@pytest.mark.parametrize("ids", [None, [7, 3, 9, 1, 5]])
def test_the_probability_is_that_of_the_token(ids):
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.0, 1.0]])
    named = None if ids is None else torch.tensor(ids)
    token = torch.tensor([2 if ids is None else 9])
    expected = logits.softmax(-1)[0, 2].item()
    assert probability_of(logits, token, named).item() == pytest.approx(expected)
