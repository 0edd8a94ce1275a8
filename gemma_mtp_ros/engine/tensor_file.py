# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors of a safetensors file, read into memory of our own without leaving the file in memory.

A memory-mapped or plainly read file stays in the page cache, and on a board whose GPU shares the
memory that cache stands in the way of CUDA's allocations. So each range is read with ``pread`` and
dropped from the cache at once.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

PIECE = 16 * 2**20
"""Bytes read between two signs of life; a multiple of every item size."""

READAHEAD = 2 * 2**20
"""Bytes around a range that the kernel may have read along with it."""

ROW_CACHE = 64 * 2**20
"""Bytes of rows that may gather in the page cache before they are dropped."""

# Those that weights and token tables come in; the others are quantised forms.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and how large it is."""

    file: Path
    key: str
    shape: tuple[int, ...]
    stored: str
    """Name of the data type in the file."""
    begin: int
    """First byte, counted from the start of the file."""
    bytes: int

    @property
    def dtype(self) -> torch.dtype | None:
        """The data type, or None for one that is not a plain number."""
        return DTYPES.get(self.stored)

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the first dimension."""
        return self.bytes // max(1, self.shape[0])


def tensor_entries(file: Path) -> list[TensorEntry]:
    """Read the header of a safetensors file.

    The library checks it: lengths, offsets without gap or overlap up to the end of the file, data
    types, and sizes that agree with the shapes.

    :raises OSError, safetensors.SafetensorError: when the file is cut short or damaged.
    """
    with safetensors.safe_open(file, framework="pt"):
        pass
    with file.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(8))
        header = json.loads(raw.read(length))
    header.pop("__metadata__", None)
    return [
        TensorEntry(
            file,
            key,
            tuple(info["shape"]),
            info["dtype"],
            8 + length + info["data_offsets"][0],
            info["data_offsets"][1] - info["data_offsets"][0],
        )
        for key, info in header.items()
    ]


def drop_cache(fd: int, begin: int, end: int) -> None:
    """Let the kernel forget the pages of ``begin .. end``, the partly covered ones too."""
    if hasattr(os, "posix_fadvise"):
        begin -= begin % mmap.PAGESIZE
        end += -end % mmap.PAGESIZE
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_DONTNEED)


def fill(fd: int, begin: int, out: memoryview) -> None:
    """Read bytes from ``begin`` until ``out`` is full.

    :raises OSError: also when the file ends before.
    """
    done = 0
    while done < len(out):
        count = os.preadv(fd, [out[done:]], begin + done)
        if count == 0:
            raise OSError(f"it ends at byte {begin + done}")
        done += count


def is_finite(values: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite; takes no memory, and NaN wins a comparison here."""
    if not values.is_floating_point() or values.numel() == 0:
        return True
    least, most = values.aminmax()
    return math.isfinite(least.item()) and math.isfinite(most.item())


def read_range(
    entry: TensorEntry, skip: int, shape: tuple[int, ...], beat: Callable[[int], None]
) -> torch.Tensor | None:
    """Read a part of a tensor that begins ``skip`` bytes after its start.

    :param shape: of the part; its dtype is the file's.
    :param beat: called with the bytes read after each piece.
    :return: the part in fresh memory, or None if a value is not finite.
    :raises OSError: when it cannot be read.
    """
    assert entry.dtype is not None
    out = torch.empty(shape, dtype=entry.dtype)
    raw = out.view(-1).view(torch.uint8)
    buffer = raw.numpy().data
    begin = entry.begin + skip
    fd = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for at in range(0, len(buffer), PIECE):
            end = min(at + PIECE, len(buffer))
            fill(fd, begin + at, buffer[at:end])
            last = end == len(buffer)
            # From before the piece: a large folio may reach over its border.
            drop_cache(fd, max(0, begin + at - READAHEAD), begin + end + (READAHEAD if last else 0))
            if not is_finite(raw[at:end].view(entry.dtype)):
                return None
            beat(end - at)
    finally:
        os.close(fd)
    return out


class RowFile:
    """A two-dimensional tensor that stays on disk and is read row by row.

    For one thread. Rows lately read may stay in the page cache, at most :data:`ROW_CACHE` bytes
    of them.
    """

    def __init__(self, entry: TensorEntry, refuse: Callable[[str], Exception]) -> None:
        """
        :param refuse: makes the exception to raise, from what is wrong.
        :raises OSError: when the file cannot be opened.
        """
        assert entry.dtype is not None
        self.count, self.width = entry.shape
        self.dtype: torch.dtype = entry.dtype
        self._entry = entry
        self._refuse = refuse
        self._unread = ROW_CACHE
        self._fd = os.open(entry.file, os.O_RDONLY | os.O_CLOEXEC)
        self._finalizer = weakref.finalize(self, os.close, self._fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, entry.begin, entry.bytes, os.POSIX_FADV_RANDOM)

    def rows(self, ids: Sequence[int], out: torch.Tensor | None = None) -> torch.Tensor:
        """Rows ``ids``, each one read of ``row_bytes``.

        :param out: memory to use, ``(len(ids), width)`` in the file's dtype on the CPU.
        :return: ``(len(ids), width)`` in the file's dtype.
        :raises IndexError: for a row that the tensor does not have.
        :raises CheckpointError: when the file cannot be read any more, or a value is not finite.
        """
        for i in ids:
            if not 0 <= i < self.count:
                raise IndexError(
                    f"row {i} of {self._entry.key} was asked for, which has rows 0 to "
                    f"{self.count - 1}; give a token id of this model"
                )
        if out is None:
            out = torch.empty(len(ids), self.width, dtype=self.dtype)
        size, start = self._entry.row_bytes, self._entry.begin
        if len(ids) > 1 and hasattr(os, "posix_fadvise"):
            # The disk works on all of them at once.
            for i in set(ids):
                os.posix_fadvise(self._fd, start + i * size, size, os.POSIX_FADV_WILLNEED)
        buffer = out.view(-1).view(torch.uint8).numpy().data
        try:
            for place, i in enumerate(ids):
                fill(self._fd, start + i * size, buffer[place * size : (place + 1) * size])
        except OSError as error:
            raise self._refuse(f"can no longer be read ({error})") from error
        self._unread -= len(ids) * size
        if self._unread < 0:
            self._unread = ROW_CACHE
            drop_cache(self._fd, start, start + self._entry.bytes)
        if not is_finite(out):
            raise self._refuse("holds NaN or infinity")
        return out

    def close(self) -> None:
        """Close the file; done by itself when the object goes."""
        self._finalizer()
