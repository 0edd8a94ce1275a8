# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp bench``: what decoding costs on this board, and what its memory would allow."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from ..api import (
    MAX_DRAFT,
    EngineConfig,
    Finish,
    FinishReason,
    GemmaMtpError,
    Message,
    Request,
    RequestError,
    SamplingParams,
    Stats,
)
from ..models import DEMO, resolve_pair
from .figures import Row, machine, rotated, write_rows
from .findings import ADAPTIVE, Findings, Speed, Total, notes, plot, rows, tables

if TYPE_CHECKING:
    from ..engine.decode import Engine, RoundControl
    from ..engine.draft_length import Costs

PROMPTS = (
    "You are a service robot in a hospital. List the steps to bring a glass of water from the "
    "kitchen to room 12, one a line.",
    "A visitor asks: where is the lift? It is past the front desk, on the left. Answer in one "
    "friendly sentence.",
    "The battery is at 18 percent and two deliveries are waiting. Say what the robot should do "
    "next, and why, in three sentences.",
)
"""What is asked of any model but the embedded one."""

FILLER = "Take the red cup to the kitchen and wait for the nurse. "
_OPTIONS = re.compile(
    r"engine\.(max_context|device|weights|drafter_weights|kv_dtype|threads|reproducible)"
)
_PLOTS = (".png", ".svg")

Beat = Callable[[], None]


def run(options: argparse.Namespace) -> int:
    """Measure, print, write; return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be done; says what to change.
        pydantic.ValidationError: an option is out of its bounds.
    """
    check_files(options.json, options.plot)
    check_files(None, options.picture, "--picture")
    from . import drafters

    drafters.check(options)
    if options.drafters:
        return drafters.run(options)
    config = make_config(options)
    with progress(Console(stderr=True)) as steps:
        try:
            engine = load(config, steps)
            found = measure(engine, options, steps)
        except GemmaMtpError as error:
            raise type(error)(as_options(str(error)), error.code) from error
    console = Console(markup=False)
    for table in tables(found):
        console.print(table)
    for note in notes(found, options.repeats):
        console.print(note, style="dim", highlight=False, soft_wrap=True)
    write(
        console, str(engine.device), rows(found), options.json, options.plot, partial(plot, found)
    )
    return 0


def write(
    console: Console,
    device: str,
    figures: Sequence[Row],
    json_file: Path | None,
    picture: Path | None,
    draw: Callable[[Path], None],
) -> None:
    """Say which machine it was, and write the files that are wanted.

    Raises:
        RequestError: a file cannot be written.
    """
    import torch

    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    described = machine(torch.get_num_threads(), gpu)
    said = ", ".join(f"{key} {value}" for key, value in described.items() if value)
    console.print(said, style="dim", highlight=False, soft_wrap=True)
    try:
        if json_file is not None:
            write_rows(json_file, described, figures)
        if picture is not None:
            draw(picture)
    except OSError as error:
        raise RequestError(f"{error.filename} cannot be written: {error.strerror}") from error


def check_files(
    json_file: Path | None, plot_file: Path | None, plot_option: str = "--plot"
) -> None:
    """Refuse at once what could not be written after minutes of measuring.

    Raises:
        RequestError: naming the file and the remedy.
    """
    for option, file in (("--json", json_file), (plot_option, plot_file)):
        if file is None:
            continue
        folder = file.absolute().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise RequestError(
                f"{option} {file} lies in a folder that cannot be written to; give another"
            )
        if file.is_dir() or (file.exists() and not os.access(file, os.W_OK)):
            raise RequestError(f"{option} {file} cannot be written to; give another name")
    if plot_file is None:
        return
    if plot_file.suffix not in _PLOTS:
        raise RequestError(f"{plot_option} {plot_file} ends neither in {' nor in '.join(_PLOTS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise RequestError(
            f"{plot_option} needs matplotlib; pip install matplotlib, or leave {plot_option} out"
        )


def make_config(options: argparse.Namespace) -> EngineConfig:
    """What the engine is made with; its context has room for all that is measured.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    model, drafter = resolve_pair(options.model, options.drafter, options.draft_kind)
    return EngineConfig(
        model=model,
        drafter=drafter,
        draft_kind=options.draft_kind,
        device=options.device,
        weights=options.weights,
        drafter_weights=options.drafter_weights,
        kv_dtype=options.kv_dtype,
        reproducible=options.reproducible,
        threads=options.threads,
        max_context=max(1024, options.context + options.tokens + MAX_DRAFT + 1),
    )


def as_options(sentence: str) -> str:
    """Name options where the engine names the node's parameters."""
    sentence = sentence.replace("draft.kind", "--draft-kind")
    sentence = sentence.replace("in the parameter 'drafter'", "as --drafter")
    sentence = _OPTIONS.sub(lambda found: "--" + found[1].replace("_", "-"), sentence)
    return sentence.replace("--max-context", "--context")


@contextlib.contextmanager
def progress(console: Console) -> Iterator[Callable[[str, int], Beat]]:
    """A bar on a terminal, and nothing elsewhere: steps(what, how many) gives what to call after
    each.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30))
    with Progress(
        *columns,
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=1)

        def steps(what: str, count: int) -> Beat:
            bar.reset(task, description=what, total=count)
            return lambda: bar.advance(task)

        yield steps


def load(config: EngineConfig, steps: Callable[[str, int], Beat], first: bool = True) -> Engine:
    """An engine in this process.

    :param first: whether none was loaded before, so that threads are still to be set.

    Raises:
        GemmaMtpError: it cannot be loaded.
    """
    steps("importing torch", 1)
    from ..engine import bounds

    if first:
        bounds.let_idle_threads_sleep()
        bounds.apply_to_torch(config)
    from ..engine.decode import Engine

    steps("loading", 1)
    return Engine.load(config, lambda stage, fraction: None)


def measure(
    engine: Engine, options: argparse.Namespace, steps: Callable[[str, int], Beat]
) -> Findings:
    """All figures of a loaded engine.

    Raises:
        RequestError: the model has no room for the context asked for.
    """
    import torch

    from ..engine import costs as engine_costs

    context, repeats = options.context, options.repeats
    if context + options.tokens + MAX_DRAFT + 1 > engine.context:
        raise RequestError(
            f"--context {context} and --tokens {options.tokens} do not fit the {engine.context} "
            "tokens that this model allows; give less"
        )
    with torch.inference_mode():
        passes = (repeats + 1) * (MAX_DRAFT + 1) + len(engine.target.cache.layers)
        beat = steps("timing passes", passes)
        costs = engine_costs.measure(engine.target, engine.drafter, beat, context, repeats)
        steps("measuring memory bandwidth", 1)
        size = engine_costs.pass_bytes(engine.target, context)
        bandwidth = engine_costs.bandwidth(engine.device, size, repeats)
    engine.warm("", lambda: control(0))
    prompt_tokens, ttft_s = first_token(engine, context, repeats, steps)
    speeds = decode(engine, requests(engine, options), costs, repeats, steps)
    return Findings(engine.info, context, costs, prompt_tokens, ttft_s, speeds, size, bandwidth)


def requests(engine: Engine, options: argparse.Namespace) -> list[Request]:
    """The built-in prompts: held-out instructions for the embedded pair."""
    if options.model == DEMO:
        from ..demo.corpus import held_out

        texts = [example.instruction for example in held_out(len(PROMPTS))]
    else:
        texts = list(PROMPTS)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=options.tokens)
    return [
        Request(id="bench", messages=(Message(role="user", content=text),), sampling=sampling)
        for text in texts
    ]


def control(draft_length: int) -> RoundControl:
    """What the engine asks before each round: drafts of at most this length."""
    from ..engine.decode import RoundControl

    return RoundControl(draft_length)


def answer(engine: Engine, request: Request, draft_length: int) -> Stats:
    """What an answer costs with drafts of at most this length.

    Raises:
        GemmaMtpError: the engine refuses the request.
    """
    wanted = control(draft_length)
    for event in engine.generate(request, lambda: wanted):
        if isinstance(event, Finish):
            if event.finish_reason is FinishReason.ERROR:
                raise GemmaMtpError(event.error_msg, event.error_code)
            return event.stats
    raise AssertionError("the engine ended without saying how")


def first_token(
    engine: Engine, tokens: int, repeats: int, steps: Callable[[str, int], Beat]
) -> tuple[int, float]:
    """Length of a prompt of about so many tokens, and seconds from it to its first token."""
    each = len(engine.text.encode((), FILLER))
    request = Request(
        id="bench",
        raw_prompt=FILLER * max(1, tokens // each),
        sampling=SamplingParams(temperature=0.0, max_new_tokens=1),
    )
    beat = steps("timing the first token", repeats + 1)
    found = []
    for _ in range(repeats + 1):
        found.append(answer(engine, request, 0))
        beat()
    return found[0].prompt_tokens, statistics.median(stats.ttft_s for stats in found[1:])


def decode(
    engine: Engine,
    asked: list[Request],
    costs: Costs,
    repeats: int,
    steps: Callable[[str, int], Beat],
) -> dict[int, Speed]:
    """Decoding at every draft length and at the engine's own, in turns."""
    lengths = [0] if engine.drafter is None else [*range(MAX_DRAFT + 1), ADAPTIVE]
    speeds = {k: Speed() for k in lengths}
    beat = steps("decoding", repeats * len(lengths) * len(asked))
    for turn in range(repeats):
        for k in rotated(lengths, turn):
            own = k == ADAPTIVE
            engine.model.costs = costs if own else None
            total = Total()
            for request in asked:
                stats = answer(engine, request, min(k, MAX_DRAFT))
                total.add(stats)
                speeds[k].total.add(stats)
                beat()
            speeds[k].rates.append(total.rate)
    engine.model.costs = None
    return speeds
