# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Bias-free products in four precisions, float32 in and out.

On the CPU passes of few rows go through the C++ kernels where they are installed: one pass over
the weights, and row ``i`` of the result has the same bits whatever the other rows are. Longer ones
(prefill), and all without the kernels, go through torch on the same weights.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from ..api import ErrorCode, GemmaMtpError
from .kernels import FORMATS, Kernels, Weight, kernels, weight_address
from .quantise import Packed, activations, quantise

Precision = Literal["float32", "bfloat16", "int8", "int4"]

SMALL_PASS = 32
"""Rows up to which the kernels are faster than unpacking and torch's product."""

WORKSPACE = 32 * 2**20
"""Values unpacked at a time by a product of many rows (64 MiB in bfloat16)."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def fast_dtype(device: torch.device) -> torch.dtype:
    """What products of many rows are computed in: bfloat16 where the device has it in hardware."""
    if device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return torch.float32


def precision_on(precision: Precision, device: torch.device, out: int, width: int) -> Precision:
    """What a weight ``(out, width)`` is kept in where ``precision`` was asked for.

    tinygemm, torch's int4 product on a GPU, takes multiples of 8 and 128; other shapes stay in
    bfloat16 there.

    :raises GemmaMtpError: when the device has no product of this precision.
    """
    if device.type == "cpu" or precision in DTYPES:
        return precision
    if precision == "int8":
        raise GemmaMtpError(
            f"engine.weights is int8, for which torch has no product of few rows on "
            f"{device.type}; set engine.weights to bfloat16 or int4",
            ErrorCode.BACKEND_UNAVAILABLE,
        )
    return "int4" if out % 8 == 0 and width % 128 == 0 else "bfloat16"


class Linear:
    """``(n, in) -> (n, out)``, and the rows of its weight as an embedding table."""

    def __init__(self, weight: torch.Tensor | Packed, library: Kernels | None) -> None:
        """Use :meth:`from_weight`. ``weight`` is used as it is."""
        self.weight: torch.Tensor | Packed | None = weight
        self.library = library
        if isinstance(weight, Packed):
            self.out_features, self.in_features = weight.data.shape[0], weight.columns
            self.device = weight.data.device
            self.precision: Precision = "int8" if weight.bits == 8 else "int4"
        else:
            self.out_features, self.in_features = weight.shape
            self.device = weight.device
            self.precision = "float32" if weight.dtype == torch.float32 else "bfloat16"
        self._address = 0
        self._small_pass = -1
        if library is not None:
            self._describe()
            self._small_pass = SMALL_PASS
            self._product = library.library.gmtp_product

    @classmethod
    def from_weight(
        cls,
        weight: torch.Tensor,
        precision: Precision,
        device: torch.device | None = None,
        *,
        library: Kernels | Literal["find"] | None = "find",
    ) -> Linear:
        """Hold ``weight (out, in)``, of any float dtype, in ``precision`` on ``device``.

        Quantising happens where ``weight`` lies. A weight that already is what is asked for is
        shared, not copied.

        :param library: the kernels to use on the CPU; by default those that are installed.
        :raises GemmaMtpError: when the device has no product of this precision.
        """
        device = weight.device if device is None else torch.device(device)
        if device.type != "cpu":
            return CudaLinear.from_weight(weight, precision, device)
        found = kernels() if library == "find" else library
        if precision in DTYPES:
            return cls(weight.to(device, DTYPES[precision]).contiguous(), found)
        return cls(quantise(weight, 8 if precision == "int8" else 4).to(device), found)

    def _describe(self) -> None:
        """Build the kernels' description of the weight."""
        weight = self._held()
        if isinstance(weight, Packed):
            data, scales, gain = weight.data, weight.scales.data_ptr(), weight.gain
            scale_stride = weight.scales.stride(0)
        else:
            data, scales, gain, scale_stride = weight, None, 1.0, 0
        self._description = Weight(
            data.data_ptr(),
            scales,
            self.out_features,
            self.in_features,
            data.stride(0) * data.element_size(),
            scale_stride,
            gain,
            FORMATS[self.precision],
        )
        self._address = weight_address(self._description)

    def _held(self) -> torch.Tensor | Packed:
        assert self.weight is not None, "int4 on a GPU has a product, and no rows to look up"
        return self.weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """:param x: ``(n, in)`` float32, contiguous."""
        assert x.is_contiguous() and x.shape[1] == self.in_features  # noqa: PT018
        n = x.shape[0]
        if n > self._small_pass:
            return self._large(x)
        out = torch.empty(n, self.out_features)
        self._product(self._address, x.data_ptr(), n, out.data_ptr())
        return out

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """As a call; many rows come in the precision they were computed in, if that is less.

        For what follows at once: widening the widest results of a prompt costs as much as a
        tenth of their products.
        """
        return self(x) if x.shape[0] <= SMALL_PASS else self._large(x, widen=False)

    def _large(self, x: torch.Tensor, *, widen: bool = True) -> torch.Tensor:
        """By torch. Few rows keep the activations' precision of the kernels."""
        weight = self._held()
        few = x.shape[0] <= SMALL_PASS
        dtype = torch.float32 if few else fast_dtype(self.device)
        if isinstance(weight, Packed):
            x = activations(x) if few else x.to(dtype)
        elif weight.dtype == torch.float32 or weight.dtype == dtype:
            y = F.linear(x.to(weight.dtype), weight)
            return y.float() if widen else y
        step = max(1, WORKSPACE // self.in_features)
        kept = torch.float32 if widen else dtype
        y = torch.empty(x.shape[0], self.out_features, dtype=kept, device=x.device)
        for begin in range(0, self.out_features, step):
            end = min(self.out_features, begin + step)
            y[:, begin:end] = F.linear(x, self._values(slice(begin, end), dtype))
        return y

    def _values(self, rows: torch.Tensor | slice, dtype: torch.dtype) -> torch.Tensor:
        """``(rows, in)``: rows of the weight as numbers."""
        if self._address:
            assert self.library is not None
            return self.library.values(self._address, rows, self.in_features, dtype)
        weight = self._held()
        if isinstance(weight, Packed):
            if isinstance(rows, slice):
                return weight.narrow(rows.start, rows.stop).values().to(dtype)
            return weight.select(rows).values().to(dtype)
        part = weight[rows] if isinstance(rows, slice) else weight.index_select(0, rows)
        return part.to(dtype)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """``(len(ids), in)`` float32: rows of the weight, as an embedding looks them up."""
        return self._values(ids, torch.float32)

    def take(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """``(n, len(ids))``: products with the rows ``ids`` (int64, contiguous) alone."""
        if self._address:
            assert self.library is not None
            return self.library.take(self._address, x, ids)
        quantised = isinstance(self.weight, Packed)
        return F.linear(activations(x) if quantised else x, self.rows(ids))

    def blocks(
        self, x: torch.Tensor, blocks: torch.Tensor, size: int, repeat: int = 1
    ) -> torch.Tensor:
        """Products of single rows with blocks of the weight, as a mixture of experts needs them.

        :param x: ``(pairs / repeat, in)``.
        :param blocks: ``(pairs,)`` int64, contiguous: pair ``p`` takes ``size`` rows of the weight
            from row ``blocks[p] * size``.
        :return: ``(pairs, size)``: row ``p`` is the product of x row ``p // repeat``.
        """
        if self._address:
            assert self.library is not None
            return self.library.blocks(self._address, size, x, blocks, repeat)
        y = torch.empty(blocks.shape[0], size, device=x.device)
        for block in blocks.unique().tolist():
            pairs = (blocks == block).nonzero().squeeze(1)
            part = self.view(block * size, (block + 1) * size)
            y[pairs] = part(x.index_select(0, pairs // repeat))
        return y

    def view(self, begin: int, end: int) -> Linear:
        """The product with rows ``begin .. end - 1`` of the weight, sharing its memory."""
        weight = self._held()
        if isinstance(weight, Packed):
            return type(self)(weight.narrow(begin, end), self.library)
        return type(self)(weight[begin:end], self.library)

    @property
    def bytes(self) -> int:
        """Memory of the weight."""
        weight = self._held()
        if isinstance(weight, Packed):
            return weight.bytes
        return weight.numel() * weight.element_size()


class CudaLinear(Linear):
    """Products on a GPU: torch's own in float32 and bfloat16, its tinygemm in int4.

    tinygemm keeps the levels of a group as they are and rounds its scale to bfloat16.
    """

    TILES = 8  # tinygemm's inner k tiles, each of 16 values

    @classmethod
    def from_weight(
        cls,
        weight: torch.Tensor,
        precision: Precision,
        device: torch.device | None = None,
        *,
        library: Kernels | Literal["find"] | None = None,
    ) -> Linear:
        """As :meth:`Linear.from_weight`; shapes that tinygemm cannot take stay in bfloat16."""
        device = weight.device if device is None else device
        kept = precision_on(precision, device, *weight.shape)
        if kept == "int4":
            return cls(quantise(weight.to(device), 4), None)
        return cls(weight.to(device, DTYPES[kept]).contiguous(), None)

    def __init__(self, weight: torch.Tensor | Packed, library: Kernels | None) -> None:
        super().__init__(weight, None)
        self._tiles: torch.Tensor | None = None
        self._scales: torch.Tensor | None = None
        if isinstance(weight, Packed):
            u = (weight.levels().flatten(1) + 8).to(torch.uint8)
            self._tiles = torch._convert_weight_to_int4pack(u[:, ::2] << 4 | u[:, 1::2], self.TILES)
            scales = (weight.scales.float() * weight.gain).to(torch.bfloat16).t()
            self._scales = torch.stack([scales, torch.zeros_like(scales)], -1).contiguous()
            self.weight = None  # the tiles are all that a product needs

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """:param x: ``(n, in)`` float32."""
        if self._tiles is not None and self._scales is not None:
            y = torch._weight_int4pack_mm(x.to(torch.bfloat16), self._tiles, 32, self._scales)
        else:
            assert isinstance(self.weight, torch.Tensor)
            y = F.linear(x.to(self.weight.dtype), self.weight)
        return y.float()

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """As a call: a GPU widens in passing."""
        return self(x)

    @property
    def bytes(self) -> int:
        """Memory of the weight."""
        held = [t for t in (self._tiles, self._scales) if t is not None]
        own = 0 if self.weight is None else super().bytes
        return own + sum(t.numel() * t.element_size() for t in held)
