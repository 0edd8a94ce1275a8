# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that has to be seen on a GPU, in one run of under 8 minutes.

Correctness first: every precision and both reproducible modes on small random pairs, recorded
passes against eager ones and against transformers. Then speed at the shapes of E4B, E2B and 12B,
with drafts of an oracle; transformers' assisted generation beside it at E4B size. Each section has
a limit of time and fails for itself alone; what is known is written after each.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from gemma_mtp_ros.cli.figures import machine, write_rows

from .common import FEWER, Row, parser, report
from .gpu_sections import Check, OutOfTimeError, Section, assisted, correct, speed
from .gpu_shapes import B12, E2B, E4B

SECTION_S = 75.0
"""Longest time of a section."""

NO_GPU = (
    "this torch sees no CUDA device; run on a machine with a GPU and a torch built for it, or try "
    "the script itself with --device cpu --small"
)


def sections() -> dict[str, Section]:
    """What is run, in this order: what matters most comes first."""
    found: dict[str, Section] = {
        f"correct.{shape.name}": partial(correct, shape) for shape in (E4B, B12)
    }
    found["speed.e4b.bfloat16"] = partial(speed, E4B, "bfloat16")
    found["speed.e4b.int4"] = partial(speed, E4B, "int4")
    found["assisted.e4b"] = partial(assisted, E4B)
    for shape in (E2B, B12):
        for precision in ("bfloat16", "int4"):
            found[f"speed.{shape.name}.{precision}"] = partial(speed, shape, precision)
    return found


def run_all(
    check: Check, chosen: dict[str, Section], seconds: float, show: Callable[[list[Row]], None]
) -> tuple[list[Row], int]:
    """Run sections; one that fails or runs out of time gives a row that says so.

    :param show: called with all rows after each section.
    :return: the rows, and how many sections did not end well.
    """
    rows: list[Row] = []
    failed = 0
    ends = time.monotonic() + seconds
    for name, section in chosen.items():
        begin = time.monotonic()
        check.ends_s = min(ends, begin + SECTION_S)
        print(f"{name} ...", file=sys.stderr, flush=True)
        why = None
        try:
            check.beat()
            with closing(section(check)) as found:  # leaves inference mode even when stopped
                for row in found:
                    rows.append(row)
                    check.beat()
        except OutOfTimeError as error:
            why = f"out of time: {error}"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            failed += 1
            rows.append(Row(f"{name}.failed", 1.0, "", (FEWER, 0.0)))
            check.notes.append(f"{name} failed: {why.splitlines()[0]}")
        rows.append(Row(f"{name}.took", time.monotonic() - begin, "s"))
        gc.collect()
        if check.device.type == "cuda":
            torch.cuda.empty_cache()
        show(rows)
    return rows, failed


def main() -> int:
    """Check and report; 0 if every section ended, 1 if not, 2 without a GPU."""
    made: argparse.ArgumentParser = parser(__doc__.splitlines()[0])
    made.set_defaults(json=Path("gpu_check.json"))
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    made.add_argument("--small", action="store_true", help="small shapes, to try the script")
    made.add_argument("--minutes", type=float, default=7.5, help="stop after so long")
    made.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    options = made.parse_args()
    if options.device == "cpu" and not options.small:
        made.error("--device cpu is to try the script, in small shapes; add --small")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"gpu_check: {NO_GPU}", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    device = torch.device(options.device)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else None
    check = Check(device, options.small, options.tokens)
    described = machine(options.threads, gpu)
    show = partial(write_rows, options.json, described)
    rows, failed = run_all(check, sections(), options.minutes * 60.0, show)
    report("GPU check", rows, options.threads, options.json, notes=check.notes, gpu=gpu)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
