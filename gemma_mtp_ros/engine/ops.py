# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The few operations of a decoder layer, by the C++ kernels where they are, else by torch.

Activations are float32 throughout; the precision of the weights is a matter of ``linear.Linear``
alone, that of keys and values of the cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .kernels import Kernels, kernels


def kernels_for(device: torch.device) -> Kernels | None:
    """The C++ kernels, if there are any for this device."""
    return kernels() if device.type == "cpu" else None


class RmsNorm:
    """Root-mean-square normalisation over the last dimension (transformers ``Gemma4RMSNorm``)."""

    def __init__(
        self, weight: torch.Tensor | None, dim: int, eps: float, device: torch.device
    ) -> None:
        self.weight = None if weight is None else weight.float().contiguous().to(device)
        self.inverse_dim = 1.0 / dim
        self.eps = eps
        self._eps = torch.tensor(eps, dtype=torch.float32, device=device)
        self._kernels = kernels_for(device)

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        """``(…, 1)``: what each row is multiplied by, weight aside."""
        length = torch.linalg.vector_norm(x, 2, -1, True)
        return torch.addcmul(self._eps, length, length, value=self.inverse_dim).rsqrt_()

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The normalised rows, in ``out`` if given, which may be ``x``."""
        if self._kernels is not None:
            return self._kernels.rms_norm(x, self.weight, self.eps, out)
        normed = torch.mul(x, self._scale(x), out=out)
        return normed if self.weight is None else normed.mul_(self.weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor, scalar: float = 1.0) -> torch.Tensor:
        """``(residual + norm(x)) * scalar``."""
        if self._kernels is not None:
            return self._kernels.add_rms_norm(residual, x, self.weight, self.eps, scalar)
        if self.weight is None:
            total = torch.addcmul(residual, x, self._scale(x))
        else:
            total = torch.addcmul(residual, x * self._scale(x), self.weight)
        return total if scalar == 1.0 else total.mul_(scalar)


def gated(x: torch.Tensor, width: int) -> torch.Tensor:
    """``gelu(gate) * up`` of a fused ``(n, 2 * width)`` product."""
    found = kernels_for(x.device)
    if found is not None and x.dtype == torch.float32:
        return found.gated(x, width)
    return F.gelu(x[:, :width], approximate="tanh").mul_(x[:, width:])


def gelu_times(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``gelu(gate) * up``, as Gemma's tanh form has it."""
    found = kernels_for(gate.device)
    if found is not None:
        return found.gelu_mul(gate, up)
    return F.gelu(gate, approximate="tanh").mul_(up)


def softcap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """``cap * tanh(x / cap)``, in place."""
    found = kernels_for(x.device)
    return x.div_(cap).tanh_().mul_(cap) if found is None else found.softcap_(x, cap)


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


def read_back(ids: torch.Tensor) -> list[int]:
    """Token ids as numbers: the only place where a round waits for a GPU."""
    return [int(i) for i in ids.tolist()]


def read_number(value: torch.Tensor) -> float:
    """One number of a tensor on the CPU, where nothing waits for it."""
    return float(value.item())
