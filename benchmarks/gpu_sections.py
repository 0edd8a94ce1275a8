# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of ``gpu_check``: generators of rows."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gemma_mtp_ros.api import EngineConfig, Finish, GemmaMtpError, Piece, Request, SamplingParams
from gemma_mtp_ros.cli.findings import Total
from gemma_mtp_ros.engine.cache import ROWS
from gemma_mtp_ros.engine.costs import bandwidth, measure, pass_bytes
from gemma_mtp_ros.engine.decode import Engine, RoundControl
from gemma_mtp_ros.engine.linear import Precision
from gemma_mtp_ros.engine.verify import verify

from .common import FEWER, MORE, Row
from .gpu_shapes import E4B, Oracle, Shape, build, guesses, randomise, save_pair

ACCEPTANCE = 0.85
ASSISTANT_TOKENS = 4
PROMPT = "Take the red cup to the kitchen, then wait for the nurse at the front desk."
GAP_PASSES = 20


class OutOfTimeError(Exception):
    """A section has used up its time."""


@dataclass
class Check:
    """What all sections share.

    Attributes:
        small: whether shapes are shrunk, to try the script.
        ends_s: when the section at hand has to stop (time.monotonic).
        speeds: tokens per second of whole drafted answers, by section, for later sections.
    """

    device: torch.device
    small: bool
    tokens: int
    ends_s: float = float("inf")
    notes: list[str] = field(default_factory=list)
    speeds: dict[str, float] = field(default_factory=dict)

    def beat(self) -> None:
        """Called between pieces of work."""
        if time.monotonic() > self.ends_s:
            raise OutOfTimeError("stopped at its limit")

    def control(self, cap: int) -> RoundControl:
        """What a round asks for."""
        self.beat()
        return RoundControl(cap)

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def allocated(self) -> tuple[int, int, int]:
        """Bytes of torch's tensors, of what torch keeps for them, and of all on the device."""
        if self.device.type != "cuda":
            return 0, 0, 0
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), total - free


Rows = Generator[Row, None, None]
Section = Callable[[Check], Rows]


def answer(check: Check, engine: Engine, cap: int, tokens: int) -> tuple[list[int], Finish]:
    """Answer greedily."""
    request = Request(
        id="check",
        raw_prompt=PROMPT,
        sampling=SamplingParams(temperature=0.0, max_new_tokens=tokens),
    )
    said: list[int] = []
    for event in engine.generate(request, lambda: check.control(cap)):
        if isinstance(event, Piece):
            said += event.token_ids
        elif isinstance(event, Finish):
            return said, event
    raise AssertionError("no finish")


def recorded_like_eager(check: Check, engine: Engine, name: str) -> Rows:
    """The same answers, and the same passes of every width, from recordings as without them."""
    target: Any = engine.target
    drafter: Any = engine.drafter
    assert drafter is not None
    if target.recorded is None:  # on a CPU, where loading records nothing
        with torch.inference_mode():
            target.kernel_pass = drafter.kernel_draft = None
            target.record(check.beat)
            drafter.record(check.beat)
    recordings = target.recorded, drafter.recorded
    same, worst = 0, 0.0
    ids = torch.arange(20, 20 + ROWS, device=check.device)
    for cap in (0, 4):
        with_graphs, _ = answer(check, engine, cap, check.tokens)
        target.recorded = drafter.recorded = None
        without, _ = answer(check, engine, cap, check.tokens)
        target.recorded, drafter.recorded = recordings
        same += with_graphs == without
    with torch.inference_mode():
        for n in range(1, ROWS + 1):
            found = target.decode(ids[:n], 7)[1].clone()
            target.recorded = None
            worst = max(worst, float((found - target.decode(ids[:n], 7)[1]).abs().max()))
            target.recorded = recordings[0]
    yield Row(f"{name}.recorded_same_answers", same / 2, "share", (MORE, 1.0))
    yield Row(f"{name}.recorded_vs_eager", worst, "largest difference", (FEWER, 1e-4))


def like_transformers(check: Check, engine: Engine, folder: Path, name: str) -> Rows:
    """Logits of a prompt's last token against transformers in float64, and what its float32 misses.

    The product of a float32 model must be as near as that; the goal allows ten times as much.
    """
    from transformers import Gemma4ForCausalLM

    ids = torch.tensor([engine.text.encode((), PROMPT)], device=check.device)
    logits: dict[torch.dtype, torch.Tensor] = {}
    kind: Any = Gemma4ForCausalLM
    for dtype in (torch.float32, torch.float64):
        model = kind.from_pretrained(folder, dtype=dtype).to(check.device).eval()
        with torch.inference_mode():
            logits[dtype] = model(ids, logits_to_keep=1).logits[0].double()
    theirs = float((logits[torch.float32] - logits[torch.float64]).abs().max())
    engine.target.cache.reset()
    with torch.inference_mode():
        found = engine.target.prefill(ids[0], True)
        assert found is not None
        prefilled = float((found[1].double() - logits[torch.float64]).abs().max())
        engine.target.cache.reset()
        engine.target.prefill(ids[0, :-1], False)
        _, last = engine.target.decode(ids[0, -1:], ids.shape[1] - 1)
        decoded = float((last.double() - logits[torch.float64]).abs().max())
    float32 = engine.info.precision == "float32"
    bound = (FEWER, 10 * theirs) if float32 else None
    yield Row(f"{name}.error_prefill", prefilled, "largest difference", bound)
    yield Row(f"{name}.error_decode", decoded, "largest difference", bound)
    if float32:
        yield Row(f"{name}.error_transformers", theirs, "largest difference")


def correct(shape: Shape, check: Check) -> Rows:
    """Every precision and both modes on a small random pair."""
    with tempfile.TemporaryDirectory() as made:
        folders = save_pair(Path(made), shape.small())
        for precision in ("float32", "bfloat16", "int4", "int8"):
            for reproducible in (True, False):
                mode = "reproducible" if reproducible else "natural"
                name = f"correct.{shape.name}.{precision}.{mode}"
                config = EngineConfig(
                    model=str(folders[0]),
                    drafter=str(folders[1]),
                    device=check.device.type,
                    weights=precision,
                    reproducible=reproducible,
                    max_context=512,
                )
                try:
                    engine = Engine.load(config, lambda stage, part: check.beat())
                except GemmaMtpError as error:
                    if precision != "int8" or check.device.type == "cpu":
                        raise
                    check.notes.append(f"{name}: {error}")
                    yield Row(f"{name}.refused", 1.0, "")
                    continue
                if reproducible:
                    verified = engine.info.reproducible == "verified"
                    yield Row(f"{name}.verified", float(verified), "", (MORE, 1.0))
                    check.notes.append(f"{name}: {engine.info.reproducible}")
                yield from recorded_like_eager(check, engine, name)
                yield from like_transformers(check, engine, folders[0], name)


def launch_gaps(check: Check, engine: Engine, position: int) -> float:
    """Share of the time of a pass of one row in which no kernel runs."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = check.device.type == "cuda"
    ids = torch.zeros(1, dtype=torch.long, device=check.device)

    def passes() -> float:
        check.finish()
        begin = time.perf_counter()
        for _ in range(GAP_PASSES):
            engine.target.decode(ids, position)
        check.finish()
        return time.perf_counter() - begin

    passes()
    wall = min(passes() for _ in range(3))
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        passes()
    event = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    busy = sum(float(getattr(each, event)) for each in seen.key_averages()) * 1e-6
    return 1.0 - busy / wall


def drafted(check: Check, engine: Engine, name: str, goal: bool) -> Rows:
    """Tokens per second plain, at four drafts and at the engine's own choice."""
    said, _ = answer(check, engine, 0, check.tokens)
    drafter, costs = engine.drafter, engine.model.costs
    cases = {"plain": (0, False), "mtp4": (4, False), "adaptive": (7, True)}
    totals = {case: Total() for case in cases}
    whole = dict.fromkeys(cases, 0.0)
    answers = 0
    for _ in range(3):
        for case, (cap, own) in cases.items():
            oracle: Any = Oracle(engine, engine.count_tokens((), PROMPT), said, ACCEPTANCE)
            engine.drafter, engine.model.costs = oracle, costs if own else None
            try:
                again, finish = answer(check, engine, cap, check.tokens)
            finally:
                engine.drafter, engine.model.costs = drafter, costs
            totals[case].add(finish.stats)
            whole[case] += finish.stats.total_s
            answers += again == said
    for case, total in totals.items():
        yield Row(f"{name}.{case}", total.rate, "tokens/s")
        if total.drafted:
            yield Row(f"{name}.{case}.acceptance", total.accepted / total.drafted, "share")
            yield Row(f"{name}.{case}.draft_length", total.drafted / total.rounds, "tokens")
    check.speeds[name] = 3 * check.tokens / whole["mtp4"]
    yield Row(f"{name}.same_answers", answers / (3 * len(cases)), "share", (MORE, 1.0))
    ratio = totals["adaptive"].rate / totals["plain"].rate
    yield Row(f"{name}.drafted_vs_plain", ratio, "ratio", (MORE, 2.5) if goal else None)


def speed(shape: Shape, precision: Precision, check: Check) -> Rows:
    """One shape in one precision: memory, cost of passes, tokens per second in both modes."""
    context = 512
    before = check.allocated()
    used = shape.small() if check.small else shape
    engine = build(used, precision, check.device, context, check.beat)
    target, memory = engine.target, engine.info.memory
    drafter: Any = engine.drafter
    assert drafter is not None
    yield Row(f"{shape.name}.{precision}.build", engine.info.load_s, "s")
    for purpose, size in memory.model_dump().items():
        yield Row(f"{shape.name}.{precision}.memory.{purpose}", size / 2**20, "MiB")
    held, _, _ = check.allocated()
    stated = memory.weights + memory.drafter + memory.ple + memory.kv
    if check.device.type == "cuda":
        ratio = stated / (held - before[0])
        yield Row(f"{shape.name}.{precision}.memory.stated_vs_allocated", ratio, "ratio")
    memory_speed = bandwidth(check.device, 2**20 if check.small else 2**30)
    yield Row(f"{shape.name}.{precision}.bandwidth", memory_speed.bytes_per_s / 1e9, "GB/s")
    for reproducible in (True, False):
        name = f"{shape.name}.{precision}.{'reproducible' if reproducible else 'natural'}"
        goal = shape is E4B and not reproducible
        target.reproducible = reproducible
        target.recorded = drafter.recorded = None
        gc.collect()
        _, reserved, everything = check.allocated()
        begin = time.monotonic()
        with torch.inference_mode():
            target.record(check.beat)
            drafter.record(check.beat)
            yield Row(f"{name}.record", time.monotonic() - begin, "s")
            recorded: list[Any] = [target.recorded, drafter.recorded]
            graphs = sum(each.bytes for each in recorded)
            yield Row(f"{name}.memory.graphs", graphs / 2**20, "MiB")
            _, reserved_now, everything_now = check.allocated()
            driver = everything_now - everything - (reserved_now - reserved)
            yield Row(f"{name}.memory.graphs_driver", driver / 2**20, "MiB")
            if reproducible:
                verdict = verify(target, check.beat)
                check.notes.append(f"{name}: {verdict}")
                yield Row(f"{name}.verified", float(verdict == "verified"), "", (MORE, 1.0))
            costs = engine.model.costs = measure(target, drafter, check.beat, 200)
            gaps = launch_gaps(check, engine, 200)
        for n, seconds in enumerate(costs.passes, 1):
            limit = (FEWER, 1.15) if goal and n == 5 else None
            yield Row(f"{name}.v_{n}", seconds / costs.passes[0], "ratio", limit)
        yield Row(f"{name}.pass_1", costs.passes[0] * 1e3, "ms")
        yield Row(f"{name}.draft_step", costs.draft * 1e3, "ms")
        yield Row(f"{name}.launch_gaps", gaps, "share")
        yield from drafted(check, engine, name, goal)
        size = pass_bytes(target, engine.count_tokens((), PROMPT) + check.tokens // 2)
        _, finish = answer(check, engine, 0, check.tokens)
        share = finish.stats.tokens_per_second * size / memory_speed.bytes_per_s
        least = {"bfloat16": 0.70, "int4": 0.55}.get(precision)
        bound = (MORE, least) if goal and least is not None else None
        yield Row(f"{name}.bandwidth_share", share, "share", bound)


def assisted(shape: Shape, check: Check) -> Rows:
    """transformers' assisted generation on such weights, its drafts replaced by the oracle's."""
    from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM
    from transformers.generation import candidate_generator

    before, kinds = torch.get_default_dtype(), (Gemma4ForCausalLM, Gemma4AssistantForCausalLM)
    torch.set_default_dtype(torch.bfloat16)
    try:
        configs = (shape.small() if check.small else shape).configs()
        with torch.device(check.device):
            models: list[Any] = [
                kind(config).eval() for kind, config in zip(kinds, configs, strict=True)
            ]
    finally:
        torch.set_default_dtype(before)
    for model in models:
        randomise(model, 0.02)
        check.beat()
    model, assistant = models
    assistant.generation_config.num_assistant_tokens = ASSISTANT_TOKENS
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    prompt = torch.arange(5, 5 + len(PROMPT.split()), device=check.device)[None]

    def generate(helper: Any) -> tuple[list[int], float]:
        check.finish()
        begin = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=check.tokens,
                assistant_model=helper,
                eos_token_id=None,
            )
        check.finish()
        check.beat()
        return output[0, prompt.shape[1] :].tolist(), time.perf_counter() - begin

    said, _ = generate(None)
    known = torch.tensor(guesses(said, ACCEPTANCE), device=check.device)
    generator: Any = candidate_generator.SinglePositionMultiTokenCandidateGenerator
    original = generator.get_candidates

    def get_candidates(self: Any, input_ids: torch.Tensor, **rest: Any) -> Any:
        ids, logits = original(self, input_ids, **rest)
        begin, end = input_ids.shape[1], ids.shape[1]
        ids[:, begin:] = known[begin - prompt.shape[1] : end - prompt.shape[1]]
        return ids, logits

    generator.get_candidates = get_candidates
    try:
        generate(assistant)
        runs = [generate(assistant) for _ in range(2)]
    finally:
        generator.get_candidates = original
    plain = min(generate(None)[1] for _ in range(2))
    name = f"{shape.name}.transformers"
    rate = check.tokens / min(taken for _, taken in runs)
    yield Row(f"{name}.plain", check.tokens / plain, "tokens/s")
    yield Row(f"{name}.assisted{ASSISTANT_TOKENS}", rate, "tokens/s")
    yield Row(f"{name}.same_answers", sum(a == said for a, _ in runs) / 2, "share")
    ours = check.speeds.get(f"{shape.name}.bfloat16.natural")
    if ours is not None:
        yield Row(f"{shape.name}.mtp4_vs_assisted", ours / rate, "ratio", (MORE, 5.0))
