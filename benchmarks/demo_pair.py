# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the embedded pair is worth: plans for held-out instructions, drafted four tokens at a time.

Greedy, through this engine. A plan is exact if its steps are the wanted ones, in order.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console

from gemma_mtp_ros.demo.evaluate import PlanCheck, plan_matches
from gemma_mtp_ros.models import resolve_pair

from .common import MORE, Row, parser, report
from .decode import engine_runner

DRAFT_LENGTH = 4
MAX_NEW_TOKENS = 256


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--model", default="demo")
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--instructions", type=int, default=200)
    options_parser.add_argument("--show", action="store_true", help="print what is wrong")
    options_parser.set_defaults(threads=1)  # what the engine takes for so small a model
    options = options_parser.parse_args()

    import torch
    from transformers import AutoTokenizer

    from gemma_mtp_ros.demo.corpus import dump_plan, held_out

    torch.set_num_threads(options.threads)
    target, drafter = resolve_pair(options.model, options.drafter)
    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    run = engine_runner(target, drafter, True, options.threads)
    console = Console(stderr=True)
    checks: list[PlanCheck] = []
    decided = rounds = drafted = accepted = 0
    examples = held_out(options.instructions)
    with console.status("answering") as status:
        for example in examples:
            answer = run(example.instruction, DRAFT_LENGTH, MAX_NEW_TOKENS)
            text = tokenizer.decode(answer.tokens, skip_special_tokens=True)
            checks.append(plan_matches(text, example.plan))
            if options.show and not checks[-1].exact:
                for line in (example.instruction, dump_plan(example.plan), text, ""):
                    console.print(line, markup=False, highlight=False)
            assert answer.stats is not None
            # The first token comes from the prefill, not from a round.
            decided += answer.stats.completion_tokens - 1
            rounds += answer.stats.rounds
            drafted += sum(answer.stats.drafted_at)
            accepted += sum(answer.stats.accepted_at)
            status.update(f"answered {len(checks)} of {len(examples)}")
    count = len(checks)
    report(
        f"The embedded pair on {count} held-out instructions",
        [
            Row("pair.json_valid", sum(c.valid_json for c in checks) / count, "share", (MORE, 1.0)),
            Row("pair.plan_exact", sum(c.exact for c in checks) / count, "share", (MORE, 0.95)),
            Row(f"pair.tokens_per_pass_k{DRAFT_LENGTH}", decided / rounds, "tokens", (MORE, 3.5)),
            Row(f"pair.acceptance_k{DRAFT_LENGTH}", accepted / drafted, "share"),
        ],
        options.threads,
        options.json,
        notes=["Tokens per pass: of the target after the prefill, which decides the first token."],
    )


if __name__ == "__main__":
    main()
