# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The few operations of a decoder layer, arranged so that small passes launch few kernels.

Activations are float32 throughout; the precision of the weights is a matter of :class:`Linear`
alone, that of keys and values of the cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BLOCK = 256
"""Keys per block of the row-invariant attention."""

TRANSPOSE_LIMIT = 64 * 2**20
"""Bytes up to which a head that doubles as embedding table gets a second, faster layout."""


class Linear:
    """A bias-free product ``(n, in) -> (n, out)``, float32 in and out.

    float32 weights are kept as ``(in, out)``: one row then costs half of what ``F.linear`` takes.
    """

    def __init__(self, weight: torch.Tensor, dtype: torch.dtype, *, share: bool = False) -> None:
        """``weight`` is ``(out, in)``; with ``share`` it is used as it is, without a copy."""
        self.transposed = dtype == torch.float32 and not share
        if self.transposed:
            self.weight = weight.to(dtype).t().contiguous()
        else:
            self.weight = weight.to(dtype).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.transposed:
            return torch.mm(x, self.weight)
        if self.weight.dtype == torch.float32:
            return F.linear(x, self.weight)
        return F.linear(x.to(self.weight.dtype), self.weight).float()

    @property
    def bytes(self) -> int:
        """Memory of the weight."""
        return self.weight.numel() * self.weight.element_size()


class RmsNorm:
    """Root-mean-square normalisation over the last dimension (transformers ``Gemma4RMSNorm``)."""

    def __init__(
        self, weight: torch.Tensor | None, dim: int, eps: float, device: torch.device
    ) -> None:
        self.weight = None if weight is None else weight.float().to(device)
        self.inverse_dim = 1.0 / dim
        self.eps = torch.tensor(eps, dtype=torch.float32, device=device)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        """``(…, 1)``: what each row is multiplied by, weight aside."""
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.addcmul(self.eps, length, length, value=self.inverse_dim).rsqrt_()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * self.scale(x)
        return normed if self.weight is None else normed.mul_(self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """``residual + norm(x)``."""
        if self.weight is None:
            return torch.addcmul(residual, x, self.scale(x))
        return torch.addcmul(residual, x * self.scale(x), self.weight)


def gated(x: torch.Tensor, width: int) -> torch.Tensor:
    """``gelu(gate) * up`` of a fused ``(n, 2 * width)`` product."""
    return F.gelu(x[:, :width], approximate="tanh").mul_(x[:, width:])


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of interleaved pairs: ``x (n, heads, d)`` times ``angles (n, 1, d/2)``."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles).flatten(-2)


def interleave(head_dim: int) -> torch.Tensor:
    """Order that turns transformers' half-split rotary pairs into adjacent ones.

    Scores are sums over a head's components, so any order common to queries and keys gives the
    same scores; the values keep theirs.
    """
    return torch.arange(head_dim).view(2, -1).t().reshape(-1)


def group_queries(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """``(n, q_heads, d) -> (kv_heads, n * group, d)``, query heads of one key head side by side."""
    n, heads, dim = q.shape
    if kv_heads == 1:
        return q.reshape(1, n * heads, dim)
    return q.view(n, kv_heads, heads // kv_heads, dim).transpose(0, 1).reshape(kv_heads, -1, dim)


def ungroup(out: torch.Tensor, n: int) -> torch.Tensor:
    """``(kv_heads, n * group, d) -> (n, q_heads * d)``."""
    kv_heads, _, dim = out.shape
    if kv_heads == 1:
        return out.reshape(n, -1)
    return out.view(kv_heads, n, -1, dim).transpose(0, 1).reshape(n, -1)


def group_mask(mask: torch.Tensor, group: int) -> torch.Tensor:
    """``(n, keys) -> (n * group, keys)``: one row for each grouped query."""
    n, keys = mask.shape
    return mask.unsqueeze(1).expand(n, group, keys).reshape(n * group, keys)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention at natural width.

    :param q: ``(n, q_heads, d)``; the scale of Gemma 4 is 1.
    :param k: ``(kv_heads, keys, d)``, as ``v``.
    :param mask: ``(n * group, keys)`` additive, or None when every key counts for every row.
    :return: ``(n, q_heads * d)`` float32.
    """
    grouped = group_queries(q, k.shape[0]).to(k.dtype).unsqueeze(0)
    if mask is not None and mask.dtype != k.dtype:
        mask = mask.to(k.dtype)
    out = F.scaled_dot_product_attention(
        grouped, k.unsqueeze(0), v.unsqueeze(0), attn_mask=mask, scale=1.0
    )
    return ungroup(out.squeeze(0), q.shape[0]).float()


def attend_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, block: int
) -> torch.Tensor:
    """Attention whose row ``i`` has the same bits whatever the other rows and the buffer are.

    Keys are taken in blocks of one size in order of their place; the maximum is exact in any
    order, each sum runs over one whole block, and block sums are added first to last. A block
    that a row may not see adds exact zeros.

    :param k: ``(kv_heads, blocks * block, d)``, finite everywhere, as ``v``.
    :param mask: ``(blocks, n * group, block)`` additive.
    """
    n = q.shape[0]
    heads, keys, dim = k.shape
    blocks = keys // block
    grouped = group_queries(q, heads).to(k.dtype)
    if blocks == 1:
        scores = torch.bmm(grouped, k.transpose(1, 2)).float().add_(mask)
        weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
        total = weights.sum(-1, keepdim=True)
        out = torch.bmm(weights.to(v.dtype), v).float()
        return ungroup(out.div_(total), n)
    k4 = k.view(heads, blocks, block, dim)
    v4 = v.view(heads, blocks, block, dim)
    scores = torch.matmul(grouped.unsqueeze(1), k4.transpose(2, 3)).float().add_(mask)
    weights = scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
    totals = weights.sum(-1, keepdim=True)
    outs = torch.matmul(weights.to(v.dtype), v4).float()
    total, out = totals[:, 0], outs[:, 0]
    for i in range(1, blocks):
        total = total + totals[:, i]
        out = out + outs[:, i]
    return ungroup(out / total, n)


def tensor_bytes(*tensors: torch.Tensor | None) -> int:
    """Memory of the tensors given."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)
