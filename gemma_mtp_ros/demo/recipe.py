# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the embedded pair is, what is spent on it, and how far its training has come.

`TARGET` and `DRAFTER` are arguments of transformers' `Gemma4TextConfig`.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

from gemma_mtp_ros.demo import tokenizer as tok

EVERY = 20  # steps between two lines of progress
WINDOW = 64
SOFT_CAP = 30.0

_LAYERS = ["sliding_attention", "full_attention"]
_SHARED: dict[str, Any] = {
    "vocab_size": tok.VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "sliding_window": WINDOW,
    "max_position_embeddings": 2048,
    "pad_token_id": tok.SPECIAL_TOKENS.index(tok.PAD),
    "bos_token_id": tok.SPECIAL_TOKENS.index(tok.BOS),
    "eos_token_id": tok.SPECIAL_TOKENS.index(tok.EOS),
}

# Six layers, sliding and full in turn; the last two read the keys of the two before.
TARGET: dict[str, Any] = _SHARED | {
    "vocab_size_per_layer_input": tok.VOCAB_SIZE,
    "hidden_size": 256,
    "intermediate_size": 448,
    "num_hidden_layers": 6,
    "layer_types": _LAYERS * 3,
    "hidden_size_per_layer_input": 16,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": SOFT_CAP,
}

# Two narrow layers, queries only, with the heads that fit the target's keys and values.
DRAFTER: dict[str, Any] = _SHARED | {
    "vocab_size_per_layer_input": 0,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "layer_types": _LAYERS,
    "hidden_size_per_layer_input": 0,
}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What is spent; pair/README.md says how the pair in the package came of these defaults."""

    seed: int = 1
    target_steps: int = 900
    drafter_steps: int = 320
    batch_tokens: int = 8192
    matrix_lr: float = 0.02
    other_lr: float = 3e-3
    warmup_steps: int = 50
    compile: bool = True


def parse_arguments(description: str | None) -> argparse.Namespace:
    """The command line of `train`: out, threads, held_out, and its options as a `recipe`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for target/ and drafter/")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--held-out", type=int, default=200, help="instructions to measure on")
    for field in dataclasses.fields(Recipe):
        option = "--" + field.name.replace("_", "-")
        if field.name == "compile":
            parser.add_argument("--no-compile", dest="compile", action="store_false")
        else:
            parser.add_argument(option, type=type(field.default), default=field.default)
    arguments = parser.parse_args()
    arguments.recipe = Recipe(
        **{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Recipe)}
    )
    return arguments


class Progress:
    """A line every `EVERY` steps: means since the last, tokens per second, minutes left."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.done, self.tokens = name, steps, 0, 0
        self.sums: dict[str, float] = {}
        self.start = time.monotonic()
        self.lap = self.start

    def step(self, tokens: int, **values: float) -> None:
        self.done += 1
        self.tokens += tokens
        for key, value in values.items():
            self.sums[key] = self.sums.get(key, 0.0) + value
        if self.done % EVERY and self.done != self.steps:
            return
        now = time.monotonic()
        count = (self.done - 1) % EVERY + 1
        means = "  ".join(f"{key} {value / count:.4f}" for key, value in self.sums.items())
        left = (now - self.lap) / count * (self.steps - self.done) / 60
        print(
            f"{self.name} {self.done}/{self.steps}  {means}  "
            f"{self.tokens / (now - self.start):.0f} tokens/s  {left:.0f} min left",
            flush=True,
        )
        self.sums.clear()
        self.lap = now
