# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights put together from parts, each quantised as it comes: no tensor is held twice."""

from __future__ import annotations

import torch

from .linear import DTYPES, CudaLinear, Linear, Precision, precision_on
from .ops import kernels_for
from .quantise import GROUP, Packed, quantise


def table_precision(precision: Precision, device: torch.device) -> Precision:
    """What embedding tables and heads are kept in: int4 is too coarse for what every logit
    comes from.
    """
    if precision != "int4":
        return precision
    return "int8" if device.type == "cpu" else "bfloat16"


def linear_bytes(out: int, width: int, precision: Precision, device: torch.device) -> int:
    """Memory of a weight ``(out, width)``, scales included; on a GPU, zero points too.

    :raises GemmaMtpError: when the device has no product of this precision.
    """
    precision = precision_on(precision, device, out, width)
    if precision in DTYPES:
        return out * width * DTYPES[precision].itemsize
    groups = -(-width // GROUP)
    per_group = 2 if device.type == "cpu" else 4
    return out * groups * (GROUP * (8 if precision == "int8" else 4) // 8 + per_group)


class LinearBuilder:
    """A weight ``(out, width)`` whose rows come in parts, first to last."""

    def __init__(self, out: int, width: int, precision: Precision, device: torch.device) -> None:
        self.precision = precision_on(precision, device, out, width)
        self.device = device
        self._width = width
        self._filled = 0
        self._bits = {"int8": 8, "int4": 4}.get(self.precision)
        if self._bits is None:
            self._data = torch.empty(out, width, dtype=DTYPES[self.precision], device=device)
            return
        groups = -(-width // GROUP)
        self._gain = 0.0
        self._data = torch.empty(
            out, groups * GROUP * self._bits // 8, dtype=torch.uint8, device=device
        )
        self._scales = torch.empty(out, groups, dtype=torch.float16, device=device)

    def add(self, rows: torch.Tensor) -> None:
        """Append ``(n, width)``, of any float dtype."""
        begin, end = self._filled, self._filled + rows.shape[0]
        self._filled = end
        if self._bits is None:
            self._data[begin:end] = rows
            return
        part = quantise(rows, self._bits)
        # One gain, a power of two, for the whole: the scales with the smaller one are shifted.
        gain = max(self._gain, part.gain)
        if self._gain and gain != self._gain:
            self._scales[:begin] *= self._gain / gain
        self._gain = gain
        self._data[begin:end] = part.data
        self._scales[begin:end] = part.scales * (part.gain / gain)

    def finish(self) -> Linear:
        """The whole weight."""
        assert self._filled == self._data.shape[0], "rows are missing"
        held: torch.Tensor | Packed = self._data
        if self._bits is not None:
            held = Packed(self._data, self._scales, self._gain or 1.0, self._bits, self._width)
        if self.device.type != "cpu":
            return CudaLinear(held, None)
        return Linear(held, kernels_for(self.device))
