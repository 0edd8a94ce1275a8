# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From logits to tokens, as a function of logits, parameters, seed and place alone.

At each place of the completion the token is ``argmax(z + gumbel)``, with ``z`` the filtered logits
and the noise a counter-based function of (seed, index in the completion, token id). That draws
exactly from softmax(z) (Gumbel-max), needs no generator state, and is the same whether the token
was drafted or not: a draft stands iff it equals the token (coupling by shared noise,
arXiv:2408.07978).

Order of the filters: penalties, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

MASK64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX1, MIX2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of the splitmix64 generator (Steele, Lea, Flood: OOPSLA 2014)."""


@dataclass(frozen=True)
class Rules:
    """Sampling parameters with every default resolved; field meanings as ``api.SamplingParams``."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def penalises(self) -> bool:
        """Whether any penalty is at work."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _signed(value: int) -> int:
    value &= MASK64
    return value - (1 << 64) if value >> 63 else value


def mix64(value: int) -> int:
    """splitmix64's finaliser over one unsigned 64-bit integer."""
    value &= MASK64
    value = ((value ^ (value >> 30)) * MIX1) & MASK64
    value = ((value ^ (value >> 27)) * MIX2) & MASK64
    return value ^ (value >> 31)


def _mix64_tensor(value: torch.Tensor) -> torch.Tensor:
    """:func:`mix64` over int64 tensors; shifts are made logical by masking the sign's copies."""
    value = value ^ ((value >> 30) & ((1 << 34) - 1))
    value = value * _signed(MIX1)
    value = value ^ ((value >> 27) & ((1 << 37) - 1))
    value = value * _signed(MIX2)
    return value ^ ((value >> 31) & ((1 << 33) - 1))


def place_keys(seed: int, first_index: int, rows: int) -> list[int]:
    """Signed 64-bit keys of the places ``first_index .. first_index + rows - 1``."""
    return [_signed(mix64(mix64(seed) + (first_index + i + 1) * GOLDEN)) for i in range(rows)]


def uniform_of(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1), float64 ``(rows, m)``, for places with keys ``(rows,)``.

    :param ids: token ids, ``(m,)`` for all rows alike or ``(rows, m)``.
    """
    bits = _mix64_tensor(keys[:, None] + (ids + 1) * _signed(GOLDEN))
    # 52 bits: with 53 the largest would round to 1, whose noise is infinite.
    return (((bits >> 12) & ((1 << 52) - 1)).double() + 0.5) * 2.0**-52


def gumbel_of(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise ``(rows, m)`` float64; arguments as :func:`uniform_of`."""
    return -torch.log(-torch.log(uniform_of(keys, ids)))


def uniform(seed: int, first_index: int, rows: int, ids: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1), float64, for places ``first_index .. first_index + rows - 1``.

    :param ids: token ids, ``(m,)`` for all rows alike or ``(rows, m)``.
    :return: ``(rows, m)``; an entry depends on (seed, place, token id) alone.
    """
    keys = place_keys(seed, first_index, rows)
    return uniform_of(torch.tensor(keys, dtype=torch.int64, device=ids.device), ids)


def gumbel(seed: int, first_index: int, rows: int, ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise ``(rows, m)`` float64, by place and token id."""
    return -torch.log(-torch.log(uniform(seed, first_index, rows, ids)))


class TokenCounts:
    """Which tokens the prompt holds and how often the standing text holds each."""

    def __init__(self, vocab: int, prompt: Sequence[int], device: torch.device) -> None:
        self.prompt = torch.zeros(vocab, dtype=torch.bool, device=device)
        self.prompt[torch.tensor(list(prompt), dtype=torch.long, device=device)] = True
        self.standing = torch.zeros(vocab, device=device)

    def add(self, tokens: Sequence[int]) -> None:
        """Let these tokens stand."""
        if tokens:
            ids = torch.tensor(list(tokens), dtype=torch.long, device=self.standing.device)
            self.standing.index_add_(0, ids, torch.ones(len(tokens), device=ids.device))

    def rows(self, drafts: torch.Tensor) -> torch.Tensor:
        """``(len(drafts) + 1, vocab)``: the standing counts, were the first 0, 1, ... drafts to
        stand.

        Nothing is stored: a rejected draft leaves no trace.
        """
        counts = self.standing.repeat(drafts.shape[0] + 1, 1)
        for i in range(drafts.shape[0]):
            counts[i + 1 :, drafts[i : i + 1]] += 1  # a number would be read back
        return counts


def penalise(
    logits: torch.Tensor, rules: Rules, prompt: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """Repetition (over prompt and standing text), presence and frequency penalties.

    :param logits: ``(rows, vocab)``; ``counts`` alike, ``prompt`` ``(vocab,)`` bool.
    """
    if rules.repetition_penalty != 1.0:
        seen = prompt | (counts > 0)
        scaled = torch.where(
            logits < 0, logits * rules.repetition_penalty, logits / rules.repetition_penalty
        )
        logits = torch.where(seen, scaled, logits)
    return logits - rules.presence_penalty * (counts > 0) - rules.frequency_penalty * counts


def filtered(
    logits: torch.Tensor, rules: Rules, ids: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Temperature and filters.

    :param logits: ``(rows, m)``, of tokens ``ids`` (``(m,)``; None: token = column).
    :return: scaled logits ``(rows, m')`` with -inf where filtered out, and their token ids,
        ``(m',)`` or ``(rows, m')``.
    """
    z = logits.double() / rules.temperature
    if ids is None:
        ids = torch.arange(z.shape[-1], device=z.device)
    ordered = False
    if 0 < rules.top_k < z.shape[-1]:
        z, places = z.topk(rules.top_k, -1, sorted=True)
        ids = ids[places]
        ordered = True
    if rules.top_p < 1.0:
        if not ordered:
            z, places = z.sort(dim=-1, descending=True, stable=True)
            ids = ids[places]
        probabilities = z.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        z = z.masked_fill(before >= rules.top_p, float("-inf"))
    if rules.min_p > 0.0:
        # Relative to the likeliest token: an offset of logits, whatever was filtered before.
        floor = z.amax(-1, keepdim=True) + torch.log(torch.tensor(rules.min_p, dtype=z.dtype))
        z = z.masked_fill(z < floor, float("-inf"))
    return z, ids


def choose(
    logits: torch.Tensor, rules: Rules, first_index: int, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """The token of each row, ``(rows,)`` int64.

    :param logits: ``(rows, m)`` of consecutive places from ``first_index`` on, penalties applied.
    """
    if rules.temperature == 0.0:
        best = logits.argmax(-1)
        return best if ids is None else ids[best]
    z, ids = filtered(logits, rules, ids)
    best = (z + gumbel(rules.seed, first_index, z.shape[0], ids)).argmax(-1)
    if ids.dim() == 1:
        return ids[best]
    return ids.gather(1, best[:, None])[:, 0]


def probability_of(
    logits: torch.Tensor, token: torch.Tensor, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax of one row ``(1, m)`` at ``token`` ``(1,)``: ``(1, 1)``.

    :param ids: ``(m,)`` token ids of the columns; None: token = column.
    """
    at = token[None, :] if ids is None else (ids == token).long().argmax()[None, None]
    return logits.softmax(-1).gather(1, at)


def standing(drafts: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafts stand: the longest prefix that equals the target's own choices."""
    count = 0
    for draft, token in zip(drafts, chosen, strict=False):
        if draft != token:
            break
        count += 1
    return count
