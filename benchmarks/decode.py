# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Speed of decoding, this engine beside transformers: same pair, prompts, tokens and threads.

First the embedded pair, then a model of about 400M random parameters (``wide``).

Greedy decoding of held-out instructions to the end of the turn, float32. A time is that of a whole
answer, prefill included; this engine's has the chat template and the text in it too, that of
transformers' ``generate`` begins with token ids and ends with token ids. Every case answers each
prompt in turn, several times; the figures are of each case's medians.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from gemma_mtp_ros.api import EngineConfig, Finish, Message, Piece, Request, SamplingParams, Stats
from gemma_mtp_ros.models import resolve_pair

from . import wide
from .common import MORE, Row, interleaved, parser, report

DRAFT_LENGTHS = (0, 2, 4, 6)
ASSISTANT_TOKENS = 4

HF, HF_ASSISTED = "hf", f"hf_assisted{ASSISTANT_TOKENS}"
EXACT = "_reproducible"


class Answer(NamedTuple):
    """Token ids without the one that ends the turn, and what this engine says it cost."""

    tokens: list[int]
    stats: Stats | None = None


class Transformers:
    """The pair in transformers, as its documentation says to use it."""

    def __init__(self, target: str, drafter: str, max_new_tokens: int) -> None:
        import torch
        from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

        self._torch = torch
        self._target = Gemma4ForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self._assistant = Gemma4AssistantForCausalLM.from_pretrained(
            drafter, dtype=torch.float32
        ).eval()
        self._assistant.generation_config.num_assistant_tokens = ASSISTANT_TOKENS
        self._assistant.generation_config.num_assistant_tokens_schedule = "constant"
        self._max_new_tokens = max_new_tokens
        eos = self._target.generation_config.eos_token_id
        self._eos = {eos} if isinstance(eos, int) else set(eos or ())
        self.passes = 0
        self._target.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.passes += 1

    def generate(self, prompt: list[int], assisted: bool) -> Answer:
        """Answer greedily."""
        ids = self._torch.tensor([prompt])
        with self._torch.inference_mode():
            output = self._target.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=self._max_new_tokens,
                assistant_model=self._assistant if assisted else None,
            )
        tokens = output[0, len(prompt) :].tolist()
        return Answer(tokens[:-1] if tokens and tokens[-1] in self._eos else tokens)


def engine_runner(
    target: str, drafter: str, reproducible: bool, threads: int
) -> Callable[[str, int, int], Answer]:
    """This engine: a function of instruction, draft length and token limit."""
    from gemma_mtp_ros.engine.decode import Engine, RoundControl

    config = EngineConfig(
        model=target,
        drafter=drafter,
        device="cpu",
        reproducible=reproducible,
        threads=threads,
        max_context=1024,
    )
    engine = Engine.load(config, lambda stage, fraction: None)

    def run(instruction: str, draft_length: int, max_new_tokens: int) -> Answer:
        request = Request(
            id="benchmark",
            messages=(Message(role="user", content=instruction),),
            sampling=SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens),
        )
        control = RoundControl(draft_cap=draft_length)
        tokens: list[int] = []
        stats = None
        for event in engine.generate(request, lambda: control):
            if isinstance(event, Piece):
                tokens += event.token_ids
            elif isinstance(event, Finish):
                stats = event.stats
        return Answer(tokens, stats)

    return run


def case_name(draft_length: int, reproducible: bool) -> str:
    """Name of a case of this engine, as in the rows."""
    name = f"mtp{draft_length}" if draft_length else "plain"
    return name + EXACT if reproducible else name


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--model", default="demo")
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--prompts", type=int, default=12)
    options_parser.add_argument("--repeats", type=int, default=5)
    options_parser.add_argument("--max-new-tokens", type=int, default=128)
    options_parser.add_argument(
        "--wide-repeats", type=int, default=25, help="of the large model; 0 leaves it out"
    )
    options = options_parser.parse_args()

    import torch
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from gemma_mtp_ros.demo.corpus import held_out

    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    target, drafter = resolve_pair(options.model, options.drafter)
    reference = Transformers(target, drafter, options.max_new_tokens)
    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    runners = {r: engine_runner(target, drafter, r, options.threads) for r in (False, True)}
    modes = list(itertools.product((False, True), DRAFT_LENGTHS))

    seconds: dict[str, float] = {}
    tokens = 0
    passes = dict.fromkeys((HF, HF_ASSISTED), 0)
    same = dict.fromkeys((case_name(k, r) for r, k in modes), 0)
    stats: dict[str, list[Stats]] = {name: [] for name in same}
    instructions = [example.instruction for example in held_out(options.prompts)]
    with Console(stderr=True).status("measuring") as status:
        for number, instruction in enumerate(instructions, 1):
            status.update(f"prompt {number} of {len(instructions)}")
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": instruction}],
                tokenize=True,
                add_generation_prompt=True,
                return_dict=True,
            )["input_ids"]
            cases: dict[str, Callable[[], Answer]] = {
                HF: partial(reference.generate, prompt, assisted=False),
                HF_ASSISTED: partial(reference.generate, prompt, assisted=True),
            }
            for reproducible, k in modes:
                cases[case_name(k, reproducible)] = partial(
                    runners[reproducible], instruction, k, options.max_new_tokens
                )
            # Not timed: compares the answers and warms all up.
            expected = Answer([])
            for name in (HF_ASSISTED, HF):
                before = reference.passes
                expected = cases[name]()
                passes[name] += reference.passes - before - 1  # the prefill
            tokens += len(expected.tokens)
            for name in same:
                answer = cases[name]()
                same[name] += answer.tokens == expected.tokens
                stats[name].append(answer.stats or Stats())
            for name, median_s in interleaved(cases, options.repeats).items():
                seconds[name] = seconds.get(name, 0.0) + median_s

    speeds = speed_rows(seconds, tokens, same, stats, len(instructions))
    for name, count in passes.items():
        per_pass = (tokens - len(instructions)) / count
        speeds.append(Row(f"pair.{name}.tokens_per_pass", per_pass, "tokens"))
    wide_rows: list[Row] = []
    if options.wide_repeats:
        with Console(stderr=True).status("a large model") as status:
            wide_rows = wide.rows(options.threads, options.wide_repeats, status.update)
    report(
        "How much faster",
        [*ratio_rows(seconds), *wide_rows],
        options.threads,
        options.json,
        table=speed_table(speeds),
        in_table=speeds,
        notes=[
            "wide: 404M random parameters; products: all of a pass, beside torch's F.linear in "
            "bfloat16; v5: a pass of five rows against one, at a cache of 200; oracle: drafts of "
            "acceptance 0.85, whose steps are paid for, of a length that the engine chooses.",
            f"{len(instructions)} prompts, {tokens} tokens; whole answers, prefill included; "
            f"medians of {options.repeats} interleaved runs.",
            "Reproducible: the same bits for every draft length. The C++ kernels are "
            "so by nature, and both columns the same code; torch takes passes of a fixed width.",
            "k: draft length. Same tokens: answers that equal those of transformers' generate.",
            "Tokens per pass: of the target after the prefill; the end of a turn is not counted.",
        ],
    )


def speed_rows(
    seconds: dict[str, float],
    tokens: int,
    same: dict[str, int],
    stats: dict[str, list[Stats]],
    prompts: int,
) -> list[Row]:
    """Speed of each case; of this engine's also acceptance and agreement with transformers.

    `seconds` is of all prompts together, `same` counts the answers that equal transformers'.
    """
    rows = [Row(f"pair.{name}", tokens / seconds[name], "tokens/s") for name in seconds]
    for name, runs in stats.items():
        drafted = sum(sum(run.drafted_at) for run in runs)
        accepted = sum(sum(run.accepted_at) for run in runs)
        decided = sum(run.completion_tokens - 1 for run in runs)
        if drafted:
            rows.append(Row(f"pair.{name}.acceptance", accepted / drafted, "share"))
        per_pass = decided / sum(run.rounds for run in runs)
        rows.append(Row(f"pair.{name}.tokens_per_pass", per_pass, "tokens"))
        rows.append(Row(f"pair.{name}.same_tokens", same[name] / prompts, "share"))
    return rows


def ratio_rows(seconds: dict[str, float]) -> list[Row]:
    """The comparisons with goals, in natural widths and reproducible."""
    pairs = (
        ("plain_vs_hf", "plain", HF, 2.0),
        ("mtp4_vs_hf_assisted4", "mtp4", HF_ASSISTED, 2.3),
        ("mtp4_vs_plain", "mtp4", "plain", 1.5),
    )
    rows = [
        Row(f"pair.{name}", seconds[slow] / seconds[fast], "ratio", (MORE, goal))
        for name, fast, slow, goal in pairs
    ]
    for name, fast, slow, _ in pairs:
        fast, slow = (case if case in (HF, HF_ASSISTED) else case + EXACT for case in (fast, slow))
        rows.append(Row(f"pair.{name}{EXACT}", seconds[slow] / seconds[fast], "ratio"))
    return rows


def speed_table(rows: list[Row]) -> Table:
    """One line a draft length, natural widths and reproducible side by side."""
    value = {row.name.removeprefix("pair."): row.value for row in rows}

    def shown(name: str, digits: int) -> str:
        return f"{value[name]:.{digits}f}" if name in value else ""

    table = Table(
        title="Decoding, greedy", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    table.add_column("", no_wrap=True)
    for heading in (
        *("tokens/s\nnatural", "tokens/s\nreproducible", "acceptance", "tokens\nper pass"),
        "same\ntokens",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, label in ((HF, "transformers"), (HF_ASSISTED, f"transformers, k={ASSISTANT_TOKENS}")):
        table.add_row(label, shown(name, 1), "", "", shown(f"{name}.tokens_per_pass", 2), "")
    for k in DRAFT_LENGTHS:
        natural, exact = case_name(k, False), case_name(k, True)
        table.add_row(
            f"this engine, k={k}",
            shown(natural, 1),
            shown(exact, 1),
            shown(f"{natural}.acceptance", 2),
            shown(f"{natural}.tokens_per_pass", 2),
            f"{100 * min(value[f'{name}.same_tokens'] for name in (natural, exact)):.0f} %",
        )
    return table


if __name__ == "__main__":
    main()
