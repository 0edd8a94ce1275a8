# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Which model fits a board, and which of those to take: the rules of ``gemma-mtp plan``.

Bytes come from ``sizes``, by which configure refuses too; speeds from ``estimate``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ..api import DraftKind, EngineConfig, GemmaMtpError, MemoryUse
from . import estimate, sizes
from .draft_loading import DraftPlan, draft_bytes
from .spec import DrafterSpec, TextSpec

MIB, GIB = 2**20, 2**30

PROCESS_BYTES = 600 * MIB
"""Python, torch, transformers and a tokenizer of 262,144 tokens in the engine process, and the
node's own: 260 MiB of libraries and 90 MiB of node measured on x86-64, the rest estimated."""

CONTEXT_BYTES = 512 * MIB
"""CUDA context with the kernels in use, an estimate. It goes when the process ends."""

VISIBLE = 0.92
"""Share of a module's memory that Linux sees: an Orin Nano 8GB reports 7.4 GiB."""

SYSTEM_BYTES = 768 * MIB
"""Of Ubuntu without a desktop, before any node, an estimate; a desktop takes 1 GiB more."""

CONTEXTS = (16_384, 8192, 4096)
"""Contexts that are recommended, the longest whose keys and values are cheap."""

CHEAP = 0.02
"""Share of the memory that keys and values may take."""

PRECISIONS = {"cpu": ("bfloat16", "int8", "int4"), "cuda": ("bfloat16", "int4")}
"""Weights that are recommended, the exactest first."""

MIN_SPEED = 10.0
"""Tokens per second that a recommended model reaches on text that drafts badly: a fast reader's."""


@dataclass(frozen=True)
class Machine:
    """What a model has to fit into.

    Attributes:
        memory: bytes that Linux sees, or of a GPU with memory of its own.
        free: bytes of it that can be had.
        bandwidth: bytes/s that are reached.
        shared: CPU and GPU share the memory.
    """

    device: torch.device
    memory: int
    free: int
    bandwidth: float
    shared: bool = True

    @property
    def overhead(self) -> int:
        """Bytes that engine and node take beside the model in this memory."""
        cuda = CONTEXT_BYTES if self.device.type == "cuda" else 0
        return cuda + (PROCESS_BYTES if self.shared else 0)


def module_machine(memory_gib: int, bandwidth_gb_s: float, device: torch.device) -> Machine:
    """A module that is not at hand: what its data sheet lets expect."""
    memory = int(VISIBLE * memory_gib * GIB)
    bandwidth = estimate.EFFICIENCY * bandwidth_gb_s * 1e9
    return Machine(device, memory, max(0, memory - SYSTEM_BYTES), bandwidth)


def default_reserve(memory: int) -> int:
    """Bytes to leave to the rest of the robot: a quarter of the memory, at least 1 GiB."""
    return max(GIB, memory // 4 // MIB * MIB)


@dataclass(frozen=True)
class Pair:
    """A target and its drafter by name, and their sizes.

    Attributes:
        draft: an MTP assistant; None: there is none.
        kind: where drafts come from.
        smaller: what drafts where the kind is draft_model.
    """

    name: str
    model: str
    drafter: str
    target: TextSpec
    draft: DrafterSpec | None
    kind: DraftKind = "mtp"
    smaller: TextSpec | None = None

    @property
    def source(self) -> DrafterSpec | TextSpec | estimate.Lookup | None:
        """What drafts."""
        return estimate.Lookup() if self.kind == "prompt_lookup" else self.draft or self.smaller

    def use(self, config: EngineConfig, device: torch.device) -> MemoryUse:
        """Bytes by purpose, as configure counts them.

        :raises GemmaMtpError: when the device has no product of a precision asked for.
        """
        use = sizes.planned(self.target, self.draft, config, device)
        context = sizes.context_of(self.target, config)
        if self.smaller is not None:
            context = min(context, self.smaller.max_positions)
        plan = DraftPlan(self.kind, self.drafter, model=self.smaller, context=context)
        drafting = draft_bytes(plan, config, device)
        return use.model_copy(
            update={
                "drafter": use.drafter + drafting.weights,
                "kv": use.kv + drafting.kv,
                "workspace": use.workspace + drafting.workspace,
            }
        )


@dataclass(frozen=True)
class Fit:
    """A pair in one configuration on one machine.

    Attributes:
        use: bytes by purpose.
        overhead: bytes of processes and CUDA context.
        left: bytes of what is free that stay for the rest of the robot; negative: it does not fit.
        plain: tokens per second without drafts; `badly`, `well` with them, by how the text drafts.
        draft_length: what to set ``draft.max_length`` to.
        refusal: why the engine does not run this on the device; empty: it does.
    """

    pair: Pair
    config: EngineConfig
    use: MemoryUse
    overhead: int
    left: int
    plain: float
    badly: float
    well: float
    draft_length: int
    refusal: str = ""

    @property
    def total(self) -> int:
        """All bytes."""
        return self.use.total + self.overhead


def fit(pair: Pair, config: EngineConfig, machine: Machine) -> Fit:
    """What a configuration takes and how fast it may be."""
    try:
        use = pair.use(config, machine.device)
    except GemmaMtpError as error:
        return Fit(pair, config, MemoryUse(), 0, 0, 0.0, 0.0, 0.0, 0, str(error))
    setting = estimate.Setting(
        pair.target,
        pair.source,
        config.weights,
        sizes.kv_dtype_of(config),
        machine.device,
        machine.bandwidth,
        min(estimate.Setting.position, config.max_context // 2),
        config.reproducible,
    )
    k = estimate.best_length(setting)
    bad = estimate.NEVER if pair.kind == "prompt_lookup" else estimate.BADLY
    shorter = estimate.best_length(setting, bad)
    return Fit(
        pair,
        config,
        use,
        machine.overhead,
        machine.free - use.total - machine.overhead,
        estimate.tokens_per_second(setting, 0),
        estimate.tokens_per_second(setting, shorter, bad),
        estimate.tokens_per_second(setting, k),
        k,
    )


def recommended_context(pair: Pair, config: EngineConfig, machine: Machine) -> int:
    """The longest of :data:`CONTEXTS` whose keys and values are cheap, else the shortest; at most
    what the model allows.
    """
    allowed = [min(context, pair.target.max_positions) for context in CONTEXTS]
    for context in allowed:
        tried = config.model_copy(update={"max_context": context})
        kv = sizes.kv_bytes(pair.target, tried)
        if kv <= CHEAP * machine.memory:
            return context
    return allowed[-1]


def fits(
    pairs: Iterable[Pair],
    base: EngineConfig,
    machine: Machine,
    *,
    precisions: Sequence[str],
    context: int | None,
) -> list[Fit]:
    """Every pair in every precision, in order.

    :param context: None: the one that is recommended for each.
    """
    found = []
    for pair in pairs:
        for weights in precisions:
            config = base.model_copy(update={"model": pair.model, "weights": weights})
            config = config.model_copy(
                update={
                    "drafter": pair.drafter,
                    "draft_kind": pair.kind,
                    "max_context": min(
                        context or recommended_context(pair, config, machine),
                        pair.target.max_positions,
                    ),
                }
            )
            found.append(fit(pair, config, machine))
    return found


def choose(found: Sequence[Fit], reserve: int, min_speed: float = MIN_SPEED) -> Fit | None:
    """The largest target that leaves the reserve and is fast enough, in the exactest weights; else
    the fastest that leaves the reserve; None: nothing does.
    """
    good = [each for each in found if not each.refusal and each.left >= reserve]
    fast = [each for each in good if each.badly >= min_speed]
    if fast:
        largest = fast[-1].pair
        return next(each for each in fast if each.pair is largest)
    return max(good, key=lambda each: each.badly, default=None)
