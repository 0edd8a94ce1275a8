# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The mixture of experts that stands beside the dense feed-forward of each layer (26B-A4B).

A router chooses a few experts for each token; their weighted sum and the dense part, each
normalised, add up (transformers ``Gemma4TextDecoderLayer``, ``Gemma4TextRouter``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ..api import ErrorCode, GemmaMtpError
from .builder import LinearBuilder
from .cache import ROWS
from .checkpoint import Weights
from .linear import Linear, Precision
from .ops import RmsNorm, gated, kernels_for
from .spec import TextSpec

if TYPE_CHECKING:
    from .layers import Store


def read_experts(w: Weights, name: str, shape: tuple[int, int, int], store: Store) -> Linear:
    """One projection of all experts ``(experts, out, in)``, as one weight ``(experts * out, in)``.

    Read and quantised expert by expert.
    """
    count, out, width = shape
    builder = LinearBuilder(count * out, width, store.precision, store.device)
    for i in range(count):
        builder.add(w.read_rows(name, i, i + 1, shape)[0])
    return builder.finish()


def check_experts(precision: Precision, device: torch.device) -> None:
    """Refuse what has no product with chosen blocks of a weight.

    :raises GemmaMtpError: for int4 on a GPU.
    """
    if device.type != "cpu" and precision == "int4":
        raise GemmaMtpError(
            f"engine.weights is int4, for which {device.type} has no product with chosen "
            "experts; set engine.weights to bfloat16, or use a dense checkpoint",
            ErrorCode.BACKEND_UNAVAILABLE,
        )


class Experts:
    """Router, experts and their norms in one layer.

    :raises GemmaMtpError: for int4 on a GPU, whose product takes no chosen blocks of a weight.
    """

    def __init__(self, w: Weights, i: int, spec: TextSpec, store: Store) -> None:
        assert spec.experts is not None
        check_experts(store.precision, store.device)
        self.spec = spec.experts
        count, ffn, hidden = self.spec.count, self.spec.ffn, spec.hidden
        name = f"layers.{i}."

        def norm(weight: torch.Tensor) -> RmsNorm:
            return RmsNorm(weight, hidden, spec.eps, store.device)

        def read(key: str, size: int = hidden) -> torch.Tensor:
            return w.read(name + key, (size,))

        self.hidden = hidden
        self.dense_norm = norm(read("post_feedforward_layernorm_1.weight"))
        self.expert_norm = norm(read("post_feedforward_layernorm_2.weight"))
        self.input_norm = norm(read("pre_feedforward_layernorm_2.weight"))
        self.router_norm = norm(read("router.scale").float() * hidden**-0.5)
        # In float32 whatever the precision of the rest: it is small, and a near tie rounded the
        # other way is another expert.
        router = w.read(name + "router.proj.weight", (count, hidden))
        self.router = Linear.from_weight(router, "float32", store.device)
        self.expert_scale = read("router.per_expert_scale", count).float().to(store.device)
        self.gate_up = read_experts(
            w, name + "experts.gate_up_proj", (count, 2 * ffn, hidden), store
        )
        self.down = read_experts(w, name + "experts.down_proj", (count, hidden, ffn), store)
        self._by_kernels = kernels_for(store.device) is not None
        self._on_gpu = store.device.type != "cpu"

    def linears(self) -> Iterator[Linear]:
        """Every product, for counting."""
        yield from (self.router, self.gate_up, self.down)

    def route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and ids of the experts that each row of ``(n, hidden)`` goes to, ``(n, top_k)``.

        The weights of a row add up to 1 before each is multiplied by its expert's own scale.
        """
        chances = torch.softmax(self.router(self.router_norm(x)), -1)
        weights, ids = chances.topk(self.spec.top_k, -1)
        return weights / weights.sum(-1, keepdim=True) * self.expert_scale[ids], ids

    def expert(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """One expert's answer to rows ``(n, hidden)``."""
        width, hidden = 2 * self.spec.ffn, self.hidden
        inner = gated(self.gate_up.view(i * width, (i + 1) * width)(x), self.spec.ffn)
        return self.down.view(i * hidden, (i + 1) * hidden)(inner)

    def add_to(self, dense: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The dense feed-forward's answer and the experts', each normalised, added up.

        :param dense: ``(n, hidden)``, not yet normalised.
        :param x: ``(n, hidden)``, what entered the feed-forward.
        """
        weights, ids = self.route(x)
        rows = self.input_norm(x)
        if x.shape[0] > ROWS:
            mixed = self._many(rows, weights, ids)
        elif self._by_kernels or self._on_gpu:
            mixed = self._chosen(rows, weights, ids)
        else:
            mixed = self._few(rows, weights, ids)
        return self.expert_norm.add_to(self.dense_norm(dense), mixed)

    def _chosen(self, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Each row over its own experts, each expert's weights read once."""
        n, top_k = ids.shape
        flat = ids.flatten()
        if self._on_gpu:
            inner = self._gathered(self.gate_up, rows.repeat_interleave(top_k, 0), flat)
            answers = self._gathered(self.down, gated(inner, self.spec.ffn), flat)
        else:
            inner = self.gate_up.blocks(rows, flat, 2 * self.spec.ffn, top_k)
            answers = self.down.blocks(gated(inner, self.spec.ffn), flat, self.hidden)
        answers = answers.view(n, top_k, self.hidden)
        out = answers[:, 0] * weights[:, :1]
        for j in range(1, top_k):
            out.addcmul_(answers[:, j], weights[:, j : j + 1])
        return out

    def _gathered(self, linear: Linear, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Row ``p`` of ``x`` times the weight of expert ``ids[p]``, without waiting for ids.

        The experts' weights are copied first: a pass reads them twice.
        """
        assert isinstance(linear.weight, torch.Tensor)
        experts = linear.weight.view(self.spec.count, -1, linear.in_features)
        columns = x.to(linear.weight.dtype).unsqueeze(-1)
        return torch.bmm(experts.index_select(0, ids), columns).squeeze(-1).float()

    def _few(self, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Each chosen expert over every row of a pass, with weight 0 where not chosen.

        The products keep the width of the pass: a row's bits do not depend on which experts the
        others go to. Its own are added in the order of their ids.
        """
        table = torch.zeros(rows.shape[0], self.spec.count, device=rows.device)
        table.scatter_(1, ids, weights)
        out = torch.zeros_like(rows)
        for i in sorted(set(ids.flatten().tolist())):
            out.addcmul_(self.expert(i, rows), table[:, i : i + 1])
        return out

    def _many(self, rows: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Each chosen expert over the rows of a prefill chunk that go to it."""
        out = torch.zeros_like(rows)
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.spec.count).tolist()
        for i, places in enumerate(order.split(counts)):
            if counts[i]:
                at = places // self.spec.top_k
                answer = self.expert(i, rows[at])
                out.index_add_(0, at, answer.mul_(weights.flatten()[places, None]))
        return out
