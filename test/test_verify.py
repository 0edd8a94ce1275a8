# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The proof of reproducibility finds what it is there to find, and draft lengths keep their
bounds.
"""

from __future__ import annotations

import pytest
import tiny
import torch
from engine_tools import load
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.draft_length import longest_draft
from gemma_mtp_ros.engine.verify import starts, verify


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return load(*tiny.make_pair(tmp_path_factory.mktemp("pair")))


def test_a_last_bit_that_depends_on_the_width_is_found(engine, monkeypatch):
    decode = engine.target.decode

    def leaky(ids, position):
        hidden, logits = decode(ids, position)
        if len(ids) == 5:
            logits = logits.clone()
            logits[-1, 0] = torch.nextafter(logits[-1, 0], torch.tensor(1e9))
        return hidden, logits

    beats = []
    with torch.inference_mode():
        assert verify(engine.target, lambda: beats.append(1)) == "verified"
        monkeypatch.setattr(engine.target, "decode", leaky)
        verdict = verify(engine.target, lambda: None)
    assert "not the same bits" in verdict
    assert "widths (3, 5, 4)" in verdict
    assert len(beats) > 100


def test_lengths_lie_around_window_and_block_borders(engine):
    lengths = starts(engine.target)
    window = engine.target.spec.window
    assert any(length < window < length + 12 for length in lengths)
    assert any(length > 2 * window for length in lengths)
    assert any(length < 256 < length + 12 for length in lengths)


def test_what_was_not_compared_is_not_called_verified(tmp_path):
    engine = load(*tiny.make_pair(tmp_path), max_context=16)
    assert engine.info.reproducible.startswith("not checked")


@given(st.integers(0, 20), st.integers(1, 50), st.integers(1, 50))
def test_draft_length_keeps_every_bound(cap, tokens_left, context_left):
    k = longest_draft(cap, tokens_left, context_left)
    assert 0 <= k <= min(cap, MAX_DRAFT)
    assert k + 1 <= max(tokens_left, 1)
    assert k + 1 <= max(context_left, 1)
    assert k == min(cap, MAX_DRAFT) or k + 1 in (tokens_left, context_left)
