# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Load a target, answer once, and print as JSON what that took: run by test_memory."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import sys
from pathlib import Path

from engine_tools import load, request, run

from gemma_mtp_ros.engine.checkpoint import Weights


def status(key: str) -> int:
    """A size of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def cached(file: Path) -> int:
    """Bytes of a file in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = file.stat().st_size
    with file.open("rb") as opened:
        area = libc.mmap(
            None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, opened.fileno(), 0
        )
    pages = -(-size // mmap.PAGESIZE)
    resident = (ctypes.c_ubyte * pages)()
    if libc.mincore(ctypes.c_void_p(area), ctypes.c_size_t(size), resident):
        raise OSError(ctypes.get_errno(), "mincore")
    libc.munmap(ctypes.c_void_p(area), ctypes.c_size_t(size))
    return sum(page & 1 for page in resident) * mmap.PAGESIZE


def main() -> None:
    """Measure."""
    folder, weights, ple, small = Path(sys.argv[1]), sys.argv[2], sys.argv[3], Path(sys.argv[4])
    largest = max(
        math.prod(entry.shape) * 2
        for entry in Weights(folder, "model").text_entries()
        if ple == "memory" or "per_layer" not in entry.key
    )
    before = status("VmRSS")
    # What torch, transformers and the allocator take for any model at all.
    run(load(small, weights=weights), request(raw=True, max_new_tokens=20))
    libraries = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now
    engine = load(
        folder,
        weights=weights,
        ple=ple,
        max_context=1024,
        prefill_chunk=256,
        reproducible=False,
        structured_output=False,  # its masks count by the vocabulary
        cache_max_mib=64,
    )
    peak = status("VmHWM") - before
    file = folder / "model.safetensors"
    in_cache = cached(file)
    Path("/proc/self/clear_refs").write_text("5")
    run(engine, request("x" * 900, raw=True, max_new_tokens=60))
    memory = engine.memory
    print(
        json.dumps(
            {
                **memory.model_dump(),
                "total": memory.total,
                "peak": peak,
                "grown": status("VmHWM") - libraries,
                "largest_tensor": largest,
                "cached_file": in_cache,
            }
        )
    )


if __name__ == "__main__":
    main()
