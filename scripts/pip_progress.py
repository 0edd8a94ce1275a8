# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Condenses what `pip install --progress-bar raw` prints (standard input) to a line of progress.

On a terminal one line is rewritten; elsewhere one line is printed per large file.
"""

import re
import sys

LARGE_MB = 20
live = sys.stdout.isatty()
files = 0
total_mb = 0.0
name = ""
size_mb = 0.0


def show(text: str, keep: bool) -> None:
    """Show a line; keep: do not write over it."""
    if live:
        sys.stdout.write("\r\033[K      " + text[:90] + ("\n" if keep else ""))
    elif keep:
        sys.stdout.write("      " + text + "\n")
    sys.stdout.flush()


FILE = re.compile(r"\s*(?:Downloading|Using cached|Processing) (?:.*/)?([^/\s]+\.(?:whl|tar\.gz))")

for line in sys.stdin:
    if found := FILE.match(line):
        files += 1
        name = "-".join(found[1].split("-")[:2])
        show(f"{files} files, {total_mb:.0f} MB: {name}", keep=False)
    elif found := re.match(r"Progress (\d+) of (\d+)", line):
        done_mb, size_mb = int(found[1]) / 1e6, int(found[2]) / 1e6
        finished = found[1] == found[2]
        if finished:
            total_mb += size_mb
        show(f"{name}: {done_mb:.0f} of {size_mb:.0f} MB", keep=finished and size_mb >= LARGE_MB)
    elif line.startswith("Installing collected packages:"):
        patience = ", which takes minutes" if files > 50 else ""
        show(f"{files} files, {total_mb:.0f} MB downloaded; unpacking{patience}", keep=True)
show("", keep=False)
