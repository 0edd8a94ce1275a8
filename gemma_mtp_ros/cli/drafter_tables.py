# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What ``gemma-mtp bench --drafters`` found: its tables, its figures, its picture."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from .figures import Row
from .findings import new_table
from .tasks import CLAIMED, ERRANDS

if TYPE_CHECKING:
    from .drafters import Comparison, Kind
    from .findings import Total


def title(kind: Kind) -> str:
    """What a kind is called in a table."""
    return "plain" if kind.kind == "none" else kind.kind


def model_name(found: Comparison) -> str:
    """The target in a title."""
    return "embedded pair" if found.demo else Path(found.model).name or found.model


def per_pass(total: Total | None) -> float | None:
    """Tokens that a target pass decided; None without any."""
    return total.tokens / total.rounds if total is not None and total.rounds else None


def shown(value: float | None, digits: int = 2) -> str:
    """A figure, or nothing."""
    return "" if value is None else f"{value:.{digits}f}"


def tables(found: Comparison) -> Iterator[Table]:
    """What is printed."""
    name = model_name(found)
    drafting = [kind for kind in found.kinds if kind.kind != "none"]
    heads = [title(kind) for kind in drafting]
    table = new_table(
        f"{name}, {found.precision} on {found.device}: tokens per target pass, greedy, "
        f"{found.draft_length} drafts",
        "task",
        *heads,
        "claimed for MTP",
    )
    for task in found.tasks:
        claim = "{:.1f} to {:.1f}".format(*CLAIMED[task]) if task in CLAIMED else ""
        cells = [shown(per_pass(kind.greedy.get(task))) for kind in drafting]
        table.add_row(task, *cells, claim)
    yield table
    table = new_table(
        "Tokens/s, greedy (in brackets: over plain decoding beside it)", "task", "plain", *heads
    )
    for task in found.tasks:
        plain = found.kinds[0].greedy[task].rate
        cells = []
        for kind in drafting:
            rate, beside = kind.greedy[task].rate, kind.plain[task].rate
            cells.append(f"{rate:.0f} ({rate / beside:.2f})" if beside else "")
        table.add_row(task, f"{plain:.0f}", *cells)
    yield table
    temperatures = list(found.kinds[0].warm)
    heads = [f"T = {temperature:g}" for temperature in temperatures]
    table = new_table("Tokens per target pass by temperature, all tasks", "drafter", *heads)
    for kind in drafting:
        table.add_row(title(kind), *(shown(per_pass(kind.warm[t])) for t in temperatures))
    yield table
    columns = ("drafter, MiB", "its weights", "keys and values", "other", "with the target")
    table = new_table("Memory", *columns)
    plain_memory = found.kinds[0].memory
    for kind in found.kinds:
        memory = kind.memory
        kv = memory.kv - plain_memory.kv
        workspace = memory.workspace - plain_memory.workspace
        sizes = (memory.drafter, kv, workspace, memory.total)
        table.add_row(title(kind), *(f"{size / 2**20:,.1f}" for size in sizes))
    yield table


def notes(found: Comparison) -> Iterator[str]:
    """How the figures came about, and what they do not say."""
    count = found.repeats
    yield (
        f"Answers of at most {found.tokens} tokens; greedy ones {count} times, others once. A "
        f"round drafts {found.draft_length} tokens wherever the drafter can, whether that pays or "
        "not; the node drafts as many as pay (draft.adaptive). Kinds ran one after another, each "
        "by turns with plain decoding. Under 1 a pass: the pass that chose the end of the answer "
        "is counted, the end is not."
    )
    if found.demo:
        yield (
            f"The embedded pair was trained on {ERRANDS} only. On every other task it writes noise "
            "or a refusal, so those lines exercise the command and say little about drafting."
        )
    if CLAIMED.keys() & set(found.tasks):
        yield (
            "Claimed: by a lecture on MTP with Gemma 4, for drafts of 3 to 5 tokens, on models "
            "that it does not name for each figure (docs/drafters.md)."
        )
    skipped = {task for kind in found.kinds for task in kind.skipped}
    if skipped:
        yield f"Left out in part, as prompts do not fit this model: {', '.join(sorted(skipped))}."


def rows(found: Comparison) -> list[Row]:
    """What --json holds."""
    made = [Row("drafters.draft_length", found.draft_length, "tokens")]
    for kind in found.kinds:
        name = f"drafters.{kind.kind}"
        made += [
            Row(f"{name}.memory", kind.memory.total, "bytes"),
            Row(f"{name}.memory.drafter", kind.memory.drafter, "bytes"),
        ]
        for task, total in kind.greedy.items():
            part = f"{name}.{task.replace(' ', '_')}"
            each = per_pass(total)
            if each is None:
                continue
            made += [
                Row(f"{part}.tokens_per_pass", each, "tokens"),
                Row(f"{part}.speed", total.rate, "tokens/s"),
            ]
            if kind.plain[task].rate:
                made.append(Row(f"{part}.over_plain", total.rate / kind.plain[task].rate, "ratio"))
            if total.drafted:
                made.append(Row(f"{part}.acceptance", total.accepted / total.drafted, "share"))
        for temperature, total in kind.warm.items():
            each = per_pass(total)
            if each is not None:
                made.append(Row(f"{name}.t{temperature:g}.tokens_per_pass", each, "tokens"))
    return made


def plot(found: Comparison, file: Path) -> None:
    """Draw tokens per pass by kind of task, and by temperature.

    Raises:
        ImportError: there is no matplotlib.
        OSError: the file cannot be written.
    """
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    drafting = [kind for kind in found.kinds if kind.kind != "none"]
    figure = figure_class(figsize=(11, 1.5 + 0.55 * len(found.tasks)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    height = 0.8 / len(drafting)
    for i, kind in enumerate(drafting):
        places = [at + (i - (len(drafting) - 1) / 2) * height for at in range(len(found.tasks))]
        values = [per_pass(kind.greedy.get(task)) or 0.0 for task in found.tasks]
        left.barh(places, values, height=height, label=title(kind))
    for at, task in enumerate(found.tasks):
        if task in CLAIMED:
            low, high = CLAIMED[task]
            first = at == next(i for i, each in enumerate(found.tasks) if each in CLAIMED)
            label = "claimed for MTP" if first else None
            left.plot([low, high], [at, at], color="black", linewidth=2, marker="|", label=label)
    left.axvline(1.0, linestyle=":", color="grey")
    left.axvline(found.draft_length + 1.0, linestyle="--", color="grey", label="all drafts stand")
    left.set(
        yticks=range(len(found.tasks)), yticklabels=found.tasks, xlabel="tokens per target pass"
    )
    left.invert_yaxis()
    left.legend(fontsize="small")
    for kind in drafting:
        known = [(t, each) for t in kind.warm if (each := per_pass(kind.warm[t])) is not None]
        right.plot([t for t, _ in known], [each for _, each in known], "o-", label=title(kind))
    right.set(
        xlabel="temperature",
        ylabel="tokens per target pass, all tasks",
        ylim=(1, found.draft_length + 1.5),
    )
    right.legend(fontsize="small", loc="best")
    name = model_name(found)
    told = f"{name}, {found.precision}, {found.device}, {found.draft_length} drafts a round"
    if found.demo:
        told += f" (trained on {ERRANDS} only)"
    figure.suptitle(told, parse_math=False)
    figure.savefig(file)
