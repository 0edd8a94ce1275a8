# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The MTP drafter: a small decoder with queries only, which reads the target's keys and values.

One step takes the last token and the target's (then its own) state and gives the next token; the
position stays the same within a round (transformers ``Gemma4AssistantForCausalLM``).
"""

from __future__ import annotations

import torch

from .checkpoint import Weights
from .ops import TRANSPOSE_LIMIT, Linear, RmsNorm, attend, group_mask, rotate, tensor_bytes
from .spec import DrafterSpec
from .target import LayerWeights, Target, rope_table

POSITION_OFFSET = 0
"""Position of the queries, from the count of committed rows.

transformers, llama.cpp and OpenVINO GenAI use 0 (the place of the token not yet processed);
vLLM, SGLang and mlx-vlm use -1.
"""


class Drafter:
    """A drafter tied to one target."""

    def __init__(
        self,
        spec: DrafterSpec,
        weights: Weights,
        target: Target,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.spec = spec
        self.target = target
        body = spec.body
        weights.total = len(weights.entries)
        table = weights.read("embed_tokens.weight", (body.vocab, body.hidden)).to(device, dtype)
        small = tensor_bytes(table) <= TRANSPOSE_LIMIT
        if spec.centroids:
            self.head_rows = table
            centroids = weights.read(
                "masked_embedding.centroids.weight", (spec.centroids, body.hidden)
            )
            self.centroids = Linear(centroids.to(device), dtype)
            ordering = weights.read("masked_embedding.token_ordering", (body.vocab,)).long()
            self.clusters = ordering.view(spec.centroids, -1).to(device)
        else:
            self.head = Linear(table, dtype, share=not small)
        self.pre = Linear(
            weights.read("pre_projection.weight", (body.hidden, 2 * spec.backbone)).to(device),
            dtype,
        )
        self.post = Linear(
            weights.read("post_projection.weight", (spec.backbone, body.hidden)).to(device), dtype
        )
        self.layers = [
            LayerWeights(weights, i, body, False, dtype, device) for i in range(len(body.layers))
        ]
        self.norm = RmsNorm(
            weights.read("norm.weight", (body.hidden,)), body.hidden, body.eps, device
        )
        positions = target.cache.max_context + 1
        self.rope = {
            (layer.head_dim, layer.sliding): rope_table(
                body, layer.head_dim, layer.sliding, positions
            ).to(device)
            for layer in body.layers
        }

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        own = [self.pre.weight, self.post.weight]
        own += (
            [self.head_rows, self.centroids.weight, self.clusters]
            if self.spec.centroids
            else [self.head.weight]
        )
        return tensor_bytes(*own) + sum(tensor_bytes(*layer.tensors()) for layer in self.layers)

    def _visible(self, sliding: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys, values and mask ``(1, keys)`` of the target's committed rows.

        In sliding layers those that the target's own rule shows to a query at the next position:
        ``window - 1`` of them.
        """
        cache = self.target.cache
        store = cache.layers[self.target.spec.last_writer(sliding)]
        length = cache.length
        if not sliding or length < self.target.spec.window:
            return store.k[:, :length], store.v[:, :length], None
        assert cache.draft_masks is not None
        keys = min(length, cache.ring)
        return store.k[:, :keys], store.v[:, :keys], cache.draft_masks.rows(length, 1)[:, :keys]

    def begin(self) -> dict[bool, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
        """What every step of a round attends to; the target's rows do not change within one."""
        kinds = {layer.spec.sliding for layer in self.layers}
        visible = {}
        for sliding in kinds:
            k, v, mask = self._visible(sliding)
            if mask is not None:
                mask = group_mask(mask, self.spec.body.q_heads // k.shape[0])
            visible[sliding] = (k, v, mask)
        return visible

    def step(
        self,
        token: torch.Tensor,
        state: torch.Tensor,
        visible: dict[bool, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step.

        :param token: ``(1,)`` the last token, drafted or decided.
        :param state: ``(1, backbone)`` the target's post-norm state at the last committed
            position in the first step of a round, this method's in the others.
        :return: the state of the next step and the drafter's own post-norm state ``(1, hidden)``
            for :meth:`logits`.
        """
        position = self.target.cache.length + POSITION_OFFSET
        x = self.pre(torch.cat([self.target.embed(token), state], 1))
        for layer in self.layers:
            spec = layer.spec
            angles = self.rope[spec.head_dim, spec.sliding][position : position + 1]
            attention = layer.attention
            q = attention.qkv(layer.input_norm(x)).view(1, -1, spec.head_dim)
            k, v, mask = visible[spec.sliding]
            mixed = attend(rotate(attention.norm(q), angles), k, v, mask)
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None)
        hidden = self.norm(x)
        return self.post(hidden), hidden

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores of the next token: ``(1, candidates)`` and their token ids (None: all tokens).

        The centroid head opens only the clusters nearest to the state: 32 of 2048 in the released
        E-size drafters, 4096 of 262,144 tokens.
        """
        if not self.spec.centroids:
            return self.head(hidden), None
        nearest = self.centroids(hidden).topk(self.spec.centroid_top_k, -1).indices[0]
        ids = self.clusters[nearest].reshape(-1)
        rows = self.head_rows.index_select(0, ids)
        scores = torch.mm(hidden.to(rows.dtype), rows.t()).float()
        return scores, ids
