# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What watching the board costs: CPU time of a reading, and of the watchdog at two polls a second.

Each board of test/fixtures is laid out as files, and this host is read as it is. Readings are timed
in a row, and each after a walk through more memory than the caches hold, as they are when a model
decodes beside: two of these a second, and a search for sensors every 30 s, are the share of a core.
Then the real watchdog runs at 2 Hz with its threads and its policy, and the CPU time of the whole
process counts. A virtual host, or one that others load, makes each waking up dear; so the watchdog
without any sensor is measured beside.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from gemma_mtp_ros.telemetry.discover import REDISCOVER_S
from gemma_mtp_ros.telemetry.policy import Decision, PolicyConfig
from gemma_mtp_ros.telemetry.reading import Reading
from gemma_mtp_ros.telemetry.sources import NullSource, Source, open_source
from gemma_mtp_ros.telemetry.watchdog import Watchdog

from .common import FEWER, Row, parser, report

PERIOD_S = 0.5
CACHE = 64 << 20
"""Bytes; more than the caches of the processors this runs on."""

TESTS = Path(__file__).resolve().parent.parent / "test"
HOST = "this_host"


class Cost(NamedTuple):
    """CPU ms of the first reading of a source, of one in a row, of one with cold caches."""

    search_ms: float
    reading_ms: float
    cold_ms: float
    source: str

    @property
    def share(self) -> float:
        """Of a core, at two readings a second."""
        return self.cold_ms / 1e3 / PERIOD_S + self.search_ms / 1e3 / REDISCOVER_S


def main() -> None:
    """Measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--readings", type=int, default=50, help="of each kind, per board")
    options_parser.add_argument("--seconds", type=float, default=10.0, help="at 2 Hz, per board")
    options_parser.add_argument(
        "--folder", type=Path, help="where boards are laid out (default: memory, /dev/shm)"
    )
    options_parser.set_defaults(threads=1)
    options = options_parser.parse_args()
    memory = Path("/dev/shm")
    folder = options.folder or (memory if memory.is_dir() else None)
    rows: list[Row] = []
    table = Table(title="Reading the sensors", title_justify="left", title_style="bold")
    for heading in ("board", "source", "search", "in a row", "cold", "share", "watchdog"):
        table.add_column(heading, justify="left" if heading in ("board", "source") else "right")
    shares: list[float] = []
    errors = Console(stderr=True)  # without a spinner, whose thread would be measured too
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        for name, root in boards(stack, scratch).items():
            errors.print(f"reading and watching {name}", style="dim", highlight=False)
            cost = measure(open_source("auto", root), options.readings)
            watched = at_two_hertz(open_source("auto", root), options.seconds)
            shares.append(cost.share)
            times = (cost.search_ms, cost.reading_ms, cost.cold_ms)
            table.add_row(
                *(name, cost.source, *(f"{ms:.2f} ms" for ms in times)),
                *(f"{share:.2%}" for share in (cost.share, watched)),
            )
            rows += [
                Row(f"telemetry.search_cpu_ms.{name}", cost.search_ms, "ms"),
                Row(f"telemetry.reading_cpu_ms.{name}", cost.reading_ms, "ms"),
                Row(f"telemetry.cold_reading_cpu_ms.{name}", cost.cold_ms, "ms"),
                Row(f"telemetry.share_at_2hz.{name}", cost.share, "of a core"),
                Row(f"telemetry.watchdog_share_at_2hz.{name}", watched, "of a core"),
            ]
        watched = at_two_hertz(NullSource(), options.seconds)
        table.add_row(*("no sensor", "none", "", "", "", "", f"{watched:.2%}"))
        rows.append(Row("telemetry.watchdog_share_at_2hz.no_sensor", watched, "of a core"))
    report(
        "What watching the board costs",
        [Row("telemetry.share_at_2hz", max(shares), "of a core", (FEWER, 0.01))],
        options.threads,
        options.json,
        table=table,
        in_table=rows,
        notes=[
            f"Boards are files in {folder or tempfile.gettempdir()}: the kernel's own work for a "
            "sensor (I2C, BPMP) is not in these figures.",
        ],
    )


def boards(stack: ExitStack, scratch: Path) -> dict[str, Path]:
    """Roots of the file trees: name -> folder. The last is this host."""
    sys.path.append(str(TESTS))
    layout: Any = importlib.import_module("jetson_tree")
    roots: dict[str, Path] = {}
    for board in (layout.ORIN_NANO, layout.AGX_ORIN, layout.AGX_THOR):
        roots[board] = stack.enter_context(layout.JetsonTree(scratch / board, board)).root
    return roots | {HOST: Path("/")}


def measure(source: Source, count: int) -> Cost:
    """CPU time of the readings of a source; medians of `count`."""
    memory = bytearray(CACHE)

    def once(cold: bool) -> float:
        if cold:
            bytes(memory)
        begin_ns = time.thread_time_ns()
        source.read()
        return (time.thread_time_ns() - begin_ns) / 1e6

    search_ms = once(cold=False)
    reading_ms = statistics.median(once(cold=False) for _ in range(count))
    cold_ms = statistics.median(once(cold=True) for _ in range(count))
    name = source.read().source
    source.close()
    return Cost(search_ms, reading_ms, cold_ms, name)


def at_two_hertz(source: Source, seconds: float) -> float:
    """CPU time of this process while the watchdog runs, as a share of the time.

    From the second poll on: the first one searches for the sensors.
    """
    moments: list[tuple[int, int]] = []
    done = threading.Event()
    wanted = 2 + max(round(seconds / PERIOD_S), 1)

    def note(reading: Reading, decision: Decision) -> None:
        moments.append((time.perf_counter_ns(), time.process_time_ns()))
        if len(moments) == wanted:
            done.set()

    watchdog = Watchdog(source, PolicyConfig(), note, PERIOD_S)
    watchdog.start()
    in_time = done.wait(seconds + 60)
    watchdog.stop()
    if not in_time:
        raise SystemExit(f"{len(moments)} polls in {seconds + 60:g} s: the host is overloaded")
    (begin_ns, begin_cpu_ns), (end_ns, end_cpu_ns) = moments[1], moments[wanted - 1]
    return (end_cpu_ns - begin_cpu_ns) / (end_ns - begin_ns)


if __name__ == "__main__":
    main()
