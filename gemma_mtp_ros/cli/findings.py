# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What ``gemma-mtp bench`` found: its figures, its tables, its plot."""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from ..api import MAX_DRAFT, ModelInfo, Stats
from .figures import Row

if TYPE_CHECKING:
    from ..engine.costs import Bandwidth
    from ..engine.draft_length import Costs

ADAPTIVE = MAX_DRAFT + 1
"""Stands among the draft lengths for the engine's own choice."""


@dataclass
class Total:
    """What the answers of one case cost together, over one turn or over all."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, stats: Stats) -> None:
        """Count an answer; its first token comes with the prefill and is no decoding."""
        self.tokens += max(0, stats.completion_tokens - 1)
        self.seconds += stats.decode_s
        self.rounds += stats.rounds
        self.drafted += sum(stats.drafted_at)
        self.accepted += sum(stats.accepted_at)

    @property
    def rate(self) -> float:
        """Tokens per second; 0 where nothing was decoded."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Speed:
    """Decoding at one draft length: the median rate of all turns, and the counts of all."""

    rates: list[float] = field(default_factory=list)
    total: Total = field(default_factory=Total)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return statistics.median(self.rates)

    @property
    def acceptance(self) -> float | None:
        """Share of the drafts that stood; None without any."""
        return self.total.accepted / self.total.drafted if self.total.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that a target pass decided; None without any."""
        return self.total.tokens / self.total.rounds if self.total.rounds else None

    @property
    def draft_length(self) -> float:
        """Drafts in a round, on average."""
        return self.total.drafted / self.total.rounds if self.total.rounds else 0.0


@dataclass
class Findings:
    """All that was measured.

    Attributes:
        context: rows in the caches at which passes were timed.
        prompt_tokens, ttft_s: of the long prompt.
        speeds: by draft length; ADAPTIVE is the engine's own choice.
        bytes: what a pass of one row reads at least.
    """

    info: ModelInfo
    context: int
    costs: Costs
    prompt_tokens: int
    ttft_s: float
    speeds: dict[int, Speed]
    bytes: int
    bandwidth: Bandwidth

    @property
    def v(self) -> list[float]:
        """Cost of 1, 2, ... rows over that of one."""
        return [each / self.costs.passes[0] for each in self.costs.passes]

    @property
    def bound(self) -> float:
        """Passes, so plain tokens, in a second if reading memory were all they did."""
        return self.bandwidth.bytes_per_s / self.bytes

    @property
    def share(self) -> float:
        """What a pass of one row reaches of it."""
        return 1.0 / (self.costs.passes[0] * self.bound)


def rows(found: Findings) -> list[Row]:
    """What --json holds."""
    memory = found.info.memory
    made = [Row("bench.load", found.info.load_s, "s")]
    for name, value in memory.model_dump().items():
        made.append(Row(f"bench.memory.{name}", value, "bytes"))
    for n, (seconds, ratio) in enumerate(zip(found.costs.passes, found.v, strict=True), 1):
        made += [
            Row(f"bench.pass_{n}", seconds * 1e3, "ms"),
            Row(f"bench.v_{n}", ratio, "ratio"),
        ]
    if math.isfinite(found.costs.draft):
        made.append(Row("bench.draft_step", found.costs.draft * 1e3, "ms"))
    made += [
        Row("bench.context", found.context, "tokens"),
        Row("bench.ttft", found.ttft_s * 1e3, "ms"),
        Row("bench.ttft_prompt", found.prompt_tokens, "tokens"),
    ]
    for k, speed in found.speeds.items():
        name = "bench.adaptive" if k == ADAPTIVE else f"bench.mtp{k}" if k else "bench.plain"
        made.append(Row(name, speed.rate, "tokens/s"))
        if speed.acceptance is not None:
            made.append(Row(f"{name}.acceptance", speed.acceptance, "share"))
        if speed.tokens_per_pass is not None:
            made.append(Row(f"{name}.tokens_per_pass", speed.tokens_per_pass, "tokens"))
        if k == ADAPTIVE:
            made.append(Row(f"{name}.draft_length", speed.draft_length, "tokens"))
    return [
        *made,
        Row("bench.bandwidth", found.bandwidth.bytes_per_s / 1e9, "GB/s"),
        Row("bench.pass_bytes", found.bytes, "bytes"),
        Row("bench.bound", found.bound, "tokens/s"),
        Row("bench.bound_share", found.share, "share"),
    ]


def tables(found: Findings) -> Iterator[Table]:
    """What is printed."""
    info = found.info
    table = new_table(f"{info.model}, {info.precision} on {info.device}", "", "")
    table.show_header = False
    table.add_row("loading", f"{info.load_s:.1f} s")
    for name, value in info.memory.model_dump().items():
        if value:
            table.add_row(f"memory: {name}", f"{value / 2**20:,.1f} MiB")
    table.add_row("memory: together", f"{info.memory.total / 2**20:,.1f} MiB")
    table.add_row("reproducible", info.reproducible)
    table.add_row(
        f"first token of a prompt of {found.prompt_tokens} tokens", f"{found.ttft_s * 1e3:.1f} ms"
    )
    yield table
    table = new_table(
        f"A target pass, {found.context} tokens in the caches", "rows", "ms", "v(n)/v(1)"
    )
    for n, (seconds, cost) in enumerate(zip(found.costs.passes, found.v, strict=True), 1):
        table.add_row(str(n), f"{seconds * 1e3:.2f}", f"{cost:.2f}")
    if math.isfinite(found.costs.draft):
        relative = found.costs.draft / found.costs.passes[0]
        table.add_row("a draft step", f"{found.costs.draft * 1e3:.2f}", f"{relative:.2f}")
    yield table
    columns = ("draft length", "tokens/s", "over plain", "acceptance", "tokens per pass")
    table = new_table("Decoding, greedy", *columns)
    for k, speed in found.speeds.items():
        name = f"engine's choice ({speed.draft_length:.1f})" if k == ADAPTIVE else str(k)
        plain = found.speeds[0].rate
        ratio = f"{speed.rate / plain:.2f}" if plain else ""
        shown = ["" if x is None else f"{x:.2f}" for x in (speed.acceptance, speed.tokens_per_pass)]
        table.add_row(name, f"{speed.rate:.1f}", ratio, *shown)
    yield table
    table = new_table("What memory bandwidth would allow", "", "")
    table.show_header = False
    table.add_row("bandwidth", f"{found.bandwidth.bytes_per_s / 1e9:.1f} GB/s")
    table.add_row("read by a pass of one row", f"{found.bytes / 2**20:,.1f} MiB")
    table.add_row("bound of plain decoding", f"{found.bound:.1f} tokens/s")
    table.add_row("reached by a pass of one row", f"{100 * found.share:.0f} %")
    yield table


def notes(found: Findings, repeats: int) -> Iterator[str]:
    """How the figures came about."""
    yield f"Medians of {repeats} turns, in each of which every case ran once."
    memory = found.bandwidth
    yield f"Bandwidth: {memory.how}, over {memory.buffer / 2**20:,.1f} MiB."
    if found.share > 1.0:
        yield "More than bandwidth allows: what a pass reads stays in caches between passes."
    if not found.speeds[0].total.tokens:
        yield "No tokens/s: every answer ended with its first token."


def new_table(title: str, *columns: str) -> Table:
    """A table with a bold title; all columns but the first are of figures."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.min_width = min(len(title), 80)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def plot(found: Findings, file: Path) -> None:
    """Draw two panels: what n rows cost, and tokens per second by draft length.

    Raises:
        ImportError: there is no matplotlib.
        OSError: the file cannot be written.
    """
    figure_class: Any = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows_ = range(1, len(found.v) + 1)
    left.plot(rows_, list(rows_), "--", color="grey", label="as many single passes")
    left.axhline(1.0, linestyle=":", color="grey", label="no more than one row")
    left.plot(rows_, found.v, "o-", label="measured")
    left.set(xlabel="rows in a target pass", ylabel="cost over one row", ylim=(0, None))
    left.legend()
    fixed = [k for k in found.speeds if k != ADAPTIVE]
    right.plot(fixed, [found.speeds[k].rate for k in fixed], "o-", label="fixed length")
    if ADAPTIVE in found.speeds:
        own = found.speeds[ADAPTIVE]
        right.plot([own.draft_length], [own.rate], "*", markersize=14, label="engine's choice")
    right.set(
        xlabel="draft length", ylabel="tokens/s", ylim=(0, None), xlim=(-0.3, MAX_DRAFT + 0.3)
    )
    right.legend()
    name = Path(found.info.model).name or found.info.model
    figure.suptitle(f"{name}, {found.info.precision}, {found.info.device}", parse_math=False)
    figure.savefig(file)
