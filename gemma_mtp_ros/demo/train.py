# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Make the embedded pair: tokenizer, target, drafter, and their measure on held-out instructions.

``python -m gemma_mtp_ros.demo.train --out DIR`` writes DIR/target and DIR/drafter, Hugging Face
folders of the transformers classes `Gemma4ForCausalLM` and `Gemma4AssistantForCausalLM`.

The recipe, in three parts, all text drawn anew from the seed (nothing is seen twice on purpose):

1. Tokenizer: BPE with byte fallback over 40,000 conversations.
2. Target: next-token cross-entropy on the answers, Muon for the matrices within the layers and
   AdamW for the rest, linear warm-up and decay.
3. Drafter: the target is frozen. At every position of an answer the drafter unrolls
   `UNROLL` steps as it will when drafting (constant position, its own projected state carried
   on, keys and values of committed tokens alone), and learns the target's distribution at each.

Needs about 9 GB of memory; time and results are in pair/README.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoTokenizer,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GenerationConfig,
    PreTrainedModel,
)

from gemma_mtp_ros.demo import corpus
from gemma_mtp_ros.demo import tokenizer as tok
from gemma_mtp_ros.demo.evaluate import plan_matches
from gemma_mtp_ros.demo.recipe import (
    DRAFTER,
    SOFT_CAP,
    TARGET,
    WINDOW,
    Progress,
    Recipe,
    parse_arguments,
)

UNROLL = 6  # draft steps that the drafter is trained for


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Scale fresh weights: attention has no 1/sqrt(head_dim), so the query norm brings it."""
    for name, parameter in model.named_parameters():
        if name.endswith("q_norm.weight"):
            parameter.fill_(1.5 / math.sqrt(parameter.numel()))
        elif parameter.ndim == 2:
            parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[1]))


class Batch:
    """Token ids [rows, length], right-padded, and which positions predict a token of an answer."""

    def __init__(self, rows: list[tuple[list[int], list[bool]]], length: int) -> None:
        self.ids = torch.zeros(len(rows), length, dtype=torch.long)
        self.predicts = torch.zeros(len(rows), length, dtype=torch.bool)
        for i, (ids, predicts) in enumerate(rows):
            self.ids[i, : len(ids)] = torch.tensor(ids)
            self.predicts[i, : len(ids)] = torch.tensor(predicts)


def batches(tokenizer: Tokenizer, seed: int, batch_tokens: int) -> Iterator[Batch]:
    """Batches of conversations of like length, about `batch_tokens` tokens each, without end."""
    generator = torch.Generator().manual_seed(seed)
    stream = corpus.conversations(seed)
    while True:
        rows = [tok.encode_conversation(tokenizer, messages) for messages in islice(stream, 4096)]
        rows.sort(key=lambda row: len(row[0]))
        groups: list[Batch] = []
        while rows:
            length = -(-len(rows[-1][0]) // 16) * 16
            count = max(1, batch_tokens // length)
            groups.append(Batch(rows[-count:], length))
            del rows[-count:]
        for i in torch.randperm(len(groups), generator=generator).tolist():
            yield groups[i]


class Optimiser:
    """Muon for the matrices of the layers, AdamW for embeddings, heads and norms."""

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        inner = {n: p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n}
        outer = [p for n, p in model.named_parameters() if n not in inner]
        self.parts: list[torch.optim.Optimizer] = [
            torch.optim.Muon(list(inner.values()), lr=recipe.matrix_lr, weight_decay=0.01),
            torch.optim.AdamW(outer, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.model = model

        def scale(step: int) -> float:
            return min((step + 1) / recipe.warmup_steps, (steps - step) / steps)

        self.schedules = [torch.optim.lr_scheduler.LambdaLR(part, scale) for part in self.parts]

    def step(self, loss: Tensor) -> None:
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for part, schedule in zip(self.parts, self.schedules, strict=True):
            part.step()
            schedule.step()
            part.zero_grad()


def capped(logits: Tensor) -> Tensor:
    """The target's soft cap on its logits."""
    return SOFT_CAP * torch.tanh(logits.float() / SOFT_CAP)


def train_target(model: Gemma4ForCausalLM, data: Iterator[Batch], recipe: Recipe) -> None:
    """Next-token cross-entropy over the tokens of the answers, in bfloat16 autocast."""
    model.train()
    model.set_attn_implementation("eager")
    forward = torch.compile(model.model, dynamic=True) if recipe.compile else model.model
    optimiser = Optimiser(model, recipe, recipe.target_steps)
    report = Progress("target", recipe.target_steps)
    for batch in islice(data, recipe.target_steps):
        with torch.autocast("cpu", torch.bfloat16):
            hidden = forward(input_ids=batch.ids, use_cache=False).last_hidden_state
            learned = batch.predicts[:, :-1]
            logits = capped(model.lm_head(hidden[:, :-1][learned]))
        wanted = batch.ids[:, 1:][learned]
        loss = F.cross_entropy(logits, wanted)
        optimiser.step(loss)
        right = (logits.argmax(-1) == wanted).float().mean()
        report.step(batch.ids.numel(), loss=loss.item(), token_accuracy=right.item())


@dataclasses.dataclass
class Drafting:
    """Logits of `steps` draft steps at each query position, and where they count.

    logits: a tensor [rows, queries, vocabulary] per step. counts: [rows, queries] per step, true
    where all tokens so far and the drafted one lie within one answer. first: position of the
    first query, that is of the first token fed.
    """

    logits: list[Tensor]
    counts: list[Tensor]
    first: int


def unroll(
    drafter: Gemma4AssistantForCausalLM,
    forward: Callable[..., Any],
    embed: nn.Module,
    batch: Batch,
    hidden: Tensor,
    shared: dict[str, tuple[Tensor, Tensor]],
    steps: int,
) -> Drafting:
    """Draft from every position of every answer at once, fed with the true tokens.

    A query at position i has the token of i as bonus token and the target's state of i - 1; it
    sees keys before i, in sliding layers those of i - WINDOW + 1 on. Teacher forcing measures
    acceptance exactly: a draft only counts if all drafts before it were right.
    """
    length = batch.ids.shape[1]
    first = int(batch.predicts.any(0).nonzero()[0]) + 1
    positions = torch.arange(first, length)
    distance = positions[:, None] - torch.arange(length)[None]
    masks = {
        "full_attention": distance > 0,
        "sliding_attention": (distance > 0) & (distance < WINDOW),
    }
    negative = torch.finfo(torch.bfloat16).min
    additive = {
        kind: torch.zeros(mask.shape).masked_fill(~mask, negative)[None, None]
        for kind, mask in masks.items()
    }
    state = hidden[:, first - 1 : -1]
    counts = batch.predicts[:, first - 1 : -1]
    drafting = Drafting([], [], first)
    for step in range(steps):
        fed = F.pad(batch.ids, (0, steps))[:, first + step : length + step]
        counts = counts & F.pad(batch.predicts, (0, steps))[:, first + step : length + step]
        inputs = drafter.pre_projection(torch.cat([embed(fed), state], -1))
        state = forward(
            inputs_embeds=inputs,
            attention_mask=additive,
            position_ids=positions[None],
            shared_kv_states=shared,
            use_cache=False,
            output_hidden_states=True,
        ).last_hidden_state
        drafting.logits.append(drafter.lm_head(state))
        drafting.counts.append(counts)
        state = drafter.post_projection(state)
    return drafting


def target_states(
    target: Gemma4ForCausalLM, forward: Callable[..., Any], batch: Batch
) -> tuple[Tensor, Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """The frozen target's states after the last norm, its logits, and its shared keys, values."""
    with torch.no_grad():
        out = forward(input_ids=batch.ids, use_cache=False, return_shared_kv_states=True)
        logits = capped(target.lm_head(out.last_hidden_state))
    return out.last_hidden_state, logits, dict(out.shared_kv_states)


def train_drafter(
    drafter: Gemma4AssistantForCausalLM,
    target: Gemma4ForCausalLM,
    data: Iterator[Batch],
    recipe: Recipe,
) -> None:
    """Cross-entropy of each draft step with the frozen target's distribution."""
    target.eval().requires_grad_(False)
    drafter.train()
    drafter.set_attn_implementation("eager")
    forward, draft = target.model, drafter.model
    if recipe.compile:
        forward = torch.compile(forward, dynamic=True)
        draft = torch.compile(draft, dynamic=True)
    optimiser = Optimiser(drafter, recipe, recipe.drafter_steps)
    report = Progress("drafter", recipe.drafter_steps)
    embed = target.model.embed_tokens
    for batch in islice(data, recipe.drafter_steps):
        with torch.autocast("cpu", torch.bfloat16):
            hidden, logits, shared = target_states(target, forward, batch)
            drafting = unroll(drafter, draft, embed, batch, hidden, shared, UNROLL)
        losses, right = [], []
        for step, (guess, counts) in enumerate(zip(drafting.logits, drafting.counts, strict=True)):
            wanted = F.pad(logits, (0, 0, 0, UNROLL))[
                :, drafting.first + step : logits.shape[1] + step
            ][counts]
            guess = guess[counts].float()
            losses.append(F.cross_entropy(guess, wanted.softmax(-1)))
            right.append((guess.argmax(-1) == wanted.argmax(-1)).float().mean().item())
        optimiser.step(torch.stack(losses).mean())
        report.step(
            batch.ids.numel(),
            loss=torch.stack(losses).mean().item(),
            first=right[0],
            last=right[-1],
        )


def save_pair(
    out: Path,
    tokenizer: Tokenizer,
    target: Gemma4ForCausalLM,
    drafter: Gemma4AssistantForCausalLM | None,
) -> None:
    """Write the folders in bfloat16; `drafter` None writes the target alone."""
    stops = [tok.SPECIAL_TOKENS.index(token) for token in (tok.EOS, tok.TURN_END)]
    base = target.config
    generation: dict[str, Any] = {
        "bos_token_id": base.bos_token_id,
        "pad_token_id": base.pad_token_id,
        "eos_token_id": stops,
        "do_sample": False,
        "max_new_tokens": 256,
    }
    target.generation_config = GenerationConfig(**generation)
    models: dict[str, PreTrainedModel] = {"target": target}
    if drafter is not None:
        drafter.generation_config = GenerationConfig(
            **generation, num_assistant_tokens=4, num_assistant_tokens_schedule="constant"
        )
        models["drafter"] = drafter
    for name, model in models.items():
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model.bfloat16().save_pretrained(folder)
        tok.save_tokenizer(tokenizer, folder)


def evaluate_pair(out: Path, count: int, free_names: float, dtype: torch.dtype) -> dict[str, float]:
    """Answer `count` held-out instructions greedily with transformers' assisted generation.

    tokens_per_pass: generated tokens, the end-of-turn token included, by target passes after the
    prefill (which gives the first token); with drafts of 4.
    """
    target = Gemma4ForCausalLM.from_pretrained(out / "target", dtype=dtype).eval()
    drafter = Gemma4AssistantForCausalLM.from_pretrained(out / "drafter", dtype=dtype).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(out / "target")
    passes = 0

    def count_pass(*_: object) -> None:
        nonlocal passes
        passes += 1

    hook = target.register_forward_hook(count_pass)
    valid = exact = tokens = 0
    for example in corpus.held_out(count, free_names=free_names):
        messages = [{"role": "user", "content": example.instruction}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )
        generated = target.generate(**inputs, assistant_model=drafter)
        generated = generated[0, inputs["input_ids"].shape[1] :]
        text = tokenizer.decode(generated, skip_special_tokens=True)
        check = plan_matches(text, example.plan)
        valid += check.valid_json
        exact += check.exact
        tokens += len(generated) - 1
        passes -= 1
        if not check.exact:
            print(f"  wrong: {example.instruction}\n    {text!r}", flush=True)
    hook.remove()
    return {
        "json_valid": valid / count,
        "plan_exact": exact / count,
        "tokens_per_pass_k4": tokens / passes,
    }


def main() -> None:
    """Run the recipe of the command line."""
    arguments = parse_arguments(__doc__)
    recipe = arguments.recipe
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(recipe.seed)
    print(json.dumps(dataclasses.asdict(recipe)), flush=True)
    started = time.monotonic()

    texts = (
        message["content"]
        for messages in islice(corpus.conversations(recipe.seed, free_names=0.0), 40_000)
        for message in messages
    )
    tokenizer = tok.train_tokenizer(texts)
    target = Gemma4ForCausalLM(Gemma4TextConfig(**TARGET))
    drafter_text = Gemma4TextConfig(**DRAFTER)
    drafter = Gemma4AssistantForCausalLM(
        Gemma4AssistantConfig(backbone_hidden_size=TARGET["hidden_size"], text_config=drafter_text)
    )
    for name, model in (("target", target), ("drafter", drafter)):
        initialise(model)
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    data = batches(tokenizer, recipe.seed + 1, recipe.batch_tokens)
    train_target(target, data, recipe)
    save_pair(arguments.out, tokenizer, target, None)
    # What is stored is what the drafter learns from: the target is in bfloat16 from here on.
    train_drafter(drafter, target.float(), data, recipe)
    save_pair(arguments.out, tokenizer, target, drafter)
    print(f"trained in {(time.monotonic() - started) / 60:.0f} min", flush=True)
    for free_names in (0.0, 0.3):
        result = evaluate_pair(arguments.out, arguments.held_out, free_names, torch.float32)
        print(f"held-out, free names {free_names}: {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main()
