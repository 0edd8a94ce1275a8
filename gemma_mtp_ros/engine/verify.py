# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Proof, on the machine at hand, that a row's bits do not depend on the pass it is computed in."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .attention import BLOCK
from .cache import ROWS
from .target import Target

SPLITS = ((1,) * 12, (8, 4), (3, 5, 4), (2, 7, 1, 2), (6, 6), (5, 1, 6))
"""Ways to cut the same twelve tokens into passes: every width is met at several places."""

TOKENS = 12
"""Tokens of each way."""


def starts(target: Target) -> list[int]:
    """Lengths to test at: short, across the window, and across block borders of the full layers."""
    room = target.cache.max_context - TOKENS
    window = target.spec.window
    wanted = [9, window - 5, 2 * window + 3, BLOCK - 6, 2 * BLOCK - 6]
    return sorted({length for length in wanted if 0 < length <= room})


def verify(target: Target, beat: Callable[[], None]) -> str:
    """Compare logits and states of the same rows over passes of different widths, in bits.

    The caches are filled with noise instead of a prompt: what is asked is whether the shape of a
    pass shows in its rows, whatever the rows before it hold.

    :param beat: called between passes, as a sign of life.
    :return: ``verified``, or what differed.
    """
    cache = target.cache
    tokens = torch.Generator().manual_seed(20260501)
    ids = torch.randint(0, target.spec.vocab, (TOKENS,), generator=tokens).to(target.device)
    if not starts(target):
        return f"not checked: a context of {cache.max_context} tokens is too short for it"
    verdict = "verified"
    for length in starts(target):
        reference = None
        for split in SPLITS:
            noise = torch.Generator(target.device).manual_seed(length)
            for layer in cache.layers.values():
                layer.fill(length + TOKENS + ROWS, noise)
            rows, at = [], 0
            for width in split:
                beat()
                state, logits = target.decode(ids[at : at + width], length + at)
                rows.append(torch.cat([state, logits], 1))
                at += width
            result = torch.cat(rows)
            if reference is None:
                reference = result
            elif not torch.equal(reference.view(torch.int32), result.view(torch.int32)):
                worst = float((reference - result).abs().max())
                verdict = (
                    f"not the same bits: at length {length}, passes of widths {split} differ from "
                    f"single rows by up to {worst:.1e}"
                )
                break
        if verdict != "verified":
            break
    cache.release()
    return verdict
