# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From an EngineConfig to a loaded, checked pair."""

from __future__ import annotations

import ctypes
import math
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
from .attention import MASK_BYTES
from .builder import linear_bytes, table_precision
from .cache import KV_DTYPES, ROWS, cache_bytes
from .checkpoint import (
    Weights,
    available_memory,
    check_memory,
    find_folder,
    read_config,
)
from .costs import measure
from .draft_costs import Costs
from .drafter import Drafter
from .drafting import reads_confidence
from .linear import WORKSPACE as UNPACKED_VALUES
from .linear import Precision
from .ops import kernels_for
from .ple import SMALL_BYTES
from .spec import DRAFTER_TYPES, TARGET_TYPES, TextSpec, check_pair, drafter_spec, text_spec
from .target import Target, storage_dtype
from .text import Text
from .token_masks import BYTES_EACH, Vocabulary
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
    drafter: Drafter | None
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


def weight_bytes(weights: Weights, precision: Precision, device: torch.device, *, ple: bool) -> int:
    """Bytes of the text model's tensors in a precision, from the headers.

    :param ple: whether the table of per-layer embeddings is in memory.
    """
    total = 0
    for entry in weights.text_entries():
        table = "embed_tokens.weight" in entry.key or "lm_head." in entry.key
        if "embed_tokens_per_layer" in entry.key:
            item = 0 if not ple else storage_dtype(precision).itemsize
            total += math.prod(entry.shape) * item
        elif len(entry.shape) < 2:
            total += math.prod(entry.shape) * 4
        else:
            kind = table_precision(precision, device) if table else precision
            out, width = math.prod(entry.shape[:-1]), entry.shape[-1]
            total += linear_bytes(out, width, kind, device)
    return total


def ple_in_memory(spec: TextSpec, where: str, precision: str) -> bool:
    """Whether the table of per-layer embeddings is kept in memory."""
    if not spec.ple or where != "auto":
        return bool(spec.ple) and where == "memory"
    width = len(spec.layers) * spec.ple
    return spec.ple_vocab * width * storage_dtype(precision).itemsize <= SMALL_BYTES


def workspace_bytes(spec: TextSpec, precision: Precision, chunk: int, context: int) -> int:
    """Largest temporaries of a prefill chunk and of a pass, and the rotary tables; an estimate."""
    widest = max(layer.ffn for layer in spec.layers)
    heads = max(layer.head_dim * (spec.q_heads + 2 * layer.kv_heads) for layer in spec.layers)
    ple = len(spec.layers) * spec.ple
    row = 4 * (3 * spec.hidden + 3 * widest + 2 * heads + 3 * ple)
    kv = max(2 * layer.kv_heads * layer.head_dim for layer in spec.layers)
    keys = min(context, spec.window + chunk)
    # A product of many rows unpacks a part of its weight.
    unpacked = 2 * UNPACKED_VALUES if precision in ("int8", "int4") else 0
    return chunk * row + 2 * 4 * kv * keys + MASK_BYTES + 3 * 4 * ROWS * spec.vocab + unpacked


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
    drafter_precision = precision if config.drafter_weights == "same" else config.drafter_weights
    kv_dtype = config.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = "float32" if precision == "float32" else "bfloat16"
    folder = find_folder(config.model, "model")
    hf_config = read_config(folder, TARGET_TYPES, "model")
    text_config = hf_config.get_text_config()
    spec = text_spec(text_config)
    weights = Weights(folder, "model")
    progress("checkpoint", 0.0)
    context = min(config.max_context, spec.max_positions)
    kv = cache_bytes(spec, context, KV_DTYPES[kv_dtype])
    ple = ple_in_memory(spec, config.ple, precision)
    workspace = workspace_bytes(spec, precision, config.prefill_chunk, context)
    if config.structured_output:
        workspace += spec.vocab * BYTES_EACH
    needed = weight_bytes(weights, precision, device, ple=ple) + kv + workspace
    draft_spec = draft_weights = None
    if config.drafter:
        draft_folder = find_folder(config.drafter, "drafter")
        draft_spec = drafter_spec(read_config(draft_folder, DRAFTER_TYPES, "drafter"))
        check_pair(spec, draft_spec, str(folder), str(draft_folder))
        draft_weights = Weights(draft_folder, "drafter")
        needed += weight_bytes(draft_weights, drafter_precision, device, ple=False)
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
            kv_dtype=kv_dtype,
            ple_in_memory=ple,
            device=device,
            reproducible=config.reproducible,
        )
        drafter = None
        if draft_spec is not None and draft_weights is not None:
            draft_weights.progress = progress
            drafter = Drafter(draft_spec, draft_weights, target, drafter_precision)
        weights.forget()
        if draft_weights is not None:
            draft_weights.forget()
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
    for model in (target, drafter):
        if model is not None and model.recorded is not None:
            workspace += model.recorded.bytes
    memory = MemoryUse(
        weights=target.weight_bytes,
        drafter=drafter.weight_bytes if drafter else 0,
        ple=target.ple.bytes if target.ple else 0,
        kv=kv,
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
        drafter=config.drafter,
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
