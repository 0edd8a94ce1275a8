# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that follow a JSON Schema: are they valid, and what do forced tokens save.

The embedded pair answers held-out instructions by each of a robot's schemas, sampled at temperature
1, with and without drafts, with forced tokens drafted for nothing and without. The text is the same
in each case. A forced token is the only one that its mask allows; with the pair's vocabulary of
words that is the last piece of a property's name more often than all of it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from rich.console import Console

from gemma_mtp_ros.api import EngineConfig, Finish, Message, Piece, Request, SamplingParams
from gemma_mtp_ros.models import resolve_pair

from .common import MORE, Row, parser, report

DRAFT_LENGTHS = (0, 4)
MAX_NEW_TOKENS = 300

_WORD = {"type": "string", "minLength": 1, "maxLength": 24}


def _closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_STEP = {
    "anyOf": [
        _closed(("action", "to"), action={"const": "navigate"}, to=_WORD),
        _closed(("action", "object"), action={"const": "pick"}, object=_WORD),
        _closed(("action", "object", "to"), action={"const": "give"}, object=_WORD, to=_WORD),
    ]
}
_POINT = _closed(
    ("x", "y"),
    x={"type": "number", "minimum": -50, "maximum": 50, "multipleOf": 0.5},
    y={"type": "number", "minimum": -50, "maximum": 50, "multipleOf": 0.5},
)
SCHEMAS: dict[str, dict[str, Any]] = {
    "plan": _closed(
        ("plan",), plan={"type": "array", "items": _STEP, "minItems": 1, "maxItems": 6}
    ),
    "route": _closed(
        ("frame_id", "points"),
        frame_id={"enum": ["map", "odom"]},
        points={"type": "array", "items": _POINT, "minItems": 1, "maxItems": 4},
    ),
    "report": _closed(
        ("succeeded", "reason", "battery_percentage"),
        succeeded={"type": "boolean"},
        reason={"type": ["string", "null"], "maxLength": 40},
        battery_percentage={"type": "integer", "minimum": 0, "maximum": 100},
    ),
    "choice": {"enum": ["kitchen", "lab", "office", "workshop"]},
}


class Case(NamedTuple):
    """How an answer is decoded."""

    draft_length: int
    forcing: bool


class Counts:
    """Tokens after the first, which comes from the prefill, and passes that decided them."""

    def __init__(self) -> None:
        self.tokens = self.passes = 0

    def add(self, finish: Finish) -> None:
        """Count an answer."""
        self.tokens += finish.stats.completion_tokens - 1
        self.passes += finish.stats.rounds

    @property
    def per_pass(self) -> float:
        """Tokens that a target pass decides."""
        return self.tokens / self.passes


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--model", default="demo")
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--instructions", type=int, default=25)
    options_parser.set_defaults(threads=1)  # what the engine takes for so small a model
    options = options_parser.parse_args()

    import jsonschema
    import torch

    from gemma_mtp_ros.demo.corpus import held_out
    from gemma_mtp_ros.engine.decode import Engine, RoundControl

    torch.set_num_threads(options.threads)
    model, drafter = resolve_pair(options.model, options.drafter)
    config = EngineConfig(
        model=model, drafter=drafter, device="cpu", threads=options.threads, max_context=1024
    )
    engine = Engine.load(config, lambda stage, fraction: None)

    def answer(instruction: str, schema: dict[str, Any], seed: int, case: Case) -> Finish:
        engine.forcing = case.forcing
        request = Request(
            id="benchmark",
            messages=(Message(role="user", content=instruction),),
            response_schema=json.dumps(schema),
            sampling=SamplingParams(temperature=1.0, seed=seed, max_new_tokens=MAX_NEW_TOKENS),
        )
        finish: Finish | None = None
        for event in engine.generate(request, lambda: RoundControl(case.draft_length)):
            if isinstance(event, Finish):
                finish = event
            elif isinstance(event, Piece):
                tokens.extend(event.token_ids)
        assert finish is not None
        return finish

    cases = [Case(k, forcing) for k in DRAFT_LENGTHS for forcing in (False, True)]
    counts = {(name, case): Counts() for name in SCHEMAS for case in cases}
    valid = same = total = 0
    instructions = [example.instruction for example in held_out(options.instructions)]
    with Console(stderr=True).status("answering") as status:
        for seed, instruction in enumerate(instructions):
            status.update(f"instruction {seed + 1} of {len(instructions)}")
            for name, schema in SCHEMAS.items():
                said: list[list[int]] = []
                for case in cases:
                    tokens: list[int] = []
                    finish = answer(instruction, schema, seed, case)
                    counts[name, case].add(finish)
                    said.append(tokens)
                total += 1
                valid += _valid(jsonschema, finish.text, schema)
                same += all(each == said[0] for each in said)
    rows = [
        Row("structured.valid", valid / total, "share", (MORE, 1.0)),
        Row("structured.same_tokens", same / total, "share", (MORE, 1.0)),
    ]
    for k in DRAFT_LENGTHS:
        suffix = f"_k{k}" if k else ""
        without, with_forcing = (_sum(counts, Case(k, forcing)) for forcing in (False, True))
        gain = with_forcing / without
        rows += [
            Row(f"structured.tokens_per_pass{suffix}_unforced", without, "tokens"),
            Row(f"structured.tokens_per_pass{suffix}", with_forcing, "tokens"),
            Row(f"structured.tokens_per_pass_gain{suffix}", gain, "ratio", (MORE, 1.0)),
        ]
    for name in SCHEMAS:
        without, with_forcing = (counts[name, Case(0, f)].per_pass for f in (False, True))
        rows.append(Row(f"structured.{name}.gain", with_forcing / without, "ratio"))
    report(
        f"Answers by a schema, {total} of them in {len(cases)} cases",
        rows,
        options.threads,
        options.json,
        notes=[
            "Tokens per pass: of the target after the prefill, which decides the first token.",
            "Gain: with forced tokens drafted for nothing, against each of them having its pass; "
            "without a drafter, and with drafts of 4 (_k4). The text is the same.",
        ],
    )


def _sum(counts: dict[tuple[str, Case], Counts], case: Case) -> float:
    mine = [each for (_, other), each in counts.items() if other == case]
    return sum(each.tokens for each in mine) / sum(each.passes for each in mine)


def _valid(jsonschema: Any, text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON in compact form that its schema allows."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


if __name__ == "__main__":
    main()
