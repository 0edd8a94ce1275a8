# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What ``gemma-mtp plan`` prints: what fits, where the memory goes, what to start."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..telemetry.boards import CACHE_MIB, GIB, Module

if TYPE_CHECKING:
    from ..engine.fitting import Fit, Machine

CONTEXTS = (4096, 8192, 16_384, 32_768, 131_072)
"""Contexts whose keys and values are shown."""

ESTIMATES = (
    "tokens/s are estimates from memory bandwidth, for text that drafts badly to well; nothing "
    "was measured on a Jetson. Weights, keys and values are counted as configure counts them; "
    "workspace, processes, CUDA context and what the system leaves free are estimates. "
    "docs/sizing.md has the formula."
)
INT4 = (
    "int4 rounds weights that were not trained for it: a QAT checkpoint in its unquantised form "
    "keeps its values exactly, for any other compare answers before you rely on them."
)


@dataclass(frozen=True)
class Plan:
    """What was found.

    Attributes:
        here: it is the machine that this runs on.
        reserve: bytes to leave to the rest of the robot.
        found: everything that was looked at, smallest target first.
        chosen: what is recommended; None: nothing fits.
    """

    title: str
    module: Module | None
    here: bool
    machine: Machine
    reserve: int
    min_speed: float
    found: Sequence[Fit]
    chosen: Fit | None
    notes: tuple[str, ...] = ()

    def fits(self, each: Fit) -> bool:
        """Whether the engine runs it and the rest of the robot keeps its share."""
        return not each.refusal and each.left >= self.reserve

    @property
    def why(self) -> str:
        """The reason for what is recommended, in sentences."""
        if self.chosen is None:
            known = [each for each in self.found if not each.refusal]
            if not known:
                return self.found[0].refusal
            least = min(known, key=lambda each: each.total)
            return (
                f"Nothing fits: {least.pair.name} in {least.config.weights} needs "
                f"{gib(least.total)}, and {gib(self.reserve)} are kept for the rest of the robot, "
                f"but {gib(self.machine.free)} are free; take a board with more memory, a smaller "
                "--context or --reserve-mib, or --model demo."
            )
        chosen = self.chosen
        ends = [
            f"{chosen.pair.name} in {chosen.config.weights} leaves {gib(chosen.left)}, of which "
            f"{gib(self.reserve)} are kept for the rest of the robot."
        ]
        if chosen.badly < self.min_speed:
            ends.append(
                f"No model that fits is estimated to reach {self.min_speed:g} tokens/s on text "
                "that drafts badly; this one is the fastest."
            )
        else:
            ends.append(
                f"It is the largest target that fits and is estimated to reach "
                f"{self.min_speed:g} tokens/s on text that drafts badly (~{rate(chosen.badly)})."
            )
        ends.append(self._length_reason(chosen))
        return " ".join(ends)

    def _length_reason(self, chosen: Fit) -> str:
        if chosen.pair.source is None:
            return "Without a drafter there are no drafts."
        gain = chosen.well / chosen.plain
        return (
            f"draft.max_length {chosen.draft_length}: on text that drafts well that is {gain:.1f} "
            "times plain decoding by this estimate; draft.adaptive drafts fewer where fewer pay."
        )

    @property
    def launch(self) -> str:
        """The line that starts the node so, for a shell; empty: nothing fits."""
        if self.chosen is None:
            return ""
        config, pair = self.chosen.config, self.chosen.pair
        words = ["ros2", "launch", "gemma_mtp_ros"]
        if self.module is not None:
            words += [self.module.launch_file, f"preset:={self.module.preset}"]
        else:
            cpu = self.machine.device.type == "cpu"
            words += ["node.launch.py", "preset:=cpu" if cpu else "preset:=none"]
        if self.module is None or self.machine.device.type != "cuda":
            words.append(f"device:={self.machine.device.type}")
        words.append(f"model:={pair.model}")
        if pair.drafter:
            words.append(f"drafter:={pair.drafter}")
        if pair.kind != "mtp":
            words.append(f"draft_kind:={pair.kind}")
        words += [
            f"weights:={config.weights}",
            f"max_context:={config.max_context}",
            f"draft_length:={self.chosen.draft_length}",
            f"memory_reserve_mib:={self.reserve // 2**20}",
        ]
        usual = self.module.cache_mib if self.module is not None else CACHE_MIB
        if config.cache_max_mib != usual:
            words.append(f"cache_mib:={config.cache_max_mib}")
        if config.kv_dtype != "auto":
            words.append(f"kv_dtype:={config.kv_dtype}")
        if config.ple != "auto":
            words.append(f"ple:={config.ple}")
        if not config.structured_output:
            words.append("structured_output:=false")
        if not config.reproducible:
            words.append("reproducible:=false")
        return shlex.join(words)


def gib(size: float) -> str:
    """Bytes in words."""
    if abs(size) < GIB / 10:
        return f"{size / 2**20:.0f} MiB"
    return f"{size / GIB:.2f} GiB" if abs(size) < 10 * GIB else f"{size / GIB:.1f} GiB"


def rate(tokens_per_second: float) -> str:
    """A speed with two digits, or one after the point."""
    return f"{tokens_per_second:.1f}" if tokens_per_second < 9.95 else f"{tokens_per_second:.0f}"


def print_plan(console: Console, plan: Plan) -> None:
    """Everything, in the order in which one asks."""
    machine = plan.machine
    console.print(Text.assemble((plan.title, "bold"), f", {machine.device.type}"))
    free = "are available now" if plan.here else "are expected to be free (estimate)"
    console.print(
        f"{gib(machine.memory)} of memory, of which {gib(machine.free)} {free}; "
        f"{machine.bandwidth / 1e9:.0f} GB/s are expected to be reached; "
        f"{gib(plan.reserve)} are kept for the rest of the robot",
        highlight=False,
        soft_wrap=True,
    )
    console.print(fit_table(plan))
    if (shown := plan.chosen or smallest(plan)) is not None:
        console.print(memory_table(shown, plan))
        console.print(context_table(shown))
    title = "Recommended" if plan.chosen is not None else "Not possible"
    console.print(Text.assemble((title, "bold"), f": {plan.why}"), soft_wrap=True)
    if plan.launch:
        console.print(plan.launch, style="bold green", highlight=False, soft_wrap=True)
    notes = [ESTIMATES, *plan.notes]
    if plan.chosen is not None and plan.chosen.config.weights == "int4":
        notes.insert(1, INT4)
    for note in notes:
        console.print(note, style="dim", highlight=False, soft_wrap=True)


def smallest(plan: Plan) -> Fit | None:
    """What lacks least."""
    known = [each for each in plan.found if not each.refusal]
    return max(known, key=lambda each: each.left, default=None)


def fit_table(plan: Plan) -> Table:
    """Every target in every precision."""
    table = Table(title="What fits", title_justify="left")
    table.add_column("target", no_wrap=True)
    table.add_column("weights", no_wrap=True)
    for name in ("context", "memory", "left", "plain", "with drafts"):
        table.add_column(name, justify="right")
    table.add_column("fits", min_width=len("reserve"))
    for each in plan.found:
        if each.refusal:
            cells = ["", "", "", "", "", "not on this device"]
        else:
            fits = "yes" if plan.fits(each) else "no"
            if each.left >= 0 and fits == "no":
                fits = "no: under the reserve"
            cells = [
                str(each.config.max_context),
                gib(each.total),
                gib(each.left),
                f"~{rate(each.plain)}/s",
                f"~{rate(each.badly)} to {rate(each.well)}/s" if each.pair.source else "-",
                fits,
            ]
        style = "bold" if each is plan.chosen else None
        table.add_row(each.pair.name, each.config.weights, *cells, style=style)
    return table


def memory_table(each: Fit, plan: Plan) -> Table:
    """Where the memory of one configuration goes."""
    from ..engine import sizes

    use, spec, config = each.use, each.pair.target, each.config
    table = Table(
        title=f"{each.pair.name}, {config.weights}, {config.max_context} tokens",
        title_justify="left",
    )
    table.add_column("what")
    table.add_column("bytes", justify="right")
    table.add_column("")
    table.add_row("weights of the target", gib(use.weights), "")
    if spec.ple:
        whole = gib(sizes.ple_bytes(spec, config.weights))
        where = "in memory" if use.ple else f"on disk; in memory it would take {whole}"
        table.add_row("table of per-layer embeddings", gib(use.ple), where)
    if use.drafter:
        table.add_row("drafter", gib(use.drafter), "")
    both = "" if each.pair.smaller is None else " of both models"
    kv_dtype = sizes.kv_dtype_of(config)
    table.add_row(f"keys and values{both}", gib(use.kv), f"{kv_dtype}, at the full context")
    table.add_row("cached prefixes", gib(use.snapshots), "at most (cache.max_mib)")
    masks = sizes.mask_bytes(spec, config)
    table.add_row("workspace", gib(use.workspace - masks), "estimate")
    if masks:
        table.add_row("token masks", gib(masks), "at most (engine.structured_output)")
    names = ["engine and node processes"] if plan.machine.shared else []
    names += ["CUDA context"] if plan.machine.device.type == "cuda" else []
    table.add_row(", ".join(names) or "beside it", gib(each.overhead), "estimate")
    table.add_section()
    table.add_row("together", gib(each.total), "")
    table.add_row("left for the robot", gib(each.left), f"wanted: {gib(plan.reserve)}")
    return table


def context_table(each: Fit) -> Table:
    """Keys and values by context."""
    from ..engine import sizes

    longest = each.pair.target.max_positions
    contexts = sorted({min(n, longest) for n in CONTEXTS})
    table = Table(title="Keys and values by context", title_justify="left")
    table.add_column("")
    for context in contexts:
        table.add_column(str(context), justify="right")
    for dtype in ("bfloat16", "int8"):
        row = []
        for context in contexts:
            update = {"max_context": context, "kv_dtype": dtype}
            row.append(gib(sizes.kv_bytes(each.pair.target, each.config.model_copy(update=update))))
        table.add_row(dtype, *row)
    return table
