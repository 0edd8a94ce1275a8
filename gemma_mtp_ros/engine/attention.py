# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention in torch operations. The scale of Gemma 4 is 1: its queries are normed.

Shapes: queries ``(n, q_heads, d)``; keys and values ``(kv_heads, keys, d)``; additive masks
``(n, keys)``, 0 where a row sees a key and -inf where not; results ``(n, q_heads * d)`` float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

BLOCK = 256
"""Keys per block of the row-invariant attention."""

NEVER = float("-inf")

MASK_BYTES = 16 * 2**20
"""Bound on the mask of one attention call in prefill; longer chunks are cut into slices."""


def additive(seen: torch.Tensor) -> torch.Tensor:
    """0 where ``seen``, -inf elsewhere."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, NEVER)


def grouped(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """``(kv_heads, group, n, d)``: the query heads of each key head side by side."""
    n, heads, dim = q.shape
    return q.view(n, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)


def ungrouped(out: torch.Tensor) -> torch.Tensor:
    """``(kv_heads, group, n, d) -> (n, q_heads * d)``."""
    return out.permute(2, 0, 1, 3).reshape(out.shape[2], -1)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention at natural width, without a matrix of all scores.

    Keys are shared by the heads of a group through a stride of 0: nothing is copied.
    """
    kv_heads, keys, dim = k.shape
    q4 = grouped(q, kv_heads).to(k.dtype)
    shape = (kv_heads, q4.shape[1], keys, dim)
    out = F.scaled_dot_product_attention(
        q4,
        k.unsqueeze(1).expand(shape),
        v.unsqueeze(1).expand(shape),
        attn_mask=None if mask is None else mask.to(k.dtype),
        scale=1.0,
    )
    return ungrouped(out).float()


def attend_chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Attention of a prefill chunk, whose rows are those of the last ``n`` keys.

    Taken in slices of rows, so that masks stay small whatever the length of the context.

    :param window: how many keys a row of a sliding layer sees, itself among them; None: all.
    """
    n, keys = q.shape[0], k.shape[1]
    step = max(1, min(n, MASK_BYTES // (4 * keys)))
    first = keys - n
    columns = torch.arange(keys, device=q.device)
    parts = []
    for begin in range(0, n, step):
        end = min(begin + step, n)
        low = 0 if window is None else max(0, first + begin - window + 1)
        high = first + end
        rows = torch.arange(first + begin, high, device=q.device)[:, None]
        seen = columns[None, low:high] <= rows
        if window is not None:
            seen &= columns[None, low:high] > rows - window
        parts.append(attend(q[begin:end], k[:, low:high], v[:, low:high], additive(seen)))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def by_head(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a[h] @ b[h]``, head by head.

    One product of all heads copies keys that do not lie end to end: all but those of a full cache.
    """
    return torch.stack([torch.matmul(x, y) for x, y in zip(a, b, strict=True)])


def block_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over dimension 1, ``(heads, blocks, …)``, in pairs: the same bits with blocks of zeros
    behind, and few launches for many blocks.
    """
    while x.shape[1] > 1:
        even = x.shape[1] // 2 * 2
        pairs = x[:, 0:even:2] + x[:, 1:even:2]
        x = pairs if even == x.shape[1] else torch.cat([pairs, x[:, even:]], 1)
    return x[:, 0]


def attend_blocks(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, block: int
) -> torch.Tensor:
    """Attention whose row ``i`` has the same bits whatever the other rows and the buffer are.

    Keys are taken in blocks of one size in order of their place; the maximum is exact in any
    order, each sum runs over one whole block, and block sums are added in pairs, then pairs of
    pairs. A block that a row may not see adds exact zeros. Row-invariant for passes of one width.

    :param k: ``(kv_heads, blocks * block, d)``, finite everywhere, as ``v``.
    """
    n = q.shape[0]
    heads, keys, dim = k.shape
    blocks = keys // block
    q4 = grouped(q, heads).to(k.dtype)
    group = q4.shape[1]
    q3 = q4.reshape(heads, 1, group * n, dim)
    k4 = k.view(heads, blocks, block, dim)
    v4 = v.view(heads, blocks, block, dim)
    scores = by_head(q3, k4.transpose(2, 3)).float()
    rows = mask.view(n, blocks, block).transpose(0, 1)[:, None].expand(blocks, group, n, block)
    scores.add_(rows.reshape(1, blocks, group * n, block))
    weights = scores.sub_(scores.amax((1, 3), keepdim=True)).exp_()
    totals = weights.sum(-1, keepdim=True)
    out = block_sum(by_head(weights.to(v.dtype), v4).float())
    total = block_sum(totals)
    return ungrouped((out / total).view(heads, group, n, dim))
