# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The polling thread, on real files and with sources and callbacks that fail or hang."""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jetson_tree import ORIN_NANO, JetsonTree

from gemma_mtp_ros.telemetry.policy import Decision, Level, PolicyConfig, parse_draft_cap
from gemma_mtp_ros.telemetry.reading import Reading
from gemma_mtp_ros.telemetry.sources import NullSource, Source, SysfsSource
from gemma_mtp_ros.telemetry.watchdog import Watchdog

PERIOD_S = 0.01
WAIT_S = 10.0
HOT = "sys/class/thermal/thermal_zone0/temp"


class Published:
    """Collects what a watchdog publishes."""

    def __init__(self) -> None:
        self.queue: queue.Queue[tuple[Reading, Decision]] = queue.Queue()

    def __call__(self, reading: Reading, decision: Decision) -> None:
        self.queue.put((reading, decision))

    def next(self) -> tuple[Reading, Decision]:
        return self.queue.get(timeout=WAIT_S)

    def until(self, wanted: Callable[[Decision], bool]) -> Decision:
        """The first decision that is wanted; fails after `WAIT_S`."""
        limit_s = time.monotonic() + WAIT_S
        while time.monotonic() < limit_s:
            decision = self.next()[1]
            if wanted(decision):
                return decision
        raise AssertionError(f"not published within {WAIT_S} s; last was {decision}")


class Scripted:
    """A source whose reads are functions, the last one repeated."""

    name = "scripted"

    def __init__(self, *reads: Callable[[], Reading]) -> None:
        self._reads = list(reads)

    def read(self) -> Reading:
        return (self._reads.pop(0) if len(self._reads) > 1 else self._reads[0])()

    def close(self) -> None:
        pass


def nothing_known() -> Reading:
    return NullSource().read()


def fails() -> Reading:
    raise RuntimeError("the bus is gone")


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def start() -> Iterator[Callable[..., Watchdog]]:
    """Starts watchdogs, and stops them after the test."""
    started: list[Watchdog] = []

    def start(
        source: Source,
        publish: Callable[[Reading, Decision], None],
        config: PolicyConfig | None = None,
    ) -> Watchdog:
        watchdog = Watchdog(source, config or PolicyConfig(min_dwell_s=0), publish, PERIOD_S)
        started.append(watchdog)
        watchdog.start()
        return watchdog

    yield start
    for watchdog in started:
        watchdog.stop()
        assert not watchdog.running


def test_a_file_that_changes_changes_the_decision(
    tmp_path: Path, published: Published, start: Callable[..., Watchdog]
) -> None:
    rules = parse_draft_cap(["HOT=2", "HOT@15W=1"])
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        watchdog = start(
            SysfsSource(tree.root), published, PolicyConfig("report", rules, min_dwell_s=0)
        )
        assert published.next()[1].level is Level.NOMINAL
        tree.write(HOT, "95000")
        assert published.until(lambda d: d.level is Level.HOT).draft_cap == 2
        tree.write("var/lib/nvpmodel/status", "pmode:0000")
        published.until(lambda d: d.draft_cap == 1)
        tree.write(HOT, "102000")
        assert published.until(lambda d: d.halt).level is Level.CRITICAL
        tree.write(HOT, "51000")
        published.until(lambda d: d.level is Level.NOMINAL and d.draft_cap == 7)
        for zone in range(9):
            tree.never_ready(f"sys/class/thermal/thermal_zone{zone}/temp")
        published.until(lambda d: d.level is Level.UNKNOWN)
        latest = watchdog.latest
        assert latest is not None
        assert latest[0].temperature_c is None
        assert latest[0].power_w == pytest.approx(9.25, abs=0.005)


def test_no_sensors_is_unknown(
    tmp_path: Path, published: Published, start: Callable[..., Watchdog]
) -> None:
    start(SysfsSource(tmp_path), published)
    reading, decision = published.next()
    assert (reading.source, decision.level, decision.draft_cap) == ("none", Level.UNKNOWN, 7)


def test_off_is_published_at_every_poll(
    published: Published, start: Callable[..., Watchdog]
) -> None:
    start(NullSource(), published, PolicyConfig("off"))
    readings = [published.next() for _ in range(3)]
    assert {decision.level for _, decision in readings} == {Level.DISABLED}
    stamps = [reading.stamp_s for reading, _ in readings]
    assert stamps == sorted(set(stamps))


def test_a_source_that_raises_is_unknown_and_is_read_again(
    published: Published, start: Callable[..., Watchdog], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        watchdog = start(Scripted(fails, fails, fails, nothing_known), published)
        decision = published.next()[1]
        assert decision.level is Level.UNKNOWN
        assert "source scripted failed: RuntimeError('the bus is gone')" in decision.reason
        published.until(lambda d: "failed" not in d.reason)
    assert watchdog.running
    assert len(caplog.records) == 1  # the same failure three times in a row
    assert caplog.records[0].exc_info is not None


def test_a_callback_that_raises_leaves_unknown_and_keeps_the_cap(
    tmp_path: Path, published: Published, start: Callable[..., Watchdog]
) -> None:
    failing = threading.Event()
    seen: queue.Queue[tuple[Reading, Decision] | None] = queue.Queue()

    def publish(reading: Reading, decision: Decision) -> None:
        if failing.is_set():
            seen.put(watchdog.latest)
            raise OSError("record closed")
        published(reading, decision)

    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        rules = parse_draft_cap(["NOMINAL=4"])
        watchdog = start(SysfsSource(tree.root), publish, PolicyConfig("report", rules))
        published.next()
        failing.set()
        seen.get(timeout=WAIT_S)
        latest = seen.get(timeout=WAIT_S)  # what the first failure left
        assert latest is not None
        assert (latest[1].level, latest[1].draft_cap) == (Level.UNKNOWN, 4)
        assert "record closed" in latest[1].reason
        failing.clear()
        published.until(lambda d: d.level is Level.NOMINAL)


def test_a_reading_that_cannot_be_decided_on_keeps_the_cap_and_is_not_published(
    published: Published,
) -> None:
    hot = Reading(0.0, 0.0, zones={"cpu": 98.0}, temperature_c=98.0, margin_c=1.0)
    broken = dataclasses.replace(hot, zones=None)  # type: ignore[arg-type]
    seen: list[Decision] = []

    def look() -> Reading:
        latest = watchdog.latest
        assert latest is not None
        seen.append(latest[1])
        return hot

    source = Scripted(lambda: hot, lambda: broken, look, lambda: hot)
    config = PolicyConfig("report", parse_draft_cap(["HOT=2"]))
    watchdog = Watchdog(source, config, published, PERIOD_S)
    watchdog.start()
    try:
        assert [published.next()[0], published.next()[0]] == [hot, hot]
    finally:
        watchdog.stop()
    assert (seen[0].level, seen[0].draft_cap) == (Level.UNKNOWN, 2)


def test_a_new_config_counts_at_once(published: Published) -> None:
    watchdog = Watchdog(NullSource(), PolicyConfig("off"), published, period_s=600.0)
    watchdog.start()
    try:
        assert published.next()[1].level is Level.DISABLED
        watchdog.set_config(PolicyConfig("report", override=Level.HOT))
        assert published.next()[1].level is Level.HOT
    finally:
        watchdog.stop()


def test_start_and_stop_are_idempotent(published: Published) -> None:
    watchdog = Watchdog(NullSource(), PolicyConfig(), published, period_s=600.0)
    assert watchdog.latest is None
    watchdog.stop()
    for _ in range(3):
        watchdog.start()
        published.next()
        watchdog.start()
        threads = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
        assert len(threads) == 1
        watchdog.stop()  # long before the period is over
        assert not threads[0].is_alive()
        watchdog.stop()
    assert published.queue.empty()


def test_the_callback_may_stop_the_watchdog() -> None:
    stopped = threading.Event()

    def publish(reading: Reading, decision: Decision) -> None:
        watchdog.stop()
        stopped.set()

    watchdog = Watchdog(NullSource(), PolicyConfig(), publish, PERIOD_S)
    watchdog.start()
    assert stopped.wait(WAIT_S)
    assert not watchdog.running


def test_a_restarted_watchdog_still_wants_to_see_the_board_cooled(
    tmp_path: Path, published: Published
) -> None:
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        tree.write(HOT, "103000")
        watchdog = Watchdog(SysfsSource(tree.root), PolicyConfig(min_dwell_s=0), published, 600.0)
        watchdog.start()
        assert published.next()[1].halt
        watchdog.stop()
        tree.write(HOT, "98000")
        watchdog.start()
        assert published.next()[1].halt
        watchdog.stop()


def test_a_source_that_hangs_publishes_nothing_and_is_left_behind(
    tmp_path: Path, published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    fifo = tmp_path / "hangs"
    os.mkfifo(fifo)
    hanging = threading.Event()

    def hang() -> Reading:
        hanging.set()
        with open(fifo, "rb") as file:  # blocks until somebody opens the other end
            file.read()
        return nothing_known()

    watchdog = Watchdog(Scripted(hang, nothing_known), PolicyConfig(), published, PERIOD_S)
    watchdog.start()
    assert hanging.wait(WAIT_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "watchdog"]
    watchdog.stop(timeout_s=0.05)
    assert "source scripted has not answered" in caplog.text
    assert published.queue.empty()
    with open(fifo, "wb"):
        pass
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert published.queue.empty()


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_period_that_is_none_is_refused(period_s: float) -> None:
    with pytest.raises(ValueError, match=r"is not above 0; 0\.5 polls twice a second"):
        Watchdog(NullSource(), PolicyConfig(), lambda reading, decision: None, period_s)


def test_telemetry_needs_neither_torch_nor_ros() -> None:
    code = (
        "import sys, gemma_mtp_ros.telemetry.watchdog\n"
        "print(sorted({'torch', 'transformers', 'rclpy', 'pydantic'} & set(sys.modules)))"
    )
    package = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
