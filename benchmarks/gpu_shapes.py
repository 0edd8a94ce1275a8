# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes of the released models with random weights that are made where they are used.

24 GB of random bfloat16 take a GPU a second, and a disk minutes: so a target is built from an
object that reads like a checkpoint and holds nothing.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gemma_mtp_ros.api import EngineConfig, MemoryUse, ModelInfo
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.engine.cache import KV_DTYPES, ROWS, cache_bytes
from gemma_mtp_ros.engine.checkpoint import Weights
from gemma_mtp_ros.engine.decode import Engine
from gemma_mtp_ros.engine.draft_source import DraftSource
from gemma_mtp_ros.engine.drafter import Drafter
from gemma_mtp_ros.engine.linear import Precision
from gemma_mtp_ros.engine.load import GenerationDefaults, LoadedModel
from gemma_mtp_ros.engine.released import FULL, RELEASED, SLIDING, Released
from gemma_mtp_ros.engine.sampling import Rules
from gemma_mtp_ros.engine.sizes import workspace_bytes
from gemma_mtp_ros.engine.spec import drafter_spec, text_spec
from gemma_mtp_ros.engine.target import Target
from gemma_mtp_ros.engine.text import Text

BRANCH = 0.02
"""Weight of what attention and feed-forward add to a random model's embedding.

So small that a model repeats its last token by a wide margin: rounding changes no answer, and the
acceptance of an oracle's drafts is what it was set to. Costs do not depend on values.
"""


@dataclass(frozen=True)
class Shape:
    """Configs of a pair, as transformers has them."""

    name: str
    target: dict[str, Any]
    body: dict[str, Any]
    centroids: tuple[int, int] | None
    """Clusters of the drafter's head, and how many it opens; None: a plain head."""

    def configs(self) -> tuple[Any, Any]:
        """The target's text config and the drafter's."""
        from transformers import Gemma4AssistantConfig, Gemma4TextConfig

        body = Gemma4TextConfig(**self.body)
        head: dict[str, Any] = {}
        if self.centroids is not None:
            count, opened = self.centroids
            head = {
                "use_ordered_embeddings": True,
                "num_centroids": count,
                "centroid_intermediate_top_k": opened,
            }
        backbone = self.target["hidden_size"]
        drafter = Gemma4AssistantConfig(text_config=body, backbone_hidden_size=backbone, **head)
        return Gemma4TextConfig(**self.target), drafter

    def small(self) -> Shape:
        """The same structure, narrow and shallow, in sizes that every product takes."""
        periods = {"num_hidden_layers": 12, "layer_types": ([SLIDING] * 5 + [FULL]) * 2}
        narrow: dict[str, Any] = {
            "vocab_size": 2048,
            "hidden_size": 128,
            "intermediate_size": 256,
            "head_dim": 32,
            "global_head_dim": 64,
            "sliding_window": 32,
            "max_position_embeddings": 2048,
        }
        target = self.target | narrow | periods
        if target["num_kv_shared_layers"]:
            target |= {
                "num_kv_shared_layers": 6,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": 2048,
            }
        centroids = None if self.centroids is None else (64, 4)
        return dataclasses.replace(
            self, target=target, body=self.body | narrow, centroids=centroids
        )


def _shape(released: Released) -> Shape:
    """The shape of a released pair, with an answer that ends at one token."""
    target = {**released.target, "eos_token_id": [1]}
    return Shape(released.size.lower(), target, released.body, released.clusters)


E2B, E4B, B12 = map(_shape, RELEASED[:3])


def value_of(
    name: str, shape: tuple[int, ...], device: torch.device, branch: float
) -> torch.Tensor:
    """A random parameter, under which attention and logits behave: queries short, logits spread.

    Matrices are bfloat16 on ``device``, vectors on the CPU.
    """
    if name.endswith("token_ordering"):
        return torch.randperm(shape[0], generator=torch.Generator().manual_seed(3))
    if len(shape) >= 2:
        made = torch.empty(shape, dtype=torch.bfloat16, device=device)
        return made.normal_(0.0, shape[-1] ** -0.5)
    if name.endswith("q_norm.weight"):
        return torch.full(shape, 1.5 / shape[0] ** 0.5)
    return torch.full(shape, branch if "post_" in name else 1.0)


@torch.no_grad()
def randomise(model: Any, branch: float) -> None:
    """Give a transformers model such weights."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.dim() >= 2 or name.endswith(("weight", "token_ordering")):
            value.copy_(value_of(name, tuple(value.shape), value.device, branch))


class RandomWeights(Weights):
    """Has no file: every tensor is made when it is read."""

    def __init__(self, device: torch.device, beat: Callable[[], None]) -> None:
        self.folder = Path("random weights")
        self.role = "model"
        self._device = device
        self._beat = beat

    def has(self, name: str) -> bool:
        """The optional tensors, scalars of layers, are not there."""
        return not name.endswith("layer_scalar")

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor."""
        self._beat()
        return value_of(name, shape, self._device, BRANCH)

    def read_rows(
        self, name: str, begin: int, end: int, shape: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Some rows of a tensor, whose shape must be given."""
        assert shape is not None
        return self.read(name, (end - begin, *shape[1:]))


def build(
    shape: Shape,
    precision: Precision,
    device: torch.device,
    max_context: int,
    beat: Callable[[], None],
) -> Engine:
    """An engine with random weights: reproducible, not recorded, not verified."""
    config, draft_config = shape.configs()
    spec, draft_spec = text_spec(config), drafter_spec(draft_config)
    kv_dtype = "float32" if precision == "float32" else "bfloat16"
    begin = time.monotonic()
    weights = RandomWeights(device, beat)
    with torch.inference_mode():
        target = Target(
            spec,
            weights,
            max_context=max_context,
            precision=precision,
            kv_dtype=kv_dtype,
            ple_in_memory=True,
            device=device,
            reproducible=True,
        )
        drafter = Drafter(draft_spec, weights, target, precision)
    memory = MemoryUse(
        weights=target.weight_bytes,
        drafter=drafter.weight_bytes,
        ple=target.ple.bytes if target.ple else 0,
        kv=cache_bytes(spec, max_context, KV_DTYPES[kv_dtype]),
        workspace=workspace_bytes(spec, precision, 256, max_context),
    )
    info = ModelInfo(
        model=shape.name,
        precision=precision,
        context=max_context,
        vocabulary=spec.vocab,
        bytes=memory.total,
        memory=memory,
        reproducible="off",
        device=str(device),
        load_s=time.monotonic() - begin,
    )
    endless = GenerationDefaults(0.0, 1.0, 0, 0.0, 1.0, None, frozenset(), ())
    loaded = LoadedModel(target, drafter, Text(TARGET_DIR), endless, 2, info, None, None)
    return Engine(EngineConfig(model=shape.name, max_context=max_context), loaded)


def save_pair(folder: Path, shape: Shape) -> tuple[Path, Path]:
    """Save a random pair as transformers does; the tokenizer is the embedded pair's."""
    from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM

    torch.manual_seed(11)
    paths = folder / "target", folder / "drafter"
    kinds: tuple[Any, Any] = (Gemma4ForCausalLM, Gemma4AssistantForCausalLM)
    for kind, config, path in zip(kinds, shape.configs(), paths, strict=True):
        model = kind(config)
        randomise(model, 1.0)
        model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (TARGET_DIR / name).is_file():
            shutil.copy(TARGET_DIR / name, paths[0] / name)
    return paths


class Oracle(DraftSource):
    """Stands where the drafter stands: its steps are computed and waited for, then what the target
    will say is put in their place, or with a set probability another token.

    Whether a draft stands depends on its place in the answer alone.
    """

    def __init__(
        self, engine: Engine, prompt_tokens: int, answer: list[int], acceptance: float
    ) -> None:
        assert engine.drafter is not None
        self._drafter: DraftSource = engine.drafter
        self._cache = engine.target.cache
        self._prompt_tokens = prompt_tokens
        self._guesses = torch.tensor(guesses(answer, acceptance), device=engine.device)

    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As the drafter's."""
        return self._drafter.step(token, state)

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As the drafter's."""
        return self._drafter.logits(hidden)

    def chain(
        self, token: torch.Tensor, state: torch.Tensor, k: int, rules: Rules, index: int
    ) -> torch.Tensor:
        """As the drafter's recorded chain: ``(k,)`` drafts."""
        made = self._drafter.chain(token, state, k, rules, index)
        assert made is not None
        begin = self._cache.length - self._prompt_tokens + 1
        return self._guesses[begin : begin + k]


def guesses(answer: list[int], acceptance: float) -> list[int]:
    """The answer with that share of its tokens right, at drawn places.

    Longer than it by what a last round may draft.
    """
    count = len(answer)
    wrong = set(random.Random(5).sample(range(count), round((1.0 - acceptance) * count)))
    said = [(token + 1) % 1000 if i in wrong else token for i, token in enumerate(answer)]
    return said + [0] * ROWS
