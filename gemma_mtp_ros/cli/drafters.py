# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp bench --drafters``: which kind of drafter pays for which kind of task."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from ..api import (
    DraftKind,
    EngineConfig,
    ErrorCode,
    GemmaMtpError,
    MemoryUse,
    Message,
    Request,
    RequestError,
    SamplingParams,
)
from ..models import DEMO, resolve_pair
from . import bench
from .drafter_tables import notes, plot, rows, tables
from .figures import rotated
from .findings import Total
from .tasks import ERRANDS, tasks

if TYPE_CHECKING:
    from ..engine.decode import Engine

TEMPERATURES = (0.0, 0.7, 1.0)

CONTEXT = 4096
"""Tokens of prompt and answer together, if the model allows as many."""

Steps = Callable[[str, int], bench.Beat]


@dataclass
class Kind:
    """What one kind of drafter brought.

    Attributes:
        drafter: its name; empty: it has none.
        greedy: by kind of task, at temperature 0.
        plain: the same answers of the same engine without drafts, by turns with those.
        warm: by temperature, over all tasks.
        skipped: kinds of tasks whose prompts do not fit the model.
    """

    kind: DraftKind
    drafter: str
    memory: MemoryUse
    greedy: dict[str, Total] = field(default_factory=dict)
    plain: dict[str, Total] = field(default_factory=dict)
    warm: dict[float, Total] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Memory of the engine at the full context."""
        return self.memory.total


@dataclass
class Comparison:
    """Kinds of drafters side by side; the first one drafts nothing."""

    model: str
    precision: str
    device: str
    draft_length: int
    tokens: int
    repeats: int
    kinds: list[Kind] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        """Kinds of tasks that were asked."""
        return list(self.kinds[0].greedy)

    @property
    def demo(self) -> bool:
        """Whether this is the embedded pair."""
        return ERRANDS in self.tasks


def run(options: argparse.Namespace) -> int:
    """Measure every kind, print, write; return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be done; says what to change.
        pydantic.ValidationError: an option is out of its bounds.
    """
    configs = list(make_configs(options))
    try:
        check_drafters(configs)
    except GemmaMtpError as error:
        raise type(error)(bench.as_options(str(error)), error.code) from error
    asked = tasks_for(options.model)
    found: Comparison | None = None
    with bench.progress(Console(stderr=True)) as steps:
        for config in configs:
            try:
                engine = bench.load(config, steps, first=found is None)
                if found is None:
                    info = engine.info
                    found = Comparison(
                        info.model,
                        info.precision,
                        info.device,
                        options.draft_length,
                        options.tokens,
                        options.repeats,
                    )
                found.kinds.append(measure(engine, asked, found, steps))
            except GemmaMtpError as error:
                raise type(error)(bench.as_options(str(error)), error.code) from error
            del engine
            give_back()
    assert found is not None
    console = Console(markup=False)
    for table in tables(found):
        console.print(table)
    for note in notes(found):
        console.print(note, style="dim", highlight=False, soft_wrap=True)
    draw = partial(plot, found)
    bench.write(console, found.device, rows(found), options.json, options.picture, draw)
    return 0


def make_configs(options: argparse.Namespace) -> Iterator[EngineConfig]:
    """An engine for each kind that can be had here, plain decoding first.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    model, drafter = resolve_pair(options.model, options.drafter)
    kinds: list[tuple[DraftKind, str]] = [("none", ""), ("prompt_lookup", "")]
    if drafter:
        kinds.append(("mtp", drafter))
    _, smaller = resolve_pair(options.model, options.draft_model, "draft_model")
    if smaller:
        kinds.append(("draft_model", smaller))
    for kind, name in kinds:
        yield EngineConfig(
            model=model,
            drafter=name,
            draft_kind=kind,
            device=options.device,
            weights=options.weights,
            drafter_weights=options.drafter_weights,
            kv_dtype=options.kv_dtype,
            reproducible=options.reproducible,
            threads=options.threads,
            structured_output=False,
            max_context=CONTEXT,
        )


def check_drafters(configs: Sequence[EngineConfig]) -> None:
    """Refuse at once what is no drafter of the target, and not when its turn comes.

    Raises:
        CheckpointError: what does not fit, and what to give instead.
    """
    from ..engine.checkpoint import find_folder, read_config
    from ..engine.draft_loading import plan_drafter
    from ..engine.spec import TARGET_TYPES, text_spec

    folder = find_folder(configs[0].model, "model")
    spec = text_spec(read_config(folder, TARGET_TYPES, "model").get_text_config())
    for config in configs:
        plan_drafter(config, folder, spec, CONTEXT)


def tasks_for(model: str) -> dict[str, list[str]]:
    """Prompts by kind of task; the embedded pair gets what it was made for before all others."""
    asked = tasks()
    if model == DEMO:
        from ..demo.corpus import held_out

        count = len(next(iter(asked.values())))
        asked = {ERRANDS: [example.instruction for example in held_out(count)], **asked}
    return asked


def measure(engine: Engine, asked: dict[str, list[str]], found: Comparison, steps: Steps) -> Kind:
    """All answers of one kind of drafter.

    Raises:
        GemmaMtpError: the engine refuses a request, unless for its length.
    """
    info = engine.info
    here = Kind(info.draft_kind, info.drafter, info.memory)
    here.warm = {temperature: Total() for temperature in TEMPERATURES}
    lengths = [0] if info.draft_kind == "none" else [found.draft_length, 0]
    cases = [
        (temperature, length)
        for temperature in TEMPERATURES
        for turn in range(found.repeats if temperature == 0.0 else 1)
        for length in (rotated(lengths, turn) if temperature == 0.0 else lengths[:1])
    ]
    beat = steps(f"answers with {info.draft_kind}", sum(map(len, asked.values())) * len(cases))
    engine.warm("", lambda: bench.control(lengths[0]))
    for task, texts in asked.items():
        greedy = here.greedy[task] = Total()
        plain = here.plain[task] = greedy if len(lengths) == 1 else Total()
        for text in texts:
            for temperature, length in cases:
                try:
                    stats = bench.answer(engine, question(text, temperature, found.tokens), length)
                except GemmaMtpError as error:
                    if error.code is not ErrorCode.PROMPT_TOO_LONG:
                        raise
                    if task not in here.skipped:
                        here.skipped.append(task)
                    continue
                finally:
                    beat()
                if length != lengths[0]:
                    plain.add(stats)
                    continue
                here.warm[temperature].add(stats)
                if temperature == 0.0:
                    greedy.add(stats)
    return here


def question(text: str, temperature: float, tokens: int) -> Request:
    """One prompt; drawn answers are drawn from the same seed with every drafter."""
    sampling = SamplingParams(temperature=temperature, seed=1, max_new_tokens=tokens)
    return Request(id="bench", messages=(Message(role="user", content=text),), sampling=sampling)


def give_back() -> None:
    """Free what an engine held before the next one is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def check(options: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        RequestError: naming them and the remedy.
    """
    if options.drafters and options.plot is not None:
        raise RequestError("--plot draws what one drafter costs; with --drafters use --picture")
    if options.drafters and options.draft_kind != "mtp":
        raise RequestError("--drafters measures every kind; leave --draft-kind out")
    for option in ("picture", "draft_model"):
        if not options.drafters and getattr(options, option):
            raise RequestError(f"--{option.replace('_', '-')} belongs to --drafters; add that")
