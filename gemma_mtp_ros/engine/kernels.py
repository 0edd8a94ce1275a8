# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The optional C++ kernels (``csrc/``): found, checked, and called on torch tensors.

Every call takes contiguous float32 tensors on the CPU and gives new ones unless ``out`` is given.
Rows are independent in bits: see ``csrc/kernels.h``.

``GEMMA_MTP_KERNELS`` in the environment: ``off`` leaves them alone, the name of an instruction set
(``generic``, ``avx2``, ``avx512``, ``dotprod``) chooses it, ``auto`` (default) takes the best.
"""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import c_float
from pathlib import Path

import torch

import gemma_mtp_ros

from .kernel_library import ABI, Attention, KernelsUnusable, Weight, open_library

VARIABLE = "GEMMA_MTP_KERNELS"
FILE = "_kernels.so"
FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
KV_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}

log = logging.getLogger(__name__)


def library_file() -> Path:
    """Where the library lies: beside this module, or for the source tree (see the package's
    ``__init__``) in the workspace that is sourced.
    """
    places = [Path(folder) / "engine" / FILE for folder in gemma_mtp_ros.__path__]
    return next((file for file in places if file.is_file()), places[0])


def find() -> ctypes.CDLL | None:
    """The library as the environment asks for it, or None, with a line in the log why.

    :raises ValueError: when the environment asks for an instruction set that is not there.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted == "off":
        log.info("CPU kernels are switched off by %s=off; torch computes instead", VARIABLE)
        return None
    try:
        library = open_library(library_file())
    except KernelsUnusable as error:
        log.warning("CPU kernels are not used: %s; torch computes instead, slower", error)
        return None
    if wanted != "auto" and not library.gmtp_select(wanted.encode()):
        raise ValueError(
            f"{VARIABLE}={wanted} is not an instruction set of this CPU; it may be auto, off or "
            "generic, on x86 also avx2 or avx512, on Arm dotprod"
        )
    return library


class Kernels:
    """The library's functions on tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._take = library.gmtp_take
        self._blocks = library.gmtp_blocks
        self._rms_norm = library.gmtp_rms_norm
        self._add_rms_norm = library.gmtp_add_rms_norm
        self._gelu_mul = library.gmtp_gelu_mul
        self._rotate = library.gmtp_rotate
        self._softcap = library.gmtp_softcap
        self._attention = library.gmtp_attention
        self._store = library.gmtp_store

    @property
    def isa(self) -> str:
        """Name of the instruction set in use."""
        name: bytes = self.library.gmtp_isa()
        return name.decode()

    def select(self, isa: str) -> bool:
        """Use another instruction set; False when this CPU has it not. For tests."""
        return bool(self.library.gmtp_select(isa.encode()))

    @property
    def threads(self) -> int:
        """Threads of a call, the caller's among them."""
        count: int = self.library.gmtp_threads()
        return count

    def set_threads(self, count: int) -> None:
        """Share calls among ``count`` threads (0: one for each CPU this process may use)."""
        self.library.gmtp_set_threads(count or len(os.sched_getaffinity(0)))

    def take(self, weight: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """``(n, len(ids))``: products with the rows ``ids`` (int64) of the weight alone."""
        n, count = x.shape[0], ids.shape[0]
        y = torch.empty(n, count)
        self._take(weight, x.data_ptr(), n, ids.data_ptr(), count, y.data_ptr())
        return y

    def blocks(
        self, weight: int, size: int, x: torch.Tensor, blocks: torch.Tensor, repeat: int
    ) -> torch.Tensor:
        """``(pairs, size)``: row ``p`` is x row ``p // repeat`` times block ``blocks[p]``."""
        pairs = blocks.shape[0]
        y = torch.empty(pairs, size)
        self._blocks(weight, x.data_ptr(), pairs, repeat, blocks.data_ptr(), size, y.data_ptr())
        return y

    def levels4(
        self, groups: torch.Tensor, clips: tuple[float, ...], gain: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Levels ``(n, 32)`` int8 and scales ``(n,)`` float16 of groups ``(n, 32)`` of weights."""
        levels = torch.empty(groups.shape, dtype=torch.int8)
        scales = torch.empty(groups.shape[0], dtype=torch.float16)
        tried = (c_float * len(clips))(*clips)
        self.library.gmtp_levels4(
            groups.data_ptr(),
            groups.shape[0],
            ctypes.addressof(tried),
            len(clips),
            gain,
            levels.data_ptr(),
            scales.data_ptr(),
        )
        return levels, scales

    def values(
        self, weight: int, rows: torch.Tensor | slice, columns: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """``(rows, columns)`` in float32 or bfloat16: rows of a weight, by int64 ids or a range."""
        if isinstance(rows, slice):
            ids, first, count = None, rows.start, rows.stop - rows.start
        else:
            ids, first, count = rows.data_ptr(), 0, rows.shape[0]
        out = torch.empty(count, columns, dtype=dtype)
        self.library.gmtp_values(weight, ids, first, count, out.data_ptr(), KV_FORMATS[dtype])
        return out

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        eps: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x / rms(x) * weight`` over the last dimension.

        :param weight: ``(dim,)``, ``(rows, dim)`` that repeats over the rows of x, or None.
        """
        out = torch.empty_like(x) if out is None else out
        dim = x.shape[-1]
        address, rows = (None, 1) if weight is None else (weight.data_ptr(), weight.numel() // dim)
        self._rms_norm(x.data_ptr(), x.numel() // dim, dim, address, rows, eps, out.data_ptr())
        return out

    def add_rms_norm(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        eps: float,
        scalar: float = 1.0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``(residual + x / rms(x) * weight) * scalar``; ``out`` may be ``residual`` or ``x``."""
        out = torch.empty_like(x) if out is None else out
        dim = x.shape[-1]
        self._add_rms_norm(
            residual.data_ptr(),
            x.data_ptr(),
            x.numel() // dim,
            dim,
            None if weight is None else weight.data_ptr(),
            eps,
            scalar,
            out.data_ptr(),
        )
        return out

    def gated(self, x: torch.Tensor, width: int) -> torch.Tensor:
        """``gelu_tanh(gate) * up`` of a fused ``(n, 2 * width)``."""
        n = x.shape[0]
        out = torch.empty(n, width)
        gate = x.data_ptr()
        self._gelu_mul(gate, 2 * width, gate + 4 * width, 2 * width, n, width, out.data_ptr())
        return out

    def gelu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """``gelu_tanh(gate) * up`` of two ``(n, width)`` whose rows may lie apart."""
        n, width = gate.shape
        out = torch.empty(n, width)
        self._gelu_mul(
            gate.data_ptr(), gate.stride(0), up.data_ptr(), up.stride(0), n, width, out.data_ptr()
        )
        return out

    def rotate_(self, x: torch.Tensor, heads: int, angles: torch.Tensor) -> None:
        """Rotate the first ``heads`` heads of ``x (n, >= heads, d)`` in place.

        :param angles: ``(n, …, d / 2)`` complex64, adjacent pairs being one complex number.
        """
        self._rotate(x.data_ptr(), x.shape[0], heads, x.shape[-1], x.stride(0), angles.data_ptr())

    def softcap_(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """``cap * tanh(x / cap)`` in place."""
        self._softcap(x.data_ptr(), x.numel(), cap)
        return x

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        position: int,
        q_heads: int | None = None,
        window: int = 0,
        ring: int = 0,
        first: int = 0,
        k_scales: torch.Tensor | None = None,
        v_scales: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of a decoding pass, scale 1.

        Row ``i`` stands at ``position + i`` and sees positions from ``position + i - window + 1``
        (0 without a window) to ``position + i - first``.

        :param q: ``(n, >= q_heads, d)`` float32; its rows may lie apart.
        :param k: ``(kv_heads, rows, d)`` float32, bfloat16 or int8, rows contiguous, as ``v``.
        :param ring: size of the ring in which a position has slot ``position % ring``; 0: none.
        :param k_scales: ``(kv_heads, rows)`` float32 of int8 keys, as ``v_scales``.
        :return: ``(n, q_heads * d)`` float32.
        """
        n, heads, dim = q.shape
        heads = heads if q_heads is None else q_heads
        out = torch.empty(n, heads * dim)
        scaled = k_scales is not None and v_scales is not None
        arguments = Attention(
            q.data_ptr(),
            out.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            k_scales.data_ptr() if scaled and k_scales is not None else None,
            v_scales.data_ptr() if scaled and v_scales is not None else None,
            q.stride(0),
            k.stride(0),
            k_scales.stride(0) if k_scales is not None else 0,
            position,
            window,
            ring,
            first,
            n,
            heads,
            k.shape[0],
            dim,
            KV_FORMATS[k.dtype],
        )
        self._attention(ctypes.byref(arguments))
        return out

    def store(
        self,
        x: torch.Tensor,
        cache: torch.Tensor,
        position: int,
        ring: int = 0,
        scales: torch.Tensor | None = None,
    ) -> None:
        """Write ``x (n, heads, d)`` into rows ``position …`` of ``cache (heads, rows, d)``.

        :param scales: ``(heads, rows)`` float32, written with an int8 cache.
        """
        n, heads, dim = x.shape
        self._store(
            x.data_ptr(),
            x.stride(0),
            n,
            heads,
            dim,
            cache.data_ptr(),
            None if scales is None else scales.data_ptr(),
            KV_FORMATS[cache.dtype],
            cache.stride(0),
            0 if scales is None else scales.stride(0),
            position,
            ring,
        )

    def read(self, memory: torch.Tensor) -> int:
        """Read a tensor's memory once, for measuring bandwidth."""
        result: int = self.library.gmtp_read(
            memory.data_ptr(), memory.numel() * memory.element_size()
        )
        return result


def weight_address(weight: Weight) -> int:
    """Where a :class:`Weight` lies; it must be kept by its owner."""
    return ctypes.addressof(weight)


_found: list[Kernels | None] = []


def kernels() -> Kernels | None:
    """The kernels, looked for once; None when torch is to compute."""
    if not _found:
        library = find()
        _found.append(None if library is None else Kernels(library))
        if library is not None:
            log.info("CPU kernels: %s", library.gmtp_isa().decode())
    return _found[0]


__all__ = ["ABI", "Kernels", "KernelsUnusable", "Weight", "kernels", "open_library"]
