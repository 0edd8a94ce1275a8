# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 text decoder over preallocated caches, for one sequence.

Structure as in transformers ``Gemma4TextModel``: sliding and full layers, layers that share the
keys of an earlier one, per-layer embeddings (PLE), double-wide feed-forward in shared layers,
mixture of experts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .attention import attend, attend_chunk
from .cache import KV_DTYPES, ROWS, KVCache
from .checkpoint import Weights
from .graphs import RecordedTarget
from .kernel_pass import KernelPass
from .layers import LayerWeights, Store
from .linear import Precision
from .ops import RmsNorm, kernels_for, rotate, softcap
from .ple import Ple, open_ple
from .rope import Rope
from .spec import TextSpec
from .torch_pass import TorchPass, bucket


def storage_dtype(precision: str) -> torch.dtype:
    """What is rounded as the checkpoint's bfloat16 is: all but a float32 model."""
    return torch.float32 if precision == "float32" else torch.bfloat16


class Target:
    """The target model and the caches of its sequence.

    :param precision: of the weights: float32, bfloat16, int8 or int4.
    :param kv_dtype: of keys and values: float32, bfloat16 or int8.
    :param ple_in_memory: whether the per-layer table is read into memory or stays on disk.
    :param reproducible: a row's bits do not depend on how many drafts surround it: by kernels that
        are so by nature, else by passes of a fixed width and block-wise attention.
    """

    def __init__(
        self,
        spec: TextSpec,
        weights: Weights,
        *,
        max_context: int,
        precision: Precision,
        kv_dtype: str,
        ple_in_memory: bool,
        device: torch.device,
        reproducible: bool,
    ) -> None:
        self.spec = spec
        self.device = device
        self.reproducible = reproducible
        store = Store(precision, device)
        tables = store.for_tables
        self.table = tables.linear(weights, "embed_tokens.weight", spec.vocab, spec.hidden)
        rounded = storage_dtype(precision)
        self.embed_scale = float(torch.tensor(spec.hidden**0.5).to(rounded))
        self.head = (
            self.table
            if spec.tied
            else tables.linear(weights, "lm_head.weight", spec.vocab, spec.hidden)
        )
        self.layers = [
            LayerWeights(weights, i, spec, layer.kv_source == i, store)
            for i, layer in enumerate(spec.layers)
        ]
        self.norm = RmsNorm(
            weights.read("norm.weight", (spec.hidden,)), spec.hidden, spec.eps, device
        )
        self.ple: Ple | None = None
        if spec.ple:
            width = len(spec.layers) * spec.ple
            self.ple = open_ple(weights, spec.ple_vocab, width, ple_in_memory, rounded, device)
            self.ple_scale = float(torch.tensor(spec.ple**0.5).to(rounded))
            self.ple_projection = store.linear(
                weights, "per_layer_model_projection.weight", width, spec.hidden
            )
            norm = weights.read("per_layer_projection_norm.weight", (spec.ple,))
            self.ple_norm = RmsNorm(norm, spec.ple, spec.eps, device)
        self.cache = KVCache(spec, max_context, KV_DTYPES[kv_dtype], device)
        self.rope = Rope(spec, device)
        found = kernels_for(device)
        self.kernel_pass = None if found is None else KernelPass(self, found)
        self.torch_pass = TorchPass(self)
        self.recorded: RecordedTarget | None = None
        self.pad = torch.zeros(ROWS, dtype=torch.long, device=device)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, without the per-layer table."""
        linears = [self.table, *(linear for layer in self.layers for linear in layer.linears())]
        if self.head is not self.table:
            linears.append(self.head)
        if self.ple is not None:
            linears.append(self.ple_projection)
        return sum(linear.bytes for linear in linears)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Scaled token embeddings ``(n, hidden)`` float32."""
        return self.table.rows(ids).mul_(self.embed_scale)

    def ple_rows(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Rows of the per-layer table ``(n, layers * ple)`` float32; None without one."""
        return None if self.ple is None else self.ple.rows(ids)

    def mix_ple(self, x: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor | None:
        """Per-layer inputs ``(layers, n, ple)`` from embeddings and table rows."""
        if rows is None:
            return None
        shape = (x.shape[0], len(self.layers), self.spec.ple)
        context = self.ple_projection(x).mul_(self.spec.hidden**-0.5).view(shape)
        mixed = self.ple_norm(context).add_(rows.view(shape), alpha=self.ple_scale)
        return mixed.mul_(2.0**-0.5).transpose(0, 1).contiguous()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Soft-capped logits ``(n, vocab)`` float32 of post-norm states ``(n, hidden)``."""
        logits = self.head(hidden)
        cap = self.spec.softcap
        return logits if cap is None else softcap(logits, cap)

    def decode(self, ids: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over at most ``MAX_DRAFT + 1`` tokens at ``position`` and after.

        Writes their keys and values; committing them is the caller's.

        :param ids: ``(n,)`` token ids.
        :return: post-norm states ``(n, hidden)`` and logits ``(n, vocab)``.
        """
        n = ids.shape[0]
        self.cache.wrote(position + n)
        if self.recorded is not None:
            return self.recorded(ids, position)
        if self.kernel_pass is not None:
            return self.kernel_pass(ids, position)
        if self.reproducible and n < ROWS:
            ids = torch.cat([ids, self.pad[n:]])
            self.cache.wrote(position + ROWS)
        rows = ids.shape[0]
        at = torch.arange(position, position + rows, device=self.device)
        keys = bucket(position + rows, self.cache.capacity)
        hidden, logits = self.torch_pass(ids, at, keys, self.ple_rows(ids))
        return hidden[:n], logits[:n]

    def record(self, beat: Callable[[], None]) -> None:
        """Record passes of every width that decoding uses, for a GPU."""
        widths = [ROWS] if self.reproducible else list(range(1, ROWS + 1))
        self.recorded = RecordedTarget(self, widths, beat)
        self.cache.release()

    def prefill(self, ids: torch.Tensor, last: bool) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Append a chunk of the prompt at the committed length and commit it.

        Layers that share keys write none, so only the last row of the ``last`` chunk runs through
        them.

        :param ids: ``(n,)`` token ids, of any length.
        :return: post-norm state ``(1, hidden)`` and logits ``(1, vocab)`` of the last row, if
            ``last``.
        """
        cache, n = self.cache, ids.shape[0]
        position = cache.length
        end = position + n
        x = self.embed(ids)
        ple = self.mix_ple(x, self.ple_rows(ids))
        heads, window = self.spec.q_heads, self.spec.window
        fresh: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        begin = position
        rope = self.rope.rows(begin, end)
        for i, layer in enumerate(self.layers):
            if i == self.spec.first_shared:
                if not last:
                    break
                begin, x = end - 1, x[-1:]
                ple = None if ple is None else ple[:, -1:]
                rope = {kind: angles[-1:] for kind, angles in rope.items()}
            spec, attention, rows = layer.spec, layer.attention, end - begin
            angles = rope[spec.head_dim, spec.sliding]
            qkv = attention.norm(attention.qkv(layer.input_norm(x)).view(rows, -1, spec.head_dim))
            if spec.kv_source == i:
                rotated = rotate(qkv[:, : heads + spec.kv_heads], angles)
                q, k = rotated[:, :heads], rotated[:, heads:]
                kv = torch.cat([k, qkv[:, heads + spec.kv_heads :]], 1).transpose(0, 1)
                fresh[i] = self._store(i, kv, position)
            else:
                q = rotate(qkv, angles)
            k_seen, v_seen = fresh[spec.kv_source]
            if rows == 1:
                # What the cache holds for a chunk is what its last row sees, windows aside.
                low = max(0, k_seen.shape[1] - window) if spec.sliding else 0
                mixed = attend(q, k_seen[:, low:], v_seen[:, low:], None)
            else:
                mixed = attend_chunk(q, k_seen, v_seen, window if spec.sliding else None)
            x = layer.post_attention_norm.add_to(x, attention.out(mixed))
            x = layer.feed_forward(x, None if ple is None else ple[i])
        cache.commit(end)
        if not last:
            return None
        hidden = self.norm(x[-1:])
        return hidden, self.logits(hidden)

    def _store(self, i: int, kv: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a chunk's keys and values; return those the chunk attends to, in order.

        A chunk may be longer than the ring: it attends to the old ring and itself, then only its
        last rows are kept.
        """
        cache = self.cache
        store = cache.layers[i]
        n = kv.shape[1]
        end = position + n
        if not store.sliding:
            store.write(kv, torch.arange(position, end, device=self.device))
            return store.read(end)
        past = min(position, self.spec.window - 1)
        at = torch.arange(position - past, position, device=self.device) % cache.ring
        k_old, v_old = store.read(at)
        kept = min(n, cache.ring)
        slots = torch.arange(end - kept, end, device=self.device) % cache.ring
        store.write(kv[:, n - kept :], slots)
        fresh = kv.to(k_old.dtype)
        return (
            torch.cat([k_old, fresh[: store.kv_heads]], 1),
            torch.cat([v_old, fresh[store.kv_heads :]], 1),
        )
