# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp ask``: the engine of the node, in this process."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ..api import (
    Cancel,
    Channel,
    EngineConfig,
    Finish,
    FinishReason,
    GemmaMtpError,
    Message,
    ModelInfo,
    Piece,
    Request,
    RequestError,
    SamplingParams,
)
from ..models import resolve_pair
from ..terminal import AnswerPrinter, statistics

if TYPE_CHECKING:
    from ..engine.decode import Engine, RoundControl

INTERRUPTED = 130
_OPTIONS = re.compile(r"engine\.(max_context|device)")


class Interrupt:
    """Ctrl-C as a wish: the first is remembered, the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def run(options: argparse.Namespace) -> int:
    """Ask, print, return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be done; says what to change.
        pydantic.ValidationError: an option is out of its bounds.
    """
    errors = Console(stderr=True)
    request = make_request(options)
    config = make_config(options)
    try:
        engine = _load(config, errors)
        with Interrupt() as interrupt:
            finish = _answer(engine, request, options, interrupt)
    except GemmaMtpError as error:
        raise type(error)(as_options(str(error)), error.code) from error
    if finish.finish_reason is FinishReason.ERROR:
        raise GemmaMtpError(as_options(finish.error_msg), finish.error_code)
    if options.json:
        print(json.dumps(as_json(finish, engine.info), ensure_ascii=False), flush=True)
    else:
        errors.print(statistics(finish.stats))
    return INTERRUPTED if finish.finish_reason is FinishReason.CANCELED else 0


def make_request(options: argparse.Namespace) -> Request:
    """The request that the options ask for.

    Raises:
        RequestError: options contradict each other.
        pydantic.ValidationError: a value is out of its bounds.
    """
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    for name, text in (("PROMPT", prompt), ("--system", options.system)):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise RequestError(f"{name} is not valid UTF-8; give text in UTF-8")
    if options.raw and options.system:
        raise RequestError("--system is part of the chat template that --raw leaves out; drop one")
    turns = []
    if options.system:
        turns.append(Message(role="system", content=options.system))
    turns.append(Message(role="user", content=prompt))
    return Request(
        id="ask",
        messages=() if options.raw else tuple(turns),
        raw_prompt=prompt if options.raw else None,
        sampling=SamplingParams(
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            seed=options.seed,
        ),
    )


def make_config(options: argparse.Namespace) -> EngineConfig:
    """What the engine is made with.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    model, drafter = resolve_pair(options.model, options.drafter)
    return EngineConfig(
        model=model,
        drafter=drafter,
        device=options.device,
        weights=options.weights,
        reproducible=options.reproducible,
        threads=options.threads,
        max_context=options.max_context,
    )


def as_options(sentence: str) -> str:
    """Name options where the engine names the node's parameters."""
    return _OPTIONS.sub(lambda found: "--" + found[1].replace("_", "-"), sentence)


def as_json(finish: Finish, info: ModelInfo) -> dict[str, Any]:
    """What --json prints; None is unknown."""
    stats = finish.stats
    rates = {
        "acceptance_rate": stats.acceptance_rate,
        "tokens_per_pass": stats.tokens_per_pass,
    }
    return {
        "text": finish.text,
        "finish_reason": finish.finish_reason.name.lower(),
        "seed": finish.seed,
        "model": info.model_dump(mode="json"),
        "stats": stats.model_dump(mode="json")
        | {name: None if math.isnan(rate) else rate for name, rate in rates.items()},
    }


def _load(config: EngineConfig, console: Console) -> Engine:
    with _progress(console) as progress:
        progress("importing torch", 0.0)
        from ..engine import bounds

        bounds.let_idle_threads_sleep()
        bounds.apply_to_torch(config)
        from ..engine.decode import Engine

        return Engine.load(config, progress)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show the stages of a load on a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        yield lambda stage, fraction: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, fraction: bar.update(task, description=stage, completed=fraction)


def _answer(
    engine: Engine, request: Request, options: argparse.Namespace, interrupt: Interrupt
) -> Finish:
    """Generate; write the text as it comes unless it is to come as JSON."""
    from ..engine.decode import RoundControl

    def poll() -> RoundControl:
        end = Cancel(request_id=request.id) if interrupt.asked else None
        return RoundControl(draft_cap=options.draft_length, end=end)

    printer = None if options.json else AnswerPrinter(Console())
    request = request.model_copy(update={"submitted_s": time.monotonic()})
    for event in engine.generate(request, poll):
        if isinstance(event, Piece) and printer is not None:
            printer.round(event.text if event.channel is Channel.TEXT else "")
        elif isinstance(event, Finish):
            if printer is not None:
                printer.end()
            return event
    raise AssertionError("the engine ended without saying how")
