# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of per-layer embeddings: in memory, or on disk, where a token reads its row alone.

E2B's has 262,144 rows of 18 KB, 4.7 GB in all, which no 8 GB board has to spare.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F

from .checkpoint import Weights
from .ops import read_back
from .tensor_file import RowFile

SMALL_BYTES = 64 * 2**20
"""Tables up to this size are kept in memory by ``engine.ple: auto``."""


class Ple(Protocol):
    """Where rows come from."""

    bytes: int
    """Memory that the table takes."""

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """``(n, width)`` float32 rows of ``(n,)`` token ids, on their device."""
        ...


class PleInMemory:
    """A table in memory."""

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        self.bytes = table.numel() * table.element_size()

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.table).float()


class PleOnDisk:
    """A table on disk. Its rows are asked for by number, so a GPU's ids are read back first."""

    bytes = 0

    def __init__(self, file: RowFile, device: torch.device) -> None:
        self.file = file
        self.device = device

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.file.rows(read_back(ids)).to(self.device).float()


def open_ple(
    weights: Weights,
    vocab: int,
    width: int,
    in_memory: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Ple:
    """Open the table ``(vocab, width)``."""
    name, shape = "embed_tokens_per_layer.weight", (vocab, width)
    if not in_memory:
        return PleOnDisk(weights.rows_on_disk(name, shape), device)
    table = torch.empty(shape, dtype=dtype, device=device)
    filled = 0
    for rows in weights.pieces(name, shape):
        table[filled : filled + len(rows)] = rows
        filled += len(rows)
    return PleInMemory(table)
