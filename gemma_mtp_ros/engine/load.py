# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From an EngineConfig to a loaded, checked pair."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from ..api import (
    CheckpointError,
    Drafting,
    EngineConfig,
    ErrorCode,
    GemmaMtpError,
    MemoryUse,
    ModelInfo,
)
from . import sizes
from .checkpoint import (
    Weights,
    available_memory,
    check_memory,
    find_folder,
    read_config,
)
from .costs import measure
from .draft_costs import Costs
from .draft_loading import draft_bytes, load_drafter, plan_drafter
from .draft_source import DraftSource
from .drafting import reads_confidence
from .ops import kernels_for
from .spec import TARGET_TYPES, text_spec
from .target import Target
from .text import Text
from .token_masks import Vocabulary
from .verify import verify

SMALL_MODEL = 64 * 2**20
"""Bytes of weights under which a second CPU thread costs more than it computes."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What ``generation_config.json`` says; a model that does not sample is greedy."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_new_tokens: int | None
    eos: frozenset[int]
    suppressed: tuple[int, ...]


@dataclass
class LoadedModel:
    """All that serving needs."""

    target: Target
    drafter: DraftSource | None
    text: Text
    generation: GenerationDefaults
    bos: int
    info: ModelInfo
    suppressed: torch.Tensor | None
    costs: Costs | None
    """What passes and draft steps cost, if the draft length is to follow it."""
    vocabulary: Vocabulary | None = None
    """Tokens as masks need them; None: answers are not held to schemas."""

    def suppress(self, logits: torch.Tensor) -> torch.Tensor:
        """Rule out the tokens that the checkpoint never wants to see."""
        if self.suppressed is not None:
            logits = logits.index_fill(1, self.suppressed, float("-inf"))
        return logits


def _ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(v) for v in value) if isinstance(value, Iterable) else (int(value),)


def generation_defaults(folder: Path, config: Any) -> GenerationDefaults:
    """Read ``generation_config.json``; its absence means greedy and the config's own EOS.

    :raises CheckpointError: when the file is damaged.
    """
    file = folder / "generation_config.json"
    generation = GenerationConfig()
    if file.is_file():
        try:
            generation = GenerationConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{file} cannot be read ({error}); download the checkpoint again"
            ) from error

    def number(name: str, off: float) -> float:
        value = getattr(generation, name, None)
        return off if value is None else float(value)

    eos = _ids(generation.eos_token_id) or _ids(config.eos_token_id)
    return GenerationDefaults(
        temperature=number("temperature", 1.0) if generation.do_sample else 0.0,
        top_p=number("top_p", 1.0),
        top_k=int(number("top_k", 0)),
        min_p=number("min_p", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
        max_new_tokens=int(number("max_new_tokens", 0)) or None,
        eos=frozenset(eos),
        suppressed=_ids(getattr(generation, "suppress_tokens", None)),
    )


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA where torch has it.

    :raises GemmaMtpError: when CUDA is asked for and is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise GemmaMtpError(
            "engine.device is cuda, but this torch sees no CUDA device; install a torch build "
            "for this board or set engine.device to cpu",
            ErrorCode.BACKEND_UNAVAILABLE,
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def has_room(config: EngineConfig, device: torch.device, size: int) -> bool:
    """Whether the rest of the robot keeps its share if ``size`` bytes are taken."""
    free = available_memory(device)
    return free is None or free >= config.memory_reserve_mib * 2**20 + size


def revision_of(folder: Path) -> str:
    """Commit of a snapshot in the Hugging Face cache, else empty."""
    return folder.name if folder.parent.name == "snapshots" else ""


def give_back_freed() -> None:
    """Return what reading left free in the C library's heap to the system, where it can be."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def load_model(config: EngineConfig, progress: Callable[[str, float], None]) -> LoadedModel:
    """Check everything that can be checked from headers, then read the weights.

    :raises GemmaMtpError: one sentence with value, bound and remedy.
    """
    begin = time.monotonic()
    device = pick_device(config.device)
    precision = config.weights
    folder = find_folder(config.model, "model")
    hf_config = read_config(folder, TARGET_TYPES, "model")
    text_config = hf_config.get_text_config()
    spec = text_spec(text_config)
    weights = Weights(folder, "model")
    progress("checkpoint", 0.0)
    context = sizes.context_of(spec, config)
    plan = plan_drafter(config, folder, spec, context)
    drafting_takes = draft_bytes(plan, config, device)
    needed = sizes.needed(spec, plan.mtp, config, device) + drafting_takes.total
    check_memory(needed, available_memory(device), config.memory_reserve_mib * 1024 * 1024)
    if device.type == "cpu" and config.threads == 0 and needed < SMALL_MODEL:
        torch.set_num_threads(1)
    found = kernels_for(device)
    if found is not None:
        found.set_threads(torch.get_num_threads())
    text = Text(folder)
    generation = generation_defaults(folder, text_config)
    if text.size > spec.vocab:
        raise CheckpointError(
            f"the tokenizer of {folder} has {text.size} tokens, more than the vocabulary of "
            f"{spec.vocab}; tokenizer and weights do not belong together"
        )
    vocabulary = None
    if config.structured_output:
        progress("vocabulary", 0.0)
        eos, suppressed_ids = generation.eos, generation.suppressed
        vocabulary = Vocabulary(text, spec.vocab, eos, suppressed_ids, device)
    weights.progress = progress
    with torch.inference_mode():
        target = Target(
            spec,
            weights,
            max_context=context,
            precision=precision,
            kv_dtype=sizes.kv_dtype_of(config),
            ple_in_memory=sizes.ple_in_memory(spec, config.ple, precision),
            device=device,
            reproducible=config.reproducible,
        )
        if plan.weights is not None:
            plan.weights.progress = progress
        drafter = load_drafter(
            plan,
            target,
            text,
            config,
            room=lambda size: has_room(config, device, size),
        )
        weights.forget()
        if plan.weights is not None:
            plan.weights.forget()
        give_back_freed()
        if device.type == "cuda":
            progress("record", 0.0)
            target.record(lambda: progress("record", 0.5))
            if drafter is not None:
                drafter.record(lambda: progress("record", 0.5))
        progress("verify", 0.0)
        reproducible = (
            verify(target, lambda: progress("verify", 0.5)) if config.reproducible else "off"
        )
        costs = None
        if config.adaptive_draft and drafter is not None:
            progress("measure", 0.0)
            costs = measure(target, drafter, lambda: progress("measure", 0.5))
    suppressed = None
    # A list that a family shares may name tokens that this vocabulary lacks.
    unwanted = [token for token in generation.suppressed if 0 <= token < spec.vocab]
    if unwanted:
        suppressed = torch.tensor(unwanted, device=device)
    workspace = sizes.held_workspace_bytes(spec, config) + drafting_takes.workspace
    workspace += 0 if target.recorded is None else target.recorded.bytes
    workspace += 0 if drafter is None else drafter.recorded_bytes
    memory = MemoryUse(
        weights=target.weight_bytes,
        drafter=drafter.weight_bytes if drafter else 0,
        ple=target.ple.bytes if target.ple else 0,
        kv=sizes.kv_bytes(spec, config) + drafting_takes.kv,
        workspace=workspace,
    )
    drafting: Drafting = "none"
    if drafter is not None:
        drafting = "fixed"
        if costs is not None:
            stepwise = reads_confidence(drafter, device, costs.draft)
            drafting = "stepwise" if stepwise else "chain"
    info = ModelInfo(
        model=config.model,
        drafter=plan.name,
        draft_kind=plan.kind,
        precision=precision,
        revision=revision_of(folder),
        context=context,
        vocabulary=spec.vocab,
        bytes=memory.total,
        memory=memory,
        reproducible=reproducible,
        device=str(device),
        drafting=drafting,
        load_s=time.monotonic() - begin,
    )
    bos = text_config.bos_token_id
    return LoadedModel(
        target,
        drafter,
        text,
        generation,
        0 if bos is None else bos,
        info,
        suppressed,
        costs,
        vocabulary,
    )
