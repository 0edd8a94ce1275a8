# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How fast decoding may be on a board that is not at hand: an estimate from memory bandwidth.

A pass is bound by what it reads. With B bytes/s of memory, of which the share e is reached,

    pass(n)  = bytes(n) / (e B) * rows(n) + layers * o
    step     = bytes of a draft step / (e B) + drafter layers * o
    round(k) = pass(k + 1) + k step

    tokens/s = (1 + a1 + ... + ak) / round(k)

bytes(n): weights, keys and values that a pass of n rows reads (``sizes.pass_bytes``; of a mixture
of experts those that its rows choose). rows(n) = 1 + s (n - 1): what n rows cost beyond reading
the same bytes; so v(n) = pass(n) / pass(1) and c = step / pass(1). ai: share of rounds in which the
draft at depth i stands.

Assumptions, none of them measured on a Jetson:

* e, :data:`EFFICIENCY` of the nominal bandwidth of a module, :data:`EFFICIENCY_MEASURED` of one
  that was measured by reading.
* a, :data:`WELL`: published for the 31B pair, taken for all pairs and kinds of drafters;
  :data:`BADLY`: three in five drafts stand, whatever came before; of copies :data:`NEVER` one.
  Published to depth 4, so no more is counted on; the node's controller goes further where it pays.
* s, :data:`ROW_COST`: on a CPU from this engine's benchmarks on x86-64 (docs/benchmarks.md) and,
  for int4, an early measurement; on a GPU a guess after llama.cpp on an AGX Orin, where rows were
  free.
* o, :data:`LAYER_S`: launches and Python between products.
* With ``engine.reproducible`` a GPU computes :data:`~.cache.ROWS` rows in every pass.
* Nobody else uses the memory, clocks are not cut, the CPU's cores keep up with its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .cache import ROWS
from .linear import Precision
from .sizes import draft_bytes, pass_bytes
from .spec import DrafterSpec, TextSpec

EFFICIENCY = 0.6
EFFICIENCY_MEASURED = 0.8

WELL = (0.92, 0.78, 0.67, 0.57)
"""Share of rounds in which the draft at each depth stands, on text that drafts well."""

BADLY = (0.6, 0.36, 0.216, 0.13)
"""The same on text that drafts badly."""

NEVER = (0.0, 0.0, 0.0, 0.0)
"""The same for copies out of a text that repeats nothing."""

CLOSE = 0.95
"""The shortest draft that reaches this share of the best speed is the one to choose."""

ROW_COST = {
    "cpu": {"float32": 0.0225, "bfloat16": 0.0225, "int8": 0.0775, "int4": 0.32},
    "cuda": {"float32": 0.02, "bfloat16": 0.02, "int8": 0.02, "int4": 0.02},
}
"""Cost of each further row of a pass, relative to the first."""

LAYER_S = {"cpu": 30e-6, "cuda": 50e-6}
"""Seconds that a layer takes beside reading memory."""


@dataclass(frozen=True)
class Lookup:
    """Drafts that are copied out of the text: they take no time to speak of."""


@dataclass(frozen=True)
class Setting:
    """What is run, and on what.

    Attributes:
        drafter: an MTP assistant, a smaller model, or what is copied; None: no drafts.
        bandwidth: of the memory in bytes/s, as far as it is reached.
        position: tokens in the caches.
    """

    target: TextSpec
    drafter: DrafterSpec | TextSpec | Lookup | None
    precision: Precision
    kv_dtype: str
    device: torch.device
    bandwidth: float
    position: int = 1024
    reproducible: bool = True

    def pass_s(self, rows: int) -> float:
        """Seconds of a target pass."""
        if self.reproducible and self.device.type == "cuda":
            rows = ROWS
        read = pass_bytes(
            self.target, self.precision, self.kv_dtype, self.device, self.position, rows
        )
        factor = 1.0 + ROW_COST[self.device.type][self.precision] * (rows - 1)
        return read / self.bandwidth * factor + len(self.target.layers) * LAYER_S[self.device.type]

    @property
    def step_s(self) -> float:
        """Seconds of a draft step."""
        drafter, kv, device = self.drafter, self.kv_dtype, self.device
        assert drafter is not None
        if isinstance(drafter, Lookup):
            return 0.0
        if isinstance(drafter, TextSpec):
            read = pass_bytes(drafter, self.precision, kv, device, self.position)
            layers = len(drafter.layers)
        else:
            read = draft_bytes(drafter, self.target, self.precision, kv, device, self.position)
            layers = len(drafter.body.layers)
        return read / self.bandwidth + layers * LAYER_S[self.device.type]


def tokens_per_pass(k: int, standing: Sequence[float] = WELL) -> float:
    """Tokens that a round of ``k`` drafts decides."""
    return 1.0 + sum(standing[:k])


def tokens_per_second(setting: Setting, k: int, standing: Sequence[float] = WELL) -> float:
    """Tokens per second with ``k`` drafts a round, at most as many as ``standing`` knows."""
    round_s = setting.pass_s(k + 1) + (k * setting.step_s if k else 0.0)
    return tokens_per_pass(k, standing) / round_s


def best_length(setting: Setting, standing: Sequence[float] = WELL) -> int:
    """The shortest draft whose speed is close to the best; 0 without a drafter."""
    if setting.drafter is None:
        return 0
    speeds = [tokens_per_second(setting, k, standing) for k in range(len(standing) + 1)]
    return next(k for k, speed in enumerate(speeds) if speed >= CLOSE * max(speeds))
