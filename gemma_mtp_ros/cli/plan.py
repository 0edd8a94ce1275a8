# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp plan``: which model fits a board, in what weights and context, how to start it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from ..api import DraftKind, EngineConfig, RequestError
from ..models import DEMO, NO_DRAFTER, resolve_pair
from ..telemetry.boards import CACHE_MIB, MODULES, Module, find_module, meminfo, module_of
from ..telemetry.discover import is_jetson
from ..telemetry.files import FileTree
from .plan_tables import Plan, print_plan

if TYPE_CHECKING:
    from ..engine.fitting import Pair
    from ..engine.spec import TextSpec

NOTHING_FITS = 1
"""Exit status where no model fits, or not the one that was asked for."""

READ_BYTES = 2**28
"""Bytes that are read to measure the bandwidth of this machine."""


class Board(NamedTuple):
    """Where the model is to run. `module` is None for a machine that is no known Jetson."""

    title: str
    module: Module | None
    machine: Any
    here: bool
    notes: tuple[str, ...] = ()


def run(options: argparse.Namespace) -> int:
    """Plan, print; return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be planned; says what to change.
        pydantic.ValidationError: an option is out of its bounds.
    """
    plan = make_plan(options)
    if options.json:
        print(json.dumps(as_json(plan), indent=2))
    else:
        print_plan(Console(markup=False), plan)
    return 0 if plan.chosen is not None else NOTHING_FITS


def make_plan(options: argparse.Namespace) -> Plan:
    """Everything that is printed."""
    from ..engine import fitting

    board = find_board(options)
    machine = board.machine
    reserve = (
        fitting.default_reserve(machine.memory)
        if options.reserve_mib is None
        else options.reserve_mib * fitting.MIB
    )
    cache_mib = board.module.cache_mib if board.module is not None else CACHE_MIB
    if options.cache_mib is not None:
        cache_mib = options.cache_mib
    base = EngineConfig(
        model=options.model or "any",
        kv_dtype=options.kv_dtype,
        ple=options.ple,
        reproducible=options.reproducible,
        structured_output=options.structured_output,
        cache_max_mib=cache_mib,
        max_context=options.context or 4096,
        memory_reserve_mib=reserve // fitting.MIB,
    )
    precisions = [options.weights] if options.weights else fitting.PRECISIONS[machine.device.type]
    found = fitting.fits(
        find_pairs(options.model, options.drafter, options.draft_kind),
        base,
        machine,
        precisions=precisions,
        context=options.context,
    )
    chosen = fitting.choose(found, reserve, options.min_speed)
    return Plan(
        board.title,
        board.module,
        board.here,
        machine,
        reserve,
        options.min_speed,
        found,
        chosen,
        board.notes,
    )


def find_pairs(model: str, drafter: str, kind: DraftKind = "mtp") -> list[Pair]:
    """Pairs to plan for: all released ones, one of those, or what a folder holds.

    Raises:
        CheckpointError: there is no such model, or the drafter is another target's.
        RequestError: this kind of drafts has no drafter, or cannot do without one.
    """
    from ..engine.checkpoint import find_folder, read_config
    from ..engine.draft_loading import check_vocabulary
    from ..engine.fitting import Pair
    from ..engine.released import RELEASED, find_released
    from ..engine.spec import DRAFTER_TYPES, check_pair, drafter_spec

    released = RELEASED if not model else tuple(filter(None, [find_released(model)]))
    if kind == "mtp" and released and not drafter:
        return [Pair(r.size, r.model, r.drafter, *r.specs) for r in released]
    targets = [Pair(r.size, r.model, "", r.specs[0], None, kind) for r in released]
    if not targets:
        name, own, spec = _find_target(model)
        targets = [Pair(name, own, "", spec, None, kind)]
    if kind in ("none", "prompt_lookup"):
        if drafter not in ("", NO_DRAFTER):
            raise RequestError(f"--draft-kind {kind} has no drafter; leave --drafter {drafter} out")
        return targets
    if kind == "draft_model":
        if drafter in ("", NO_DRAFTER):
            raise RequestError(
                "--draft-kind draft_model needs --drafter: a smaller model of the family, such as "
                "E2B"
            )
        _, own, smaller = _find_target(drafter)
        for target in targets:
            check_vocabulary(target.target, smaller, target.name, drafter)
        return [replace(target, drafter=own, smaller=smaller) for target in targets]
    _, draft = resolve_pair(model, drafter)
    if not draft:
        return targets
    if not model:
        raise RequestError(
            f"--drafter {drafter} is one target's and no --model is given; name that target with "
            "--model, or leave --drafter out"
        )
    (target,) = targets
    known = next((r for r in RELEASED if draft.lower() == r.drafter.lower()), None)
    if known is not None:
        assistant = known.specs[1]
    else:
        folder = find_folder(draft, "drafter")
        assistant = drafter_spec(read_config(folder, DRAFTER_TYPES, "drafter"))
    check_pair(target.target, assistant, target.model, draft)
    return [replace(target, drafter="" if model == DEMO else draft, draft=assistant)]


def _find_target(model: str) -> tuple[str, str, TextSpec]:
    """Title, name for the node, and sizes of one model.

    Raises:
        CheckpointError: there is no such model.
    """
    from ..engine.checkpoint import find_folder, read_config
    from ..engine.released import find_released
    from ..engine.spec import TARGET_TYPES, text_spec

    released = find_released(model)
    if released is not None:
        return released.size, released.model, released.specs[0]
    own, _ = resolve_pair(model, NO_DRAFTER)
    folder = find_folder(own, "model")
    spec = text_spec(read_config(folder, TARGET_TYPES, "model").get_text_config())
    return (DEMO, DEMO, spec) if model == DEMO else (folder.name, own, spec)


def find_board(options: argparse.Namespace) -> Board:
    """The module that was named, or the machine that this runs on.

    Raises:
        RequestError: there is no such module.
    """
    import torch

    from ..engine import estimate, fitting

    if options.module:
        module = find_module(options.module)
        if module is None:
            raise RequestError(
                f"--module {options.module} is not known; give one of "
                f"{', '.join(m.name for m in MODULES)}, or leave it out on the board itself"
            )
        device = torch.device("cuda" if options.device == "auto" else options.device)
        machine = fitting.module_machine(module.memory_gib, module.bandwidth_gb_s, device)
        return Board(module.title, module, machine, here=False)
    tree = FileTree(options.root)
    module = module_of(tree)
    total, free = meminfo(tree, "MemTotal"), meminfo(tree, "MemAvailable")
    if total is None or free is None:
        raise RequestError(
            f"{options.root} does not tell how much memory there is (proc/meminfo); name a board "
            "with --module"
        )
    if module is not None:
        device = torch.device("cuda" if options.device == "auto" else options.device)
        notes: tuple[str, ...] = ()
        if device.type == "cuda" and not torch.cuda.is_available():
            notes = (
                "This torch sees no CUDA device: install a build for this board, or give "
                "--device cpu.",
            )
        bandwidth = estimate.EFFICIENCY * module.bandwidth_gb_s * 1e9
        machine = fitting.Machine(device, total, free, bandwidth)
        return Board(module.title, module, machine, here=True, notes=notes)
    if is_jetson(tree):
        raise RequestError(
            "this is a Jetson that is not known here; name the module that is most like it with "
            f"--module ({', '.join(m.name for m in MODULES)})"
        )
    return this_computer(options.device, total, free)


def this_computer(name: str, total: int, free: int) -> Board:
    """A computer that is no Jetson: the bandwidth of its memory is measured."""
    from ..engine import costs, estimate, fitting
    from ..engine.checkpoint import available_memory
    from ..engine.load import pick_device

    device = pick_device(name)
    shared, title = True, "this computer, CPU"
    if device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        title = f"this computer, {properties.name}"
        shared = bool(getattr(properties, "is_integrated", False))
        if not shared:
            total, free = properties.total_memory, available_memory(device) or 0
    measured = costs.bandwidth(device, READ_BYTES, 3).bytes_per_s
    bandwidth = estimate.EFFICIENCY_MEASURED * measured
    return Board(title, None, fitting.Machine(device, total, free, bandwidth, shared), here=True)


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as one JSON object; sizes in bytes."""

    def entry(each: Any) -> dict[str, Any]:
        config = each.config
        return {
            "name": each.pair.name,
            "model": each.pair.model,
            "drafter": each.pair.drafter,
            "draft_kind": each.pair.kind,
            "weights": config.weights,
            "kv_dtype": config.kv_dtype,
            "max_context": config.max_context,
            "bytes": {**each.use.model_dump(), "overhead": each.overhead, "total": each.total},
            "left": each.left,
            "fits": plan.fits(each),
            "refusal": each.refusal,
            "draft_max_length": each.draft_length,
            "estimated_tokens_per_second": {
                "plain": round(each.plain, 2),
                "drafts_badly": round(each.badly, 2),
                "drafts_well": round(each.well, 2),
            },
        }

    machine = plan.machine
    return {
        "board": plan.title,
        "module": asdict(plan.module) if plan.module is not None else None,
        "device": machine.device.type,
        "memory": machine.memory,
        "free": machine.free,
        "reserve": plan.reserve,
        "bandwidth_reached": machine.bandwidth,
        "plans": [entry(each) for each in plan.found],
        "recommended": None if plan.chosen is None else entry(plan.chosen),
        "why": plan.why,
        "launch": plan.launch,
        "notes": list(plan.notes),
    }
