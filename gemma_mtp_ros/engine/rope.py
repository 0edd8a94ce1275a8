# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary angles of the layer kinds, computed as positions come up.

A table up to the context limit would take 270 MB for 131,072 positions of a 512-wide head.
"""

from __future__ import annotations

import torch

from .spec import TextSpec

Kind = tuple[int, bool]
"""Head dimension, and whether the layer is sliding."""

STEP = 1024
"""Positions that are computed at once. Aligned, so that an angle has the same bits every time."""


def angles_of(frequencies: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """``(n, 1, head_dim / 2)`` complex64: e^(i * position * frequency)."""
    angles = positions.float()[:, None] * frequencies[None, :]
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


class Rope:
    """Angles for one decoder."""

    def __init__(self, spec: TextSpec, device: torch.device) -> None:
        self.device = device
        self.frequencies: dict[Kind, torch.Tensor] = {}
        for layer in spec.layers:
            kind = (layer.head_dim, layer.sliding)
            if kind not in self.frequencies:
                self.frequencies[kind] = (
                    spec.rope(layer.sliding).inv_freq(layer.head_dim).to(device)
                )
        self._tables: dict[Kind, tuple[int, torch.Tensor]] = {}

    def at(self, positions: torch.Tensor) -> dict[Kind, torch.Tensor]:
        """Angles at positions ``(n,)`` that only the device knows, by kind."""
        return {kind: angles_of(f, positions) for kind, f in self.frequencies.items()}

    def rows(self, begin: int, end: int) -> dict[Kind, torch.Tensor]:
        """Angles of the positions ``begin .. end - 1``, by kind; contiguous."""
        return {kind: self._rows(kind, begin, end) for kind in self.frequencies}

    def _rows(self, kind: Kind, begin: int, end: int) -> torch.Tensor:
        parts = []
        while begin < end:
            base = begin - begin % STEP
            held = self._tables.get(kind)
            if held is None or held[0] != base:
                positions = torch.arange(base, base + STEP, device=self.device)
                held = self._tables[kind] = (base, angles_of(self.frequencies[kind], positions))
            stop = min(end, base + STEP)
            parts.append(held[1][begin - base : stop - base])
            begin = stop
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def bytes(self) -> int:
        """Memory of the tables once they are in use."""
        return sum(f.numel() * 8 * STEP for f in self.frequencies.values())
