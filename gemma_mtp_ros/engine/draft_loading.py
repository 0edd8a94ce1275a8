# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Finds, checks and loads what ``draft.kind`` names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..api import CheckpointError, DraftKind, EngineConfig
from . import sizes
from .checkpoint import Weights, find_folder, read_config
from .draft_model import DraftModel
from .draft_source import DraftSource
from .drafter import Drafter
from .prefix import PrefixCache
from .prompt_lookup import BYTES_A_TOKEN, PromptLookup
from .spec import (
    DRAFTER_TYPES,
    TARGET_TYPES,
    DrafterSpec,
    TextSpec,
    check_pair,
    drafter_spec,
    text_spec,
)
from .target import Target
from .text import Text

MODEL_TYPE = "model_type"
"""Key of a config.json that tells an MTP assistant from a whole model."""

SAME_FAMILY = "a draft model must share the target's tokenizer: take one of the same family"


@dataclass(frozen=True)
class DraftPlan:
    """A drafter that was found and fits, before its weights are read.

    Attributes:
        kind: what drafts really; ``none`` for an MTP drafter that is not given.
        name: what it is called in words; empty: none.
        mtp: of an MTP assistant.
        model: of a whole model that drafts.
        context: tokens that such a model may read.
    """

    kind: DraftKind
    name: str = ""
    mtp: DrafterSpec | None = None
    model: TextSpec | None = None
    weights: Weights | None = None
    context: int = 0


def plan_drafter(config: EngineConfig, folder: Path, spec: TextSpec, context: int) -> DraftPlan:
    """Find the drafter of a target and check that it fits.

    :param folder: of the target.
    :param context: tokens of prompt and answer together.
    :raises CheckpointError: with one sentence.
    """
    kind, name = config.draft_kind, config.drafter
    if kind == "prompt_lookup":
        return DraftPlan(kind, kind, context=context)
    if kind == "none" or (kind == "mtp" and not name):
        return DraftPlan("none")
    if not name:
        raise CheckpointError(
            "draft.kind is draft_model, but no drafter is set; give the folder of a smaller Gemma "
            "4 model in the parameter 'drafter', or take another draft.kind"
        )
    found = find_folder(name, "drafter")
    _refuse_other_kind(kind, found)
    if kind == "mtp":
        mtp = drafter_spec(read_config(found, DRAFTER_TYPES, "drafter"))
        check_pair(spec, mtp, str(folder), str(found))
        return DraftPlan(kind, name, mtp=mtp, weights=Weights(found, "drafter"))
    model = text_spec(read_config(found, TARGET_TYPES, "draft model").get_text_config())
    check_same_tokens(spec, model, folder, found)
    context = min(context, model.max_positions)
    return DraftPlan(
        kind, name, model=model, weights=Weights(found, "draft model"), context=context
    )


def _refuse_other_kind(kind: DraftKind, folder: Path) -> None:
    """Say which kind a checkpoint is for, where it is the other one."""
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # read_config says what is wrong with it
    found = raw.get(MODEL_TYPE) if isinstance(raw, dict) else None
    if kind == "draft_model" and found in DRAFTER_TYPES:
        raise CheckpointError(
            f"draft.kind is draft_model, but drafter {folder} is an MTP assistant (model_type "
            f"{found}), which cannot write by itself; set draft.kind to mtp, or give the folder of "
            "a smaller Gemma 4 model"
        )
    if kind == "mtp" and found in TARGET_TYPES:
        raise CheckpointError(
            f"draft.kind is mtp, but drafter {folder} is a whole model (model_type {found}) and no "
            "MTP assistant; set draft.kind to draft_model, or give the target's own assistant"
        )


def check_vocabulary(target: TextSpec, model: TextSpec, name: str, draft_name: str) -> None:
    """Refuse a draft model with another number of tokens.

    :raises CheckpointError: naming both.
    """
    if target.vocab != model.vocab:
        raise CheckpointError(
            f"draft model {draft_name} has a vocabulary of {model.vocab} tokens, but target {name} "
            f"has {target.vocab}; {SAME_FAMILY}"
        )


def check_same_tokens(target: TextSpec, model: TextSpec, folder: Path, draft_folder: Path) -> None:
    """Refuse a draft model to which token ids mean something else.

    :raises CheckpointError: naming what differs.
    """
    check_vocabulary(target, model, str(folder), str(draft_folder))
    ours, theirs = (_tokenizer_of(each) for each in (folder, draft_folder))
    if ours != theirs:
        differing = sorted(key for key in ours.keys() | theirs if ours.get(key) != theirs.get(key))
        raise CheckpointError(
            f"the tokenizer.json of draft model {draft_folder} and of target {folder} differ in "
            f"{', '.join(differing)}; {SAME_FAMILY}"
        )


def _tokenizer_of(folder: Path) -> dict[str, Any]:
    """What tokens mean; how a tokenizer would pad or cut a batch has no say."""
    file = folder / "tokenizer.json"
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); download the checkpoint again"
        ) from error
    return {key: parsed[key] for key in parsed if key not in ("padding", "truncation")}


def load_drafter(
    plan: DraftPlan,
    target: Target,
    text: Text,
    config: EngineConfig,
    room: Callable[[int], bool],
) -> DraftSource | None:
    """Read the weights of a drafter.

    :param room: whether so many bytes may be taken now.
    """
    if plan.kind == "prompt_lookup":
        return PromptLookup(target.device)
    if plan.weights is None:
        return None
    precision = sizes.drafter_precision(config)
    if plan.mtp is not None:
        return Drafter(plan.mtp, plan.weights, target, precision)
    assert plan.model is not None
    model = Target(
        plan.model,
        plan.weights,
        max_context=plan.context,
        precision=precision,
        kv_dtype=sizes.kv_dtype_of(config),
        ple_in_memory=sizes.ple_in_memory(plan.model, config.ple, precision),
        device=target.device,
        reproducible=False,  # its bits decide nothing but how many drafts stand
    )
    prefixes = PrefixCache(model.cache, plan.model.window, draft_share(config, target, model), room)
    return DraftModel(model, config.prefill_chunk, text.turn_end, prefixes)


def draft_share(config: EngineConfig, target: Target, model: Target) -> int:
    """Bytes of ``cache.max_mib`` that are for the prompts of a draft model.

    Both models get so much that they keep about as many tokens.
    """
    context = model.cache.max_context
    theirs = model.cache.bytes_at(context)
    return config.cache_max_mib * 2**20 * theirs // (theirs + target.cache.bytes_at(context))


class DraftBytes(NamedTuple):
    """Memory of a drafter that is no MTP assistant, by purpose; ``other`` is counted nowhere else:
    norms, and recorded passes before they are measured.
    """

    weights: int = 0
    kv: int = 0
    workspace: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return sum(self)


def draft_bytes(plan: DraftPlan, config: EngineConfig, device: torch.device) -> DraftBytes:
    """Memory of a draft model, or of the index of prompt lookup, at the full context.

    :raises GemmaMtpError: when the device has no product of the precision asked for.
    """
    if plan.kind == "prompt_lookup":
        return DraftBytes(workspace=plan.context * BYTES_A_TOKEN)
    spec, precision = plan.model, sizes.drafter_precision(config)
    if spec is None:
        return DraftBytes()
    weights = sizes.target_bytes(spec, precision, device)
    if sizes.ple_in_memory(spec, config.ple, precision):
        weights += sizes.ple_bytes(spec, precision)
    chunk, other = config.prefill_chunk, sizes.vector_bytes(spec)
    if device.type == "cuda":
        other += sizes.recorded_bytes(spec, None, precision)
    return DraftBytes(
        weights,
        sizes.kv_bytes(spec, config),
        sizes.workspace_bytes(spec, precision, chunk, plan.context),
        other,
    )
