# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The control block: the rule of the draft limit, and records that are never torn."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_mtp_ros.control import (
    MODE_BYTES,
    REASON_BYTES,
    Control,
    ControlBlock,
    ControlDesk,
    Stage,
)


@pytest.fixture
def block() -> Iterator[ControlBlock]:
    made, fd = ControlBlock.create(Control())
    os.close(fd)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("control", "now_s", "limit"),
    [
        (Control(), 1e9, 7),  # nobody supervises: never stale
        (Control(draft_max_length=3), 0.0, 3),
        (Control(draft_cap=2, stamp_s=10.0), 12.0, 2),
        (Control(draft_cap=2, stamp_s=10.0), 12.001, 0),
        (Control(draft_cap=7, stamp_s=10.0, stale_draft_cap=1), 99.0, 1),
        (Control(draft_cap=5, draft_max_length=4, stamp_s=10.0), 10.0, 4),
        (Control(draft_cap=99, draft_max_length=99, stamp_s=10.0), 10.0, 7),
        (Control(draft_cap=5, stamp_s=10.0, stale_draft_cap=6, draft_max_length=4), 99.0, 4),
        (Control(draft_cap=-1, stamp_s=10.0), 10.0, 0),
        (Control(draft_cap=4, stamp_s=-math.inf), 10.0, 0),
    ],
)
def test_draft_limit(control: Control, now_s: float, limit: int) -> None:
    assert control.draft_limit(now_s) == limit


def test_a_record_is_read_as_it_was_written(block: ControlBlock) -> None:
    for cap in range(8):
        control = Control(cap, 0.25, True, "Motor heiß", 12.5, 6, 3.0, 1, 0.5, "25W")
        block.write(control)
        assert block.read() == control


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_a_long_reason_is_cut_between_characters(block: ControlBlock, character: str) -> None:
    block.write(Control(halt_reason="a" + character * REASON_BYTES))
    reason = block.read().halt_reason
    assert set(reason[1:]) == {character}
    assert REASON_BYTES - 4 < len(reason.encode()) <= REASON_BYTES


@pytest.mark.parametrize("character", ["x", "é", "€", "😀"])
def test_a_long_mode_is_cut_between_characters(block: ControlBlock, character: str) -> None:
    block.write(Control(power_mode="a" + character * MODE_BYTES, halt_reason="hot"))
    mode = block.read().power_mode
    assert set(mode[1:]) == {character}
    assert MODE_BYTES - 4 < len(mode.encode()) <= MODE_BYTES
    assert block.read().halt_reason == "hot"


def test_a_write_that_was_never_finished_is_not_seen() -> None:
    reader, fd = ControlBlock.create(Control(draft_cap=1))
    writer = ControlBlock(fd)
    os.close(fd)
    writer._sequence = reader._sequence
    writer.write(Control(draft_cap=2))
    whole = writer._map[:]
    writer.write(Control(draft_cap=3))
    finished = writer._map[:]
    changed = [i for i in range(len(whole)) if whole[i] != finished[i]]
    assert changed
    for count in range(1, len(changed)):  # stopped after each byte in turn
        writer._map[:] = whole
        for i in changed[:count]:
            writer._map[i : i + 1] = finished[i : i + 1]
        assert reader.read().draft_cap == 2
    writer._map[:] = finished
    assert reader.read().draft_cap == 3
    writer.close()
    reader.close()


def test_a_block_with_no_whole_record_keeps_the_last_one(block: ControlBlock) -> None:
    block.write(Control(draft_cap=4))
    assert block.read().draft_cap == 4
    block._map[:1024] = b"\xff" * 1024
    assert block.read().draft_cap == 4


WRITER = """
import sys
from gemma_mtp_ros.control import Control, ControlBlock
block = ControlBlock(int(sys.argv[1]))
block._sequence = 1
print("ready", flush=True)
n = 0
while True:
    n += 1
    first = (n % 8, n / 8, n % 2 == 1, str(n) * 10)
    block.write(Control(*first, n / 4, n % 8, n / 2, n % 8, 1.0, str(n), n))
"""


def test_no_read_is_torn_while_another_process_writes() -> None:
    block, fd = ControlBlock.create(Control())
    root = str(Path(__file__).parent.parent)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(fd)],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    os.close(fd)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"ready\n"
        seen = set()
        latest = 0
        while len(seen) < 2000:
            control = block.read()
            n = round(control.pause_s * 8)
            if n == 0:
                continue
            assert tuple(control) == (
                *(n % 8, n / 8, n % 2 == 1, str(n) * 10, n / 4, n % 8, n / 2, n % 8, 1.0),
                str(n),
                n,
            )
            assert n >= latest
            latest = n
            seen.add(n)
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
        block.close()


def test_beats_and_stage_cross_to_the_other_mapping() -> None:
    host, fd = ControlBlock.create(Control())
    engine = ControlBlock(fd)
    os.close(fd)
    assert (host.heartbeat(), host.stage()) == (0, Stage.STARTING)
    engine.beat(Stage.LOADING)
    engine.beat(Stage.DECODING)
    assert (host.heartbeat(), host.stage()) == (2, Stage.DECODING)
    assert host.read() == Control()
    engine.close()
    host.close()


def test_the_block_has_no_name_in_a_file_system() -> None:
    before = set(os.listdir("/dev/shm"))
    block, fd = ControlBlock.create(Control())
    assert set(os.listdir("/dev/shm")) == before
    os.close(fd)
    block.close()


def test_the_desk_keeps_the_record_over_engines() -> None:
    desk = ControlDesk(Control())
    desk.update(draft_cap=3)
    first, fd = ControlBlock.create(desk.control)
    os.close(fd)
    assert first.read().draft_cap == 3
    desk.update(draft_cap=4)
    desk.attach(first)
    assert first.read().draft_cap == 4
    desk.update(pause_s=0.5)
    assert first.read() == desk.control == Control(draft_cap=4, pause_s=0.5)
    desk.attach(None)
    first.close()
    desk.update(draft_cap=5)
    assert desk.control.draft_cap == 5
