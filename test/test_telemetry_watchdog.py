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

from gemma_mtp_ros.telemetry.files import VALUE_LIMIT, FileTree
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
        assert "Source scripted failed: RuntimeError('the bus is gone')." in decision.reason
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
    now_s = time.monotonic()
    hot = Reading(now_s, 0.0, zones={"cpu": 98.0}, temperature_c=98.0, margin_c=1.0)
    broken = dataclasses.replace(hot, zones=None)  # type: ignore[arg-type]
    seen: list[Decision] = []

    def look() -> Reading:
        latest = watchdog.latest
        assert latest is not None
        seen.append(latest[1])
        return hot

    source = Scripted(lambda: hot, lambda: broken, look, lambda: hot)
    config = PolicyConfig("report", parse_draft_cap(["HOT=2"]))
    watchdog = Watchdog(source, config, published, period_s=0.2)
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


class SlowBus(FileTree):
    """Opens files as most programs do: a read that has to wait blocks in the kernel."""

    def read(self, path: str, limit: int = VALUE_LIMIT) -> bytes | None:
        try:
            with open(self.root / path, "rb", buffering=0) as file:
                return file.read(limit)
        except OSError:
            return None


@pytest.fixture
def slow_board(tmp_path: Path) -> Iterator[tuple[JetsonTree, SysfsSource]]:
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        for zone in (2, 3, 4):
            tree.write(f"sys/class/thermal/thermal_zone{zone}/temp", "45000")
        source = SysfsSource(tree.root)
        source._tree = SlowBus(tree.root)
        yield tree, source
        if HOT in {str(path.relative_to(tree.root)) for path in tree._fifos}:
            tree.answer(HOT, b"45000")


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "telemetry reader"]


def test_a_read_that_blocks_leaves_the_watchdog_deciding(
    slow_board: tuple[JetsonTree, SysfsSource],
    published: Published,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree, source = slow_board
    config = PolicyConfig("report", parse_draft_cap(["NOMINAL=3", "UNKNOWN=5"]), min_dwell_s=0)
    watchdog = Watchdog(source, config, published, PERIOD_S, stale_after_s=0.3)
    watchdog.start()
    try:
        assert published.next()[1].level is Level.NOMINAL
        tree.never_ready(HOT)  # opened before this, or not: the next read hangs
        levels = []
        while not levels or levels[-1] is not Level.UNKNOWN:
            reading, decision = published.next()
            levels.append(decision.level)
        assert set(levels) == {Level.NOMINAL, Level.UNKNOWN}
        assert levels.count(Level.NOMINAL) > 1  # the last reading counts for a while
        assert reading.age_s(time.monotonic()) > 0.3
        assert (reading.temperature_c, reading.power_w, reading.source) == (None, None, "sysfs")
        assert "Source sysfs has given no reading for 0." in decision.reason
        assert decision.draft_cap == 3  # not loosened
        before = reading.stamp_s
        for _ in range(5):  # and it goes on stamping
            reading, decision = published.next()
            assert (decision.level, reading.stamp_s) == (Level.UNKNOWN, before)
            assert len(readers()) == 1
        assert caplog.text.count("source sysfs does not answer") == 1

        tree.answer(HOT, b"60000")
        tree.write(HOT, "61000")
        published.until(lambda d: d.level is Level.NOMINAL)
        while published.next()[0].temperature_c != 61:
            pass  # fails after WAIT_S without a decision, or at the time limit of the test
    finally:
        watchdog.stop()
    assert readers() == []


def test_a_reader_that_hangs_is_left_behind_and_taken_up_again(
    slow_board: tuple[JetsonTree, SysfsSource],
    published: Published,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tree, source = slow_board
    tree.never_ready(HOT)
    watchdog = Watchdog(
        source, PolicyConfig(min_dwell_s=0), published, PERIOD_S, stale_after_s=0.05
    )
    for _ in range(3):
        watchdog.start()
        reading, decision = published.next()
        assert decision.level is Level.UNKNOWN
        assert "Source sysfs has given no reading for" in decision.reason
        assert reading.temperature_c is None
        watchdog.stop(timeout_s=0.05)
        assert not watchdog.running
        assert "source sysfs has not answered" in caplog.text
        assert len(readers()) == 1
        while not published.queue.empty():
            published.queue.get()
    watchdog.start()
    tree.answer(HOT, b"60000")
    tree.write(HOT, "61000")
    published.until(lambda d: d.level is Level.NOMINAL)
    watchdog.stop()
    assert readers() == []


def test_a_reader_left_behind_ends_when_its_read_comes_back(
    slow_board: tuple[JetsonTree, SysfsSource], published: Published
) -> None:
    tree, source = slow_board
    tree.never_ready(HOT)
    closed = threading.Event()
    source.close = closed.set  # type: ignore[method-assign]
    watchdog = Watchdog(source, PolicyConfig(), published, PERIOD_S, stale_after_s=0.05)
    watchdog.start()
    published.next()
    watchdog.stop(timeout_s=0.05)
    (reader,) = readers()
    assert not closed.is_set()
    count = published.queue.qsize()
    tree.answer(HOT, b"60000")
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert closed.is_set()
    assert published.queue.qsize() == count


def test_stopping_closes_the_source_and_starting_reads_it_again(published: Published) -> None:
    source = Closing()
    watchdog = Watchdog(source, PolicyConfig(), published, PERIOD_S)
    for number in (1, 2):
        watchdog.start()
        published.next()
        watchdog.stop()
        assert source.closed == number
    assert readers() == []


class Closing(NullSource):
    def __init__(self) -> None:
        super().__init__()
        self.closed = 0

    def close(self) -> None:
        self.closed += 1
        raise OSError("the bus is gone")


def test_how_old_a_reading_may_be() -> None:
    def watchdog(period_s: float) -> Watchdog:
        return Watchdog(NullSource(), PolicyConfig(), lambda reading, decision: None, period_s)

    assert [watchdog(period_s).stale_after_s for period_s in (0.1, 0.5, 2.0)] == [2.0, 2.0, 6.0]


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
