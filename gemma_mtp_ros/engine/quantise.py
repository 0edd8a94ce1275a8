# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights in 8 and 4 bits: groups of 32 along ``in``, each with a scale in half precision.

int8 is symmetric: ``w = d * q``, ``q`` in -127 .. 127. int4 has the grid of llama.cpp's q4_0:
``d`` is the value of largest magnitude over -8, ``q`` in -8 .. 7. The bytes lie as
``csrc/quantised.h`` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .kernels import kernels

GROUP = 32
LANES = 16
STEPS = 8
BLOCK = GROUP * LANES

CHUNK = 4 * 2**20
"""Weights quantised at a time, to bound the workspace."""

SAMPLE = 2048
"""Groups of a chunk that are asked whether they lie on q4_0's grid."""

CLIPS = (-8.0, -8.5, -7.5, -7.0, -6.5, 7.0)
"""Levels tried for the value of largest magnitude of an int4 group; q4_0's own first."""

SIGNIFICAND_BITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


@dataclass(frozen=True)
class Packed:
    """A quantised ``(out, in)`` matrix.

    ``data`` is ``(out, bytes)`` uint8, ``scales`` ``(out, groups)`` float16. A scale is worth
    ``scales * gain``; the gain, a power of two, moves the scales into the range of float16.
    """

    data: torch.Tensor
    scales: torch.Tensor
    gain: float
    bits: int
    columns: int

    @property
    def bytes(self) -> int:
        """Memory held."""
        return self.data.numel() + 2 * self.scales.numel()

    def narrow(self, begin: int, end: int) -> Packed:
        """Rows ``begin .. end - 1``, sharing memory."""
        return Packed(
            self.data[begin:end], self.scales[begin:end], self.gain, self.bits, self.columns
        )

    def select(self, ids: torch.Tensor) -> Packed:
        """A copy of the rows ``ids``."""
        data, scales = self.data.index_select(0, ids), self.scales.index_select(0, ids)
        return Packed(data, scales, self.gain, self.bits, self.columns)

    def levels(self) -> torch.Tensor:
        """``(out, groups, 32)`` int8: the ``q``."""
        return unpack(self.data, self.bits)

    def values(self) -> torch.Tensor:
        """``(out, in)`` float32."""
        whole = self.levels().float() * (self.scales.float() * self.gain).unsqueeze(-1)
        return whole.flatten(1)[:, : self.columns]

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        data, scales = self.data.to(device), self.scales.to(device)
        return Packed(data, scales, self.gain, self.bits, self.columns)


def _blocks(groups: int) -> tuple[int, int]:
    """Groups in whole blocks, and groups in the last, narrower one."""
    return groups - groups % LANES, groups % LANES


def pack(q: torch.Tensor, bits: int) -> torch.Tensor:
    """``(out, groups, 32)`` int8 to ``(out, bytes)`` uint8."""
    rows, groups, _ = q.shape
    u = (q.to(torch.int16) + (128 if bits == 8 else 8)).to(torch.uint8)
    whole, rest = _blocks(groups)
    parts = []
    for part, lanes in ((u[:, :whole], LANES), (u[:, whole:], rest)):
        if part.shape[1]:
            steps = part.reshape(rows, -1, lanes, STEPS, 4).transpose(2, 3)
            if bits == 4:
                steps = steps[:, :, 0::2] | (steps[:, :, 1::2] << 4)
            parts.append(steps.reshape(rows, -1))
    return torch.cat(parts, 1).contiguous()


def unpack(data: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of :func:`pack`."""
    rows = data.shape[0]
    group_bytes = GROUP * bits // 8
    whole, rest = _blocks(data.shape[1] // group_bytes)
    parts = []
    split = whole * group_bytes
    for part, lanes in ((data[:, :split], LANES), (data[:, split:], rest)):
        if part.shape[1]:
            steps = part.reshape(rows, -1, STEPS * bits // 8, lanes, 4)
            if bits == 4:
                steps = torch.stack([steps & 15, steps >> 4], 3).flatten(2, 3)
            parts.append(steps.transpose(2, 3).reshape(rows, -1, GROUP))
    return (torch.cat(parts, 1).to(torch.int16) - (128 if bits == 8 else 8)).to(torch.int8)


def scale_gain(largest: float) -> float:
    """The power of two that brings scales of at most ``largest`` to the top of float16's range."""
    if not largest:
        return 1.0
    return 2.0 ** max(-126, math.frexp(largest)[1] - 15)


def divide(x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """``x / d`` with 0 where ``d`` is 0."""
    return torch.where(d == 0, 0.0, x / torch.where(d == 0, 1.0, d))


def levels8(w: torch.Tensor, gain: float) -> tuple[torch.Tensor, torch.Tensor]:
    """``(rows, groups, 32)`` float32 to ``q`` and float16 scales ``(rows, groups, 1)``."""
    scales = (w.abs().amax(-1, keepdim=True) / (127.0 * gain)).half()
    q = divide(w, scales.float() * gain).round_().clamp_(-127, 127)
    return q.to(torch.int8), scales


def on_grid(
    w: torch.Tensor, peak: torch.Tensor, q: torch.Tensor, gain: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales that give back ``w`` exactly, once ``d * q`` is rounded to ``dtype``.

    A checkpoint stores ``d * q`` rounded, so each weight bounds ``d`` to an interval; where the
    intervals of a group share a float16 value, that is a scale of the grid it was trained on.

    :return: scales ``(rows, groups, 1)`` float16, and where they are exact.
    """
    mantissa, exponent = torch.frexp(w.abs())
    above = torch.ldexp(torch.ones_like(w), exponent - 1 - SIGNIFICAND_BITS[dtype])
    below = torch.where(mantissa == 0.5, above / 2, above)
    size, level = w.abs(), q.abs()
    none = level == 0
    level = torch.where(none, 1.0, level)
    low = torch.where(none, 0.0, (size - below) / level).amax(-1, keepdim=True)
    high = torch.where(none, math.inf, (size + above) / level).amin(-1, keepdim=True)
    middle = torch.where(high.isinf(), 0.0, (low + high) / 2)
    scales = (-torch.sign(peak) * middle / gain).half()  # the peak's level is -8
    exact = ((scales.float() * gain * q).to(dtype).float() == w).all(-1, keepdim=True)
    return scales, exact


def search4(w: torch.Tensor, gain: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels ``(n, 32)`` int8 and scales ``(n,)`` float16 with the smallest squared error, of those
    that put the value of largest magnitude on a level of ``CLIPS``, refined by least squares.
    """
    library = kernels() if w.device.type == "cpu" else None
    if library is not None:
        return library.levels4(w.contiguous(), CLIPS, gain)
    peak = w.gather(-1, w.abs().argmax(-1, keepdim=True))
    best_q, best_scale = torch.zeros_like(w), torch.zeros_like(peak).half()
    best_error = torch.full_like(peak, math.inf)
    for clip in CLIPS:
        q = divide(w, peak / clip).round_().clamp_(-8, 7)
        fitted = divide((w * q).sum(-1, keepdim=True), q.square().sum(-1, keepdim=True))
        scale = (fitted / gain).half()
        q = divide(w, scale.float() * gain).round_().clamp_(-8, 7)
        error = (scale.float() * gain * q).sub_(w).square_().sum(-1, keepdim=True)
        better = error < best_error
        best_q = torch.where(better, q, best_q)
        best_scale = torch.where(better, scale, best_scale)
        best_error = torch.where(better, error, best_error)
    return best_q.to(torch.int8), best_scale.squeeze(-1)


def grid_levels(
    w: torch.Tensor, gain: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q4_0's own levels and scales of groups ``(n, 32)``, and which of the groups they give back
    exactly: ``(n, 32)`` int8, ``(n,)`` float16, ``(n,)`` bool.
    """
    peak = w.gather(-1, w.abs().argmax(-1, keepdim=True))
    q = divide(w, peak / -8).round_().clamp_(-8, 7)
    scales, exact = on_grid(w, peak, q, gain, dtype)
    return q.to(torch.int8), scales.squeeze(-1), exact.squeeze(-1)


def levels4(w: torch.Tensor, gain: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`levels8` on q4_0's grid: a group that lies on such a grid keeps it.

    A checkpoint lies on a grid as a whole or not at all, so the first groups tell which.
    """
    groups = w.reshape(-1, GROUP)
    sample = groups[:SAMPLE]
    if bool((grid_levels(sample, gain, dtype)[2] & sample.any(-1)).any()):
        q, scales, exact = grid_levels(groups, gain, dtype)
        rest = ~exact
        if bool(rest.any()):
            q[rest], scales[rest] = search4(groups[rest], gain)
    else:
        q, scales = search4(groups, gain)
    return q.view(w.shape), scales.view(*w.shape[:-1], 1)


def quantise(weight: torch.Tensor, bits: int) -> Packed:
    """Quantise an ``(out, in)`` matrix of any float dtype to 8 or 4 bits, on its device.

    :raises ValueError: when a weight is not finite.
    """
    rows, columns = weight.shape
    groups = -(-columns // GROUP)
    largest = float(weight.abs().amax()) if weight.numel() else 0.0
    if not math.isfinite(largest):
        raise ValueError(
            f"a weight of shape {tuple(weight.shape)} holds a value that is not finite; "
            "the checkpoint is damaged: download it again"
        )
    gain = scale_gain(largest / (127.0 if bits == 8 else 6.0))
    data = torch.empty(rows, groups * GROUP * bits // 8, dtype=torch.uint8, device=weight.device)
    scales = torch.empty(rows, groups, dtype=torch.float16, device=weight.device)
    step = max(1, CHUNK // max(1, groups * GROUP))
    for begin in range(0, rows, step):
        part = weight[begin : begin + step].float()
        if columns % GROUP:
            part = torch.nn.functional.pad(part, (0, groups * GROUP - columns))
        part = part.reshape(-1, groups, GROUP)
        q, d = levels8(part, gain) if bits == 8 else levels4(part, gain, weight.dtype)
        data[begin : begin + step] = pack(q, bits)
        scales[begin : begin + step] = d.squeeze(-1)
    return Packed(data, scales, gain, bits, columns)


def activations(x: torch.Tensor) -> torch.Tensor:
    """``(n, in)`` rounded to the 8 bits per row and group that the integer products use."""
    n, columns = x.shape
    groups = -(-columns // GROUP)
    padded = torch.nn.functional.pad(x, (0, groups * GROUP - columns)).view(n, groups, GROUP)
    largest = padded.abs().amax(-1, keepdim=True)
    seen = largest > 1e-30
    inverse = torch.full_like(largest, 127.0).div_(largest)  # 127.0 / x multiplies by 1 / x
    q = (padded * torch.where(seen, inverse, 0.0)).round_()
    return (q * torch.where(seen, largest / 127.0, 0.0)).flatten(1)[:, :columns]
