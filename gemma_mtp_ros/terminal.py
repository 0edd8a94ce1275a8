# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What command line and demo draw: an answer as it comes, what it cost, the plan in it."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from .api import Channel, Stats, ToolCall

ROUND_STYLES = ("bold green", "bold cyan")


def visible(text: str) -> str:
    """Replace control characters, line breaks and tabs aside.

    What a model writes must not steer the terminal.
    """
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c
        for c in text
    )


class AnswerPrinter:
    """Writes the text of an answer round by round, flushing each.

    On a terminal the rounds take two colours in turn, so that one sees which tokens one target
    pass brought. Elsewhere the text comes out as it is. What the model thinks is written dimmed to
    `aside`, on lines of its own; without one it is left out.
    """

    def __init__(self, console: Console, aside: Console | None = None) -> None:
        self._console = console
        self._aside = aside
        self._round = 0
        self._last = "\n"
        self._thinking = False

    def round(self, text: str, channel: Channel = Channel.TEXT) -> None:
        """Write what a round decided; it may be no text yet."""
        style = Style.parse(ROUND_STYLES[self._round % len(ROUND_STYLES)])
        self._round += 1
        if channel is Channel.REASONING and self._aside is not None and text:
            self._switch(thinking=True)
            self._last = text[-1]
            self._aside.print(Text(visible(text), "dim italic"), end="", soft_wrap=True)
            return
        if not text or channel is not Channel.TEXT:
            return
        self._switch(thinking=False)
        self._last = text[-1]
        if self._console.is_terminal:
            self._console.print(Text(visible(text), style), end="", soft_wrap=True)
        else:
            self._console.file.write(text)
        self._console.file.flush()

    def end(self) -> None:
        """Finish the line."""
        console = self._aside if self._thinking and self._aside is not None else self._console
        if self._last != "\n":
            console.file.write("\n")
            console.file.flush()
        self._last = "\n"

    def _switch(self, thinking: bool) -> None:
        if self._thinking != thinking:
            self.end()
            self._thinking = thinking


def call_line(call: ToolCall) -> Text:
    """A tool call in one line."""
    return Text.assemble((f"→ {visible(call.name)} ", "bold yellow"), visible(call.arguments))


def statistics(stats: Stats) -> Table:
    """What an answer cost."""
    table = Table.grid(padding=(0, 2))
    rounds, drafted, accepted = stats.rounds, sum(stats.drafted_at), sum(stats.accepted_at)
    passes = "pass" if rounds == 1 else "passes"
    rows = {
        "tokens/s": (
            f"{stats.tokens_per_second:.0f}" if stats.tokens_per_second else "-",
            f"{stats.completion_tokens} tokens, {stats.decode_s:.2f} s of decoding",
        ),
        "time to first token": (
            f"{1000 * stats.ttft_s:.0f} ms" if stats.completion_tokens else "-",
            f"prompt of {stats.prompt_tokens} tokens",
        ),
        "acceptance": (
            _ratio(stats.acceptance_rate),
            f"{accepted} of {drafted} drafted tokens" if drafted else "nothing was drafted",
        ),
        "tokens per target pass": (
            _ratio(stats.tokens_per_pass),
            f"{rounds} {passes}",
        ),
    }
    for name, (value, detail) in rows.items():
        table.add_row(name, Text(value, "bold", justify="right"), Text(detail, "dim"))
    return table


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def plan_table(plan: Sequence[dict[str, Any]]) -> Table:
    """The steps of a plan: action, and what it is about."""
    table = Table("step", "action", "with", title_justify="left")
    if not plan:
        table.add_row("-", "nothing to do", "")
    for number, step in enumerate(plan, 1):
        rest = ", ".join(
            f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
            for key, value in step.items()
            if key != "action"
        )
        table.add_row(str(number), Text(visible(str(step["action"]))), Text(visible(rest)))
    return table
