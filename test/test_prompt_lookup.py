# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The index of runs of tokens, against a search through the whole text."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.prompt_lookup import BYTES_A_TOKEN, NgramIndex, PromptLookup
from gemma_mtp_ros.engine.sampling import Rules

TEXTS = st.lists(st.integers(0, 4), max_size=40)
STATE = torch.zeros(1, 1)


def searched(text: list[int], end: int, longest: int) -> int | None:
    """Place after the latest earlier occurrence of the longest run that ends the text.

    :param end: only what is before is looked at, the text itself may be longer.
    """
    for n in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - n :]
        for at in range(end - 1, n - 1, -1):
            if text[at - n : at] == tail:
                return at
    return None


@given(TEXTS, st.integers(1, 5))
def test_finds_what_a_search_finds(text: list[int], longest: int) -> None:
    index = NgramIndex(longest)
    for i, token in enumerate(text):
        index.extend([token])
        assert index.find() == searched(text[: i + 1], i + 1, longest)


@given(TEXTS, st.lists(st.integers(0, 4), max_size=6))
def test_finds_the_end_of_a_text_that_goes_on(text: list[int], more: list[int]) -> None:
    index = NgramIndex()
    index.extend(text)
    assert index.find(more) == searched(text + more, len(text), index.longest)


@given(TEXTS, TEXTS)
def test_parts_are_as_good_as_the_whole(first: list[int], second: list[int]) -> None:
    parts, whole = NgramIndex(), NgramIndex()
    parts.extend(first)
    parts.extend(second)
    whole.extend(first + second)
    assert parts.find() == whole.find()
    assert parts.tokens == whole.tokens


def test_the_latest_of_the_longest_runs_counts() -> None:
    index = NgramIndex()
    index.extend([1, 2, 3, 7, 1, 2, 3, 8, 2, 3, 9, 1, 2, 3])
    assert index.find() == 7
    assert index.follow(7, 4) == [8, 2, 3, 9]


def test_a_copy_that_reaches_the_end_goes_on_with_itself() -> None:
    index = NgramIndex()
    index.extend([5, 6, 5])
    assert index.find() == 1
    assert index.follow(1, 5) == [6, 5, 6, 5, 6]


@given(TEXTS.filter(bool), st.integers(1, MAX_DRAFT))
def test_steps_give_what_a_chain_gives(text: list[int], k: int) -> None:
    lookup = PromptLookup(torch.device("cpu"))
    lookup.begin(text[:-1])
    if lookup.catch_up(text[-1:]) == 0:
        assert not lookup.proposes()
        return
    token, made = torch.tensor(text[-1:]), []
    chain = lookup.chain(token, STATE, k, Rules(), 0).tolist()
    for _ in range(k):
        lookup.step(token, STATE)
        assert lookup.proposes()
        scores, token = lookup.logits(STATE)
        assert scores.shape == (1, 1)
        made.append(int(token))
    assert made == chain


def test_after_a_token_that_was_forced_it_looks_anew() -> None:
    lookup = PromptLookup(torch.device("cpu"))
    lookup.begin([1, 2, 3, 4, 5, 1])
    assert lookup.catch_up([2]) == MAX_DRAFT
    for token, expected in ((2, 3), (4, 5), (9, None), (1, 2)):
        lookup.step(torch.tensor([token]), STATE)
        assert lookup.proposes() == (expected is not None)
        if expected is not None:
            assert int(lookup.logits(STATE)[1]) == expected


@pytest.mark.parametrize("size", [1000, 4000])
def test_each_token_is_entered_once(size: int) -> None:
    """Work and memory do not grow with the square of the text."""
    index = NgramIndex()
    index.extend(i % 97 for i in range(size))
    assert len(index._after) <= index.longest * 97


def test_memory_of_the_index_is_what_is_reckoned_with() -> None:
    """A text without repetition, whose every run is a new entry."""
    tracemalloc.start()
    index = NgramIndex()
    index.extend(range(30_000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.25 * BYTES_A_TOKEN < held / len(index.tokens) <= BYTES_A_TOKEN
