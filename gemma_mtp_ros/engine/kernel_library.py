# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The C interface of the kernels (``csrc/kernels.h``) as ctypes sees it."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

ABI = 1
"""Version of the interface in ``csrc/kernels.h`` that this package speaks."""


class Weight(ctypes.Structure):
    """``GmtpWeight`` of ``csrc/kernels.h``. The tensors that it points to must outlive it."""

    _fields_ = (
        ("data", c_void_p),
        ("scales", c_void_p),
        ("out", c_int64),
        ("in_", c_int64),
        ("stride", c_int64),
        ("scale_stride", c_int64),
        ("gain", c_float),
        ("format", c_int32),
    )


class Attention(ctypes.Structure):
    """``GmtpAttention`` of ``csrc/kernels.h``."""

    _fields_ = (
        ("q", c_void_p),
        ("out", c_void_p),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_scales", c_void_p),
        ("v_scales", c_void_p),
        ("q_stride", c_int64),
        ("head_stride", c_int64),
        ("scale_stride", c_int64),
        ("position", c_int64),
        ("window", c_int64),
        ("ring", c_int64),
        ("first", c_int64),
        ("n", c_int32),
        ("q_heads", c_int32),
        ("kv_heads", c_int32),
        ("dim", c_int32),
        ("format", c_int32),
    )


PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "gmtp_abi": (c_int32, ()),
    "gmtp_isa": (c_char_p, ()),
    "gmtp_select": (c_int32, (c_char_p,)),
    "gmtp_set_threads": (None, (c_int32,)),
    "gmtp_threads": (c_int32, ()),
    "gmtp_product": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "gmtp_take": (None, (c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p)),
    "gmtp_blocks": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p),
    ),
    "gmtp_levels4": (
        None,
        (c_void_p, c_int64, c_void_p, c_int32, c_float, c_void_p, c_void_p),
    ),
    "gmtp_values": (None, (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int32)),
    "gmtp_rms_norm": (None, (c_void_p, c_int64, c_int64, c_void_p, c_int64, c_float, c_void_p)),
    "gmtp_add_rms_norm": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_float, c_float, c_void_p),
    ),
    "gmtp_gelu_mul": (
        None,
        (c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_void_p),
    ),
    "gmtp_rotate": (None, (c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p)),
    "gmtp_softcap": (None, (c_void_p, c_int64, c_float)),
    "gmtp_attention": (None, (c_void_p,)),
    "gmtp_store": (
        None,
        (
            *(c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_void_p),
            *(c_int32, c_int64, c_int64, c_int64, c_int64),
        ),
    ),
    "gmtp_read": (c_uint64, (c_void_p, c_int64)),
}


class KernelsUnusable(Exception):
    """The library cannot be used; the text says why."""


def open_library(file: Path) -> ctypes.CDLL:
    """Load the library, check its version and declare its functions.

    :raises KernelsUnusable: when it is missing, of another version, or for another machine.
    """
    if not file.is_file():
        raise KernelsUnusable(f"{file} is not there (no C++ compiler at installation?)")
    try:
        library = ctypes.CDLL(str(file.resolve()))
        library.gmtp_abi.restype = c_int32
        version = library.gmtp_abi()
        if version != ABI:
            raise KernelsUnusable(
                f"{file} has interface {version} and this package needs {ABI}; build it again"
            )
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise KernelsUnusable(f"{file} cannot be loaded ({error})") from error
    return library
