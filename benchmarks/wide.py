# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A model of about 400M random parameters, where memory traffic decides: rows of ``decode``.

Weights mean nothing here, so drafts come from an oracle: the drafter's steps are computed and paid
for, then the token that the target will choose is put in their place, or with a set probability
another.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma_mtp_ros.api import EngineConfig, Finish, Piece, Request, SamplingParams
from gemma_mtp_ros.demo import TARGET_DIR

from .common import FEWER, MORE, Row, interleaved

if TYPE_CHECKING:
    from gemma_mtp_ros.engine.decode import Engine
    from gemma_mtp_ros.engine.linear import Linear

CACHE = 200
"""Rows in the caches where passes are timed."""
ACCEPTANCE = 0.85
ANSWER = 128
PROMPT = 1000
SLIDING, FULL = "sliding_attention", "full_attention"


def _randomise(model: Any) -> None:
    """Random weights under which attention and logits behave: queries short, logits spread."""
    import torch

    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("q_norm.weight"):
                value.fill_(1.5 / value.shape[0] ** 0.5)
            elif name.endswith("token_ordering"):
                value.copy_(torch.randperm(value.shape[0], generator=generator))
            elif value.dim() >= 2:
                value.normal_(0.0, value.shape[-1] ** -0.5, generator=generator)
            elif name.endswith("weight"):
                value.fill_(1.0)


def make_pair(folder: Path, small: bool = False) -> tuple[Path, Path]:
    """Save a random pair as transformers does: a target like the larger kinds, an E-size drafter.

    The tokenizer is the embedded pair's.

    :param small: a sixteenth of the widths and a quarter of the layers, to test the benchmark.
    """
    import torch
    from transformers import (
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4ForCausalLM,
        Gemma4TextConfig,
    )

    part = 16 if small else 1
    periods = 1 if small else 4
    heads: dict[str, Any] = {
        "vocab_size": 32768 // part,
        "head_dim": 128,
        "global_head_dim": 256,
        "num_key_value_heads": 2,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 8192,
    }
    config = Gemma4TextConfig(
        **heads,
        hidden_size=1024 // part,
        intermediate_size=4096 // part,
        num_hidden_layers=6 * periods,
        num_attention_heads=8,
        layer_types=[SLIDING, SLIDING, SLIDING, SLIDING, SLIDING, FULL] * periods,
        num_kv_shared_layers=0,
        final_logit_softcapping=30.0,
        eos_token_id=[1],
    )
    body = Gemma4TextConfig(
        **heads,
        hidden_size=256 // part,
        intermediate_size=2048 // part,
        num_hidden_layers=4,
        num_attention_heads=4,
        layer_types=[SLIDING, SLIDING, SLIDING, FULL],
        num_kv_shared_layers=4,
        vocab_size_per_layer_input=0,
    )
    paths = folder / "target", folder / "drafter"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        target: Any = Gemma4ForCausalLM(config)
        drafter: Any = Gemma4AssistantForCausalLM(
            Gemma4AssistantConfig(
                text_config=body,
                backbone_hidden_size=config.hidden_size,
                use_ordered_embeddings=True,
                num_centroids=256 // part,
                centroid_intermediate_top_k=16,
            )
        )
    finally:
        torch.set_default_dtype(before)
    for model, path in zip((target, drafter), paths, strict=True):
        _randomise(model)
        model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (TARGET_DIR / name).is_file():
            shutil.copy(TARGET_DIR / name, paths[0] / name)
    return paths


def load(pair: tuple[Path, Path], weights: str, threads: int, **fields: Any) -> Engine:
    """An engine over the pair."""
    from gemma_mtp_ros.engine.decode import Engine

    config = EngineConfig(
        model=str(pair[0]),
        drafter=str(pair[1]),
        device="cpu",
        weights=weights,
        threads=threads,
        max_context=2048,
        prefill_chunk=1024,
        **fields,
    )
    return Engine.load(config, lambda stage, fraction: None)


def linears(engine: Engine) -> list[Linear]:
    """Every product of a target pass, in order."""
    target = engine.target
    return [each for layer in target.layers for each in layer.linears()] + [target.head]


def product_cases(bf16: Engine, int8: Engine) -> dict[tuple[str, int], Callable[[], object]]:
    """All products of a pass: by torch's F.linear in bfloat16, and by this engine."""
    import torch
    import torch.nn.functional as F

    held = {"bf16": linears(bf16), "int8": linears(int8)}
    weights = [each.weight for each in held["bf16"]]
    widths = {each.in_features for each in held["bf16"]}

    def flinear(n: int) -> None:
        x = {width: torch.ones(n, width, dtype=torch.bfloat16) for width in widths}
        for weight in weights:
            assert isinstance(weight, torch.Tensor)
            F.linear(x[weight.shape[1]], weight)

    def ours(name: str, n: int) -> None:
        x = {width: torch.ones(n, width) for width in widths}
        for linear in held[name]:
            linear(x[linear.in_features])

    cases: dict[tuple[str, int], Callable[[], object]] = {}
    for n in (1, 5):
        cases["flinear", n] = lambda n=n: flinear(n)  # type: ignore[misc]
        for name in held:
            cases[name, n] = lambda name=name, n=n: ours(name, n)  # type: ignore[misc]
    return cases


def pass_cases(engines: dict[str, Engine]) -> dict[tuple[str, int], Callable[[], object]]:
    """Whole target passes of one and of five rows, at a cache of 200."""
    import torch

    ids = torch.arange(10, 15)
    cases: dict[tuple[str, int], Callable[[], object]] = {}
    for name, engine in engines.items():
        engine.target.cache.commit(CACHE)
        for n in (1, 5):
            cases[name, n] = (
                lambda engine=engine, n=n: engine.target.decode(  # type: ignore[misc]
                    ids[:n], CACHE
                )
            )
    return cases


def answer(engine: Engine, prompt: str, cap: int, tokens: int) -> tuple[list[int], Finish]:
    """Answer greedily."""
    from gemma_mtp_ros.engine.decode import RoundControl

    request = Request(
        id="wide",
        raw_prompt=prompt,
        sampling=SamplingParams(temperature=0.0, max_new_tokens=tokens),
    )
    said: list[int] = []
    for event in engine.generate(request, lambda: RoundControl(cap)):
        if isinstance(event, Piece):
            said += event.token_ids
        elif isinstance(event, Finish):
            return said, event
    raise AssertionError("no finish")


@contextmanager
def oracle(engine: Engine, prompt: str, said: list[int], seed: int) -> Iterator[None]:
    """The oracle in the drafter's place."""
    from .wide_oracle import Oracle

    drafter = engine.drafter
    engine.drafter = Oracle(engine, engine.count_tokens((), prompt), said, seed)
    try:
        yield
    finally:
        engine.drafter = drafter


def oracle_rows(engines: dict[str, Engine], prompt: str, repeats: int) -> Iterator[Row]:
    """How much faster with drafts whose length the engine chooses."""
    for name, engine in engines.items():
        said, _ = answer(engine, prompt, 0, ANSWER)
        rates: dict[str, list[float]] = {"plain": [], "drafted": []}
        for seed in range(repeats):
            rates["plain"].append(answer(engine, prompt, 0, ANSWER)[1].stats.tokens_per_second)
            with oracle(engine, prompt, said, seed):
                again, finish = answer(engine, prompt, 7, ANSWER)
            assert again == said
            rates["drafted"].append(finish.stats.tokens_per_second)
        plain, drafted = (sorted(each)[len(each) // 2] for each in rates.values())
        drafts = sum(finish.stats.drafted_at) / finish.stats.rounds
        yield Row(f"wide.{name}.plain", plain, "tokens/s")
        yield Row(f"wide.{name}.oracle", drafted, "tokens/s")
        yield Row(f"wide.{name}.oracle_draft_length", drafts, "tokens")
        goal = 1.9 if name == "bf16" else 2.2
        yield Row(f"wide.oracle_{name}", drafted / plain, "ratio", (MORE, goal))


def prefill_cases(
    pair: tuple[Path, Path], engine: Engine, prompt: str
) -> dict[str, Callable[[], object]]:
    """To the first token of a long prompt: this engine, and transformers."""
    import torch
    from transformers import Gemma4ForCausalLM

    model: Any = Gemma4ForCausalLM.from_pretrained(pair[0], dtype=torch.bfloat16).eval()
    ids = torch.tensor([engine.text.encode((), prompt)])

    def theirs() -> None:
        with torch.inference_mode():
            model(ids, use_cache=True, logits_to_keep=1).logits.argmax(-1).tolist()

    return {"ours": lambda: answer(engine, prompt, 0, 1), "theirs": theirs}


def prompt_of(engine: Engine, tokens: int) -> str:
    """A text of about as many tokens."""
    text = "take the red cup to the kitchen "
    return text * (tokens // len(engine.text.encode((), text)))


def rows(threads: int, repeats: int, show: Callable[[str], None], small: bool = False) -> list[Row]:
    """Measure; goals with the figures that have one.

    :param small: as :func:`make_pair`; the figures mean nothing then.
    """
    import torch

    found: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        show("making a model of 400M random parameters")
        pair = make_pair(Path(folder), small)
        adaptive = {"adaptive_draft": True}
        engines = {
            name: load(pair, weights, threads, **adaptive)
            for name, weights in (("bf16", "bfloat16"), ("int8", "int8"))
        }
        torch.set_num_threads(threads)
        show("products of 400M parameters")
        cases = product_cases(engines["bf16"], engines["int8"])
        for case in cases.values():
            case()
        products = interleaved(cases, repeats)
        for (name, n), seconds in products.items():
            found.append(Row(f"wide.products_{name}_{n}", seconds * 1e3, "ms"))
        show("passes of 400M parameters")
        passes_of = pass_cases(engines)
        for case in passes_of.values():
            case()
        passes = interleaved(passes_of, repeats)
        for (name, n), seconds in passes.items():
            found.append(Row(f"wide.pass_{name}_{n}", seconds * 1e3, "ms"))
        one = products["flinear", 1]
        for name, faster, slower in (("bf16", 1.5, 1.35), ("int8", 1.9, 1.45)):
            ratio = one / products[name, 1]
            found.append(Row(f"wide.{name}_row1_vs_flinear", ratio, "ratio", (MORE, faster)))
            v5 = passes[name, 5] / passes[name, 1]
            found.append(Row(f"wide.{name}_v5", v5, "ratio", (FEWER, slower)))
        show("drafting with an oracle")
        found += oracle_rows(engines, prompt_of(engines["bf16"], CACHE), max(3, repeats // 3))
        show("prefill of 1,000 tokens")
        prompt = prompt_of(engines["bf16"], PROMPT)
        prefill = prefill_cases(pair, engines["bf16"], prompt)
        for case in prefill.values():
            case()
        first = interleaved(prefill, max(3, repeats // 5))
        found.append(Row("wide.ttft_1000", first["ours"] * 1e3, "ms"))
        ratio = first["ours"] / first["theirs"]
        found.append(Row("wide.ttft_1000_vs_hf", ratio, "ratio", (FEWER, 1.1)))
    return found
