# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The MTP drafter: a small decoder with queries only, which reads the target's keys and values.

One step takes the last token and the target's (then its own) state and gives the next token; the
position stays the same within a round (transformers ``Gemma4AssistantForCausalLM``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..api import CheckpointError
from .checkpoint import Weights
from .draft_source import DraftSource
from .graphs import RecordedDraft
from .kernel_pass import KernelDraft
from .layers import LayerWeights, Store
from .linear import Linear, Precision
from .ops import RmsNorm, kernels_for
from .rope import Rope
from .sampling import Rules
from .spec import DrafterSpec
from .target import Target
from .torch_pass import TorchDraft, bucket


class Drafter(DraftSource):
    """A drafter tied to one target. It reads the target's rows, so it has nothing to catch up on.

    Attributes:
        source: whose keys and values are read, by whether the layer is sliding: the target's last
            layers of each kind that write their own.
    """

    def __init__(
        self, spec: DrafterSpec, weights: Weights, target: Target, precision: Precision
    ) -> None:
        self.spec = spec
        self.target = target
        body, device = spec.body, target.device
        store = Store(precision, device)
        name = "embed_tokens.weight" if body.tied else "lm_head.weight"
        self.head = store.for_tables.linear(weights, name, body.vocab, body.hidden)
        if spec.centroids:
            self.centroids = store.linear(
                weights, "masked_embedding.centroids.weight", spec.centroids, body.hidden
            )
            ordering = weights.read("masked_embedding.token_ordering", (body.vocab,)).long()
            if int(ordering.min()) < 0 or int(ordering.max()) >= body.vocab:
                raise CheckpointError(
                    f"masked_embedding.token_ordering of drafter {weights.folder} names tokens "
                    f"outside the vocabulary of {body.vocab}; download the checkpoint again"
                )
            self.clusters = ordering.view(spec.centroids, -1).to(device)
        self.pre = store.linear(weights, "pre_projection.weight", body.hidden, 2 * spec.backbone)
        self.post = store.linear(weights, "post_projection.weight", spec.backbone, body.hidden)
        self.layers = [
            LayerWeights(weights, i, body, False, store) for i in range(len(body.layers))
        ]
        self.norm = RmsNorm(
            weights.read("norm.weight", (body.hidden,)), body.hidden, body.eps, device
        )
        self.rope = Rope(body, device)
        self.source = {
            sliding: target.spec.last_writer(sliding)
            for sliding in {layer.sliding for layer in body.layers}
        }
        self.torch_draft = TorchDraft(self, target.torch_pass.masks)
        found = kernels_for(device)
        self.kernel_draft = None if found is None else KernelDraft(self, found)
        self.recorded: RecordedDraft | None = None

    def record(self, beat: Callable[[], None]) -> None:
        """Record draft steps, for a GPU."""
        self.recorded = RecordedDraft(self, beat)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights."""
        linears: list[Linear] = [self.head, self.pre, self.post]
        linears += [linear for layer in self.layers for linear in layer.linears()]
        total = sum(linear.bytes for linear in linears)
        if self.spec.centroids:
            total += self.centroids.bytes + self.clusters.numel() * self.clusters.element_size()
        return total

    @property
    def recorded_bytes(self) -> int:
        """Memory of the recorded steps."""
        return 0 if self.recorded is None else self.recorded.bytes

    def chain(
        self, token: torch.Tensor, state: torch.Tensor, k: int, rules: Rules, index: int
    ) -> torch.Tensor | None:
        """Recorded steps, where there are any."""
        return None if self.recorded is None else self.recorded(token, state, k, rules, index)

    def step(self, token: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One draft step after the target's committed rows.

        In sliding layers it sees those that the target's own rule shows to a query at the next
        position: ``window - 1`` of them.

        :param token: ``(1,)`` the last token, drafted or decided.
        :param state: ``(1, backbone)`` the target's post-norm state at the last committed
            position in the first step of a round, this method's in the others.
        :return: the state of the next step and the drafter's own post-norm state ``(1, hidden)``
            for :meth:`logits`.
        """
        cache = self.target.cache
        if self.kernel_draft is not None:
            return self.kernel_draft(token, state, cache.length)
        at = torch.tensor([cache.length], device=self.target.device)
        return self.torch_draft(token, state, at, bucket(cache.length, cache.capacity))

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores of the next token: ``(1, candidates)`` and their token ids (None: all tokens).

        The centroid head opens only the clusters nearest to the state: 32 of 2048 in the released
        E-size drafters, 4096 of 262,144 tokens.
        """
        if not self.spec.centroids:
            return self.head(hidden), None
        nearest = self.centroids(hidden).topk(self.spec.centroid_top_k, -1).indices[0]
        ids = self.clusters[nearest].reshape(-1)
        return self.head.take(hidden, ids), ids
