# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Time to first token with a long system prompt: read anew, and resumed at a cached prefix.

The same goals by one engine, with the cached prefixes dropped before every other one. Time counts
from the request to the first token: template, tokens, prefill, first choice. Answers must be
the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from gemma_mtp_ros.api import EngineConfig, Finish, Message, Request, SamplingParams
from gemma_mtp_ros.models import resolve_pair

from .common import MORE, Row, parser, report
from .wide import make_pair

SYSTEM_TOKENS = 1500
ANSWER = 8
BUDGET_MIB = 1024


def system_prompt(count: int) -> list[str]:
    """Lines of a robot's system prompt, more than enough for ``count`` tokens."""
    rules = (
        "You are the voice of a mobile robot with one arm.",
        "Never drive where people stand; wait, say so, and ask for the way.",
        "Answer with one short sentence and a plan in JSON.",
        "A plan is a list of steps, each of which has an action and its arguments.",
        "The kitchen is east of the hall; the office is north of it, behind the glass door.",
    )
    return [f"{i}. {rules[i % len(rules)]}" for i in range(count)]


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument(
        "--model", default="demo", help="a target, or wide: 400M random parameters"
    )
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--weights", default="float32")
    options_parser.add_argument("--goals", type=int, default=15, help="of each kind")
    options = options_parser.parse_args()

    import torch

    from gemma_mtp_ros.demo.corpus import held_out
    from gemma_mtp_ros.engine.decode import Engine, RoundControl

    torch.set_num_threads(options.threads)
    console = Console(stderr=True)
    with ExitStack() as stack:
        if options.model == "wide":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            target, drafter = map(str, make_pair(folder))
        else:
            target, drafter = resolve_pair(options.model, options.drafter)
        engine = Engine.load(
            EngineConfig(
                model=target,
                drafter=drafter,
                device="cpu",
                weights=options.weights,
                threads=options.threads,
                max_context=SYSTEM_TOKENS + 512,
                cache_max_mib=BUDGET_MIB,
            ),
            lambda stage, fraction: None,
        )
        lines = system_prompt(SYSTEM_TOKENS)
        counts = range(1, len(lines) + 1)
        system = next(
            text
            for text in ("\n".join(lines[:count]) for count in counts)
            if engine.count_tokens((Message(role="system", content=text),), None) >= SYSTEM_TOKENS
        )

        def serve(instruction: str) -> Finish:
            request = Request(
                id="benchmark",
                messages=(
                    Message(role="system", content=system),
                    Message(role="user", content=instruction),
                ),
                sampling=SamplingParams(temperature=0.0, max_new_tokens=ANSWER),
                submitted_s=time.monotonic(),
            )
            for event in engine.generate(request, lambda: RoundControl(draft_cap=4)):
                if isinstance(event, Finish):
                    return event
            raise AssertionError("the engine ended without saying how")

        ttft_s: dict[str, list[float]] = {"cold": [], "warm": []}
        prompts, cached, same = [], [], 0
        instructions = [example.instruction for example in held_out(options.goals + 1)]
        serve(instructions[0])
        with console.status("asking") as status:
            for number, instruction in enumerate(instructions[1:], 1):
                status.update(f"asking, goal {number} of {options.goals}")
                engine.prefixes.shrink(2**60)
                cold = serve(instruction)
                serve(instructions[0])
                warm = serve(instruction)
                assert cold.stats.cached_tokens == 0
                ttft_s["cold"].append(cold.stats.ttft_s)
                ttft_s["warm"].append(warm.stats.ttft_s)
                prompts.append(warm.stats.prompt_tokens)
                cached.append(warm.stats.cached_tokens)
                same += (warm.text, warm.stats.accepted_at) == (cold.text, cold.stats.accepted_at)
        held = engine.memory.snapshots
    found = {name: statistics.median(times) for name, times in ttft_s.items()}
    report(
        f"Time to first token with a system prompt of {SYSTEM_TOKENS} tokens: {options.model}",
        [
            Row("prefix.ttft_cold", found["cold"] * 1e3, "ms"),
            Row("prefix.ttft_warm", found["warm"] * 1e3, "ms"),
            Row("prefix.ttft_cold_vs_warm", found["cold"] / found["warm"], "ratio", (MORE, 10.0)),
            Row("prefix.prompt_tokens", statistics.median(prompts), "tokens"),
            Row("prefix.cached_tokens", statistics.median(cached), "tokens"),
            Row("prefix.same_answers", same / options.goals, "share", (MORE, 1.0)),
            Row("prefix.held", held / 2**20, "MiB"),
        ],
        options.threads,
        options.json,
        notes=[
            "Warm: another goal with the same system prompt came before. Medians; 2 runs a goal."
        ],
    )


if __name__ == "__main__":
    main()
