# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces: what is written is what is read, whatever happened to the file; and their replay."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetson_tree import ORIN_NANO, JetsonTree
from still_clock import Clock

from gemma_mtp_ros.telemetry.reading import (
    HYSTERESIS_RANGE_C,
    TEMPERATURE_RANGE_C,
    TRIP_RANGE_C,
    Reading,
    Throttle,
    Trips,
)
from gemma_mtp_ros.telemetry.replay import ReplaySource
from gemma_mtp_ros.telemetry.sources import SysfsSource, open_source
from gemma_mtp_ros.telemetry.trace import Header, Line, TraceError, TraceReader, TraceWriter, check

NAMES = ["trace.jsonl", "trace.jsonl.gz"]


def number(low: float, high: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(low, high)


def zones(low: float, high: float) -> st.SearchStrategy[dict[str, float | None]]:
    return st.dictionaries(st.text(max_size=12), number(low, high), max_size=4)


celsius = number(*TEMPERATURE_RANGE_C)
margin = number(-250.0, 250.0)
megahertz = number(0.0, 1e5)
positive = number(0.0, 1e9)
name = st.none() | st.text(max_size=20)
stamp = st.floats(-1e11, 1e11)
READINGS = st.builds(
    Reading,
    stamp_s=stamp,
    wall_s=stamp,
    source=st.text(max_size=20),
    note=st.text(max_size=20),
    board=name,
    zones=zones(*TEMPERATURE_RANGE_C),
    trips=st.dictionaries(
        st.text(max_size=12),
        st.builds(
            Trips,
            throttle_c=number(*TRIP_RANGE_C),
            critical_c=number(*TRIP_RANGE_C),
            hysteresis_c=number(*HYSTERESIS_RANGE_C),
        ),
        max_size=4,
    ),
    hottest_zone=name,
    temperature_c=celsius,
    margin_zone=name,
    margin_c=margin,
    critical_margin_c=margin,
    rails=zones(0.0, 5000.0),
    power_w=number(0.0, 5000.0),
    gpu_clock_mhz=megahertz,
    gpu_max_clock_mhz=megahertz,
    gpu_load=number(0.0, 1.0),
    memory_clock_mhz=megahertz,
    throttle=st.sampled_from(Throttle),
    throttle_reason=st.text(max_size=20),
    over_current_events=st.none() | st.integers(0, 2**63 - 1),
    over_current_per_s=positive,
    power_mode=name,
    round_s=positive,
    draft_length=number(0.0, 7.0),
    tokens_per_s=positive,
)


@settings(max_examples=100, deadline=None)
@given(READINGS)
def test_a_reading_and_its_line_are_the_same(reading: Reading) -> None:
    line = Line.of(reading).encoded()
    assert b"\n" not in line
    assert Line.model_validate_json(line).reading() == reading


def test_every_field_of_a_reading_is_in_a_line() -> None:
    assert list(Line.model_fields) == [field.name for field in dataclasses.fields(Reading)]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([*Line.model_fields, "novelty"]), junk, max_size=8))
def test_rubbish_in_a_line_is_unknown_and_never_absurd(values: dict[str, Any]) -> None:
    values |= {"stamp_s": 1.0, "wall_s": 2.0}
    reading = Line.model_validate_json(json.dumps(values)).reading()
    for value in (*reading.zones.values(), reading.temperature_c):
        assert value is None or -40 <= value <= 150
    for value in (reading.margin_c, reading.critical_margin_c):
        assert value is None or abs(value) <= 250
    for value in (reading.power_w, reading.round_s, reading.gpu_clock_mhz, *reading.rails.values()):
        assert value is None or 0 <= value < math.inf
    assert isinstance(reading.throttle, Throttle)
    assert isinstance(reading.note, str)
    again = Line.model_validate_json(Line.of(reading).encoded()).reading()
    assert again == reading


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ('"zones":{"cpu":NaN,"gpu":-256,"tj":"hot","soc":50}', {"soc": 50.0}),
        ('"zones":[50]', {}),
        ('"zones":{"cpu":1e999}', {}),
        ('"zones":{"cpu":true,"gpu":150.1,"soc":' + "9" * 400 + "}", {}),
    ],
)
def test_rubbish_temperatures(text: str, known: dict[str, float]) -> None:
    reading = Line.model_validate_json(f'{{"stamp_s":1,"wall_s":1,{text}}}').reading()
    assert {zone: value for zone, value in reading.zones.items() if value is not None} == known


HEADER = Header(period_s=0.5, source="sysfs", board="Board")


def series(count: int, step_s: float = 0.5) -> list[Reading]:
    """Readings from 100 s of the clock on, warming by a degree each."""
    return [
        Reading(
            100.0 + step_s * i,
            1e9 + step_s * i,
            source="sysfs",
            zones={"cpu": 50.0 + i, "cv0": None},
            temperature_c=50.0 + i,
            margin_c=49.0 - i,
            trips={"cpu": Trips(99.0, 104.5)},
            throttle=Throttle.NO,
            power_mode="15W",
        )
        for i in range(count)
    ]


def write(path: Path, readings: list[Reading]) -> Path:
    with TraceWriter(path, HEADER) as writer:
        for reading in readings:
            writer.write(reading)
    return path


def damaged(path: Path, number: int, content: bytes) -> Path:
    """Replace a line of a trace."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = content
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_of_a_board(tmp_path: Path, name: str) -> None:
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        source = SysfsSource(tree.root)
        readings = [source.read() for _ in range(3)]
    path = write(tmp_path / name, readings)
    reader = TraceReader(path)
    assert reader.header.version == 1
    assert (reader.header.source, reader.header.board) == ("sysfs", "Board")
    assert list(reader) == readings
    summary = check(path)
    assert (summary.count, summary.cut) == (3, 0)
    assert summary.duration_s == readings[2].stamp_s - readings[0].stamp_s


@pytest.mark.parametrize("name", NAMES)
def test_each_line_is_in_the_file_at_once(tmp_path: Path, name: str) -> None:
    readings = series(3)
    with TraceWriter(tmp_path / name, Header(period_s=0.5)) as writer:
        for count, reading in enumerate(readings, 1):
            writer.write(reading)
            assert list(TraceReader(tmp_path / name)) == readings[:count]


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_that_breaks_off_anywhere(tmp_path: Path, name: str) -> None:
    readings = series(4)
    whole = write(tmp_path / name, readings).read_bytes()
    path = tmp_path / f"cut-{name}"
    with TraceWriter(tmp_path / f"header-{name}", HEADER):
        pass
    header = (tmp_path / f"header-{name}").stat().st_size
    counts = set()
    refused: list[str] = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        try:
            reader = TraceReader(path)
            found = list(reader)
        except TraceError as error:
            refused.append(str(error))
            continue
        assert found == readings[: len(found)]
        assert reader.cut in (0, 1)
        counts.add(len(found))
    assert counts == {0, 1, 2, 3, 4}
    assert 0 < len(refused) <= header
    reasons = ("line 1 is not the header of a trace", "cannot be read after line 0 (Not a gzipped")
    assert all(any(reason in said for reason in reasons) for said in refused)


def test_a_cut_last_line_is_counted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "trace", series(3))
    path.write_bytes(path.read_bytes()[:-20])
    assert check(path).cut == 1
    assert check(path).count == 2
    with caplog.at_level(logging.WARNING):
        assert ReplaySource(path).read().temperature_c == 50
    assert "breaks off: its last line is skipped" in caplog.text
    path.write_bytes(write(tmp_path / "other", series(3)).read_bytes()[:-1])  # its end alone
    assert (check(path).count, check(path).cut) == (3, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"stamp_s":', "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b"[]", "should be an object"),
        (b'{"wall_s":1}', "stamp_s: Field required"),
        (b'{"stamp_s":NaN,"wall_s":1}', "stamp_s: "),
        (b'{"stamp_s":99,"wall_s":1}', "its stamp_s is before that of the line before"),
    ],
)
@pytest.mark.parametrize("number", [3, 4])
def test_a_damaged_line_is_named(tmp_path: Path, number: int, content: bytes, why: str) -> None:
    path = damaged(write(tmp_path / "trace", series(3)), number, content)
    with pytest.raises(TraceError) as caught:
        open_source("replay", trace=path)
    said = str(caught.value)
    assert said.startswith(f"{path} line {number} is damaged (")
    assert why in said
    assert said.endswith("remove that line, or record the trace again with gemma-mtp record.")
    assert "\n" not in said


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"{}", b'{"format":"csv"}', b"time,temperature\n1,2\n", b"\x1f\x8b", b"\0" * 99],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"line \d is not the header of a trace .* name a file"):
        open_source("replay", trace=path)


def test_a_trace_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", series(1))
    damaged(path, 1, b'{"format":"gemma_mtp_ros trace","version":2,"period_s":1}')
    with pytest.raises(TraceError, match=r"of version 2, and this release reads version 1 alone"):
        open_source("replay", trace=path)


def test_blank_lines_and_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    path = damaged(write(tmp_path / "trace", series(2)), 2, b"")
    path.write_bytes(path.read_bytes() + b'\n{"stamp_s":200,"wall_s":1,"novelty":[1]}\n\n')
    assert [reading.stamp_s for reading in TraceReader(path)] == [100.5, 200]


@pytest.mark.parametrize("place", ["", "nowhere", ".", "a\0b"])
def test_no_file(tmp_path: Path, place: str) -> None:
    trace = f"{tmp_path}/{place}" if place else ""
    with pytest.raises(ValueError, match=r"telemetry\.trace.*gemma-mtp record|name one that"):
        open_source("replay", trace=trace)


def test_a_trace_without_readings_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", [])
    with pytest.raises(TraceError, match="holds no reading; record"):
        open_source("replay", trace=path)


def test_damage_within_a_compressed_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.gz", series(50))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(TraceError, match=rf"{path} .*line \d+"):
        check(path)
    path.write_bytes(b"not compressed at all")
    with pytest.raises(TraceError, match=r"cannot be read after line 0 .*record the trace again"):
        check(path)


def test_a_line_without_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"format":"gemma_mtp_ros trace","version":1,"period_s":1}\n')
        file.write(b"x" * 3_000_000)
    with pytest.raises(TraceError, match=r"line 2 is damaged \(it is longer than"):
        check(path)


def test_a_trace_is_never_written_over(tmp_path: Path) -> None:
    path = write(tmp_path / "trace", series(1))
    with pytest.raises(FileExistsError):
        TraceWriter(path, Header(period_s=0.5))
    assert check(path).count == 1


# --- Replay -------------------------------------------------------------------------------------


def temperatures(source: ReplaySource, clock: Clock, step_s: float, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        found.append(source.read().temperature_c)
        clock.now_s += step_s
    return found


@pytest.mark.parametrize("name", NAMES)
def test_replay_at_the_pace_of_the_recording(tmp_path: Path, name: str) -> None:
    clock = Clock(5000.0)
    readings = series(4)
    source = ReplaySource(write(tmp_path / name, readings), clock)
    clock.now_s += 1000  # time counts from the first reading on
    assert temperatures(source, clock, 0.25, 8) == [50, 50, 51, 51, 52, 52, 53, 53]
    reading = source.read()
    assert (reading.temperature_c, reading.source, reading.board) == (None, "replay", "Board")
    assert reading.note == f"The trace {tmp_path / name} has ended after 4 readings."
    assert reading.stamp_s == clock.now_s


def test_a_replayed_reading_is_the_recorded_one_but_for_its_time(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    (recorded,) = readings = series(1)
    reading = ReplaySource(write(tmp_path / "trace", readings), clock).read()
    assert abs(reading.wall_s - time.time()) < 60
    assert reading.stamp_s == clock.now_s
    assert reading == dataclasses.replace(
        recorded, stamp_s=reading.stamp_s, wall_s=reading.wall_s, source="replay"
    )


def test_replay_accelerated(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    source = ReplaySource(write(tmp_path / "trace", series(9)), clock, speed=4.0)
    assert temperatures(source, clock, 0.25, 6) == [50, 52, 54, 56, 58, None]


def test_replay_in_a_loop(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    source = ReplaySource(write(tmp_path / "trace", series(3)), clock, loop=True)
    assert temperatures(source, clock, 0.5, 8) == [50, 51, 52, 50, 51, 52, 50, 51]
    clock.now_s += 1.5 * 1000
    assert source.read().temperature_c == 52
    clock.now_s -= 1.0  # no clock does this; the reading stands
    assert source.read().temperature_c in (50, 51, 52)


def test_a_gap_in_the_recording_ages_the_reading_before_it(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    early, late = series(2, step_s=10.0)
    source = ReplaySource(write(tmp_path / "trace", [early, late]), clock, speed=2.0)
    source.read()
    clock.now_s += 4.0  # 8 s of the recording
    reading = source.read()
    assert (reading.temperature_c, reading.age_s(clock.now_s)) == (50, 4.0)
    clock.now_s += 1.1
    reading = source.read()
    assert reading.temperature_c == 51
    assert reading.age_s(clock.now_s) == pytest.approx(0.1)


def test_replay_goes_on_by_the_clock_after_a_close(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    source = ReplaySource(write(tmp_path / "trace", series(9)), clock)
    source.read()
    clock.now_s += 1.0
    source.close()
    assert source.read().temperature_c == 52


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_none_is_refused(tmp_path: Path, speed: float) -> None:
    path = write(tmp_path / "trace", series(1))
    with pytest.raises(ValueError, match=r"replay speed .* is not above 0; 1 is as it was"):
        open_source("replay", trace=path, speed=speed)


def test_a_file_that_is_changed_after_it_was_opened(tmp_path: Path) -> None:
    clock = Clock(5000.0)
    path = write(tmp_path / "trace", series(3))
    source = ReplaySource(path, clock, loop=True)
    source.read()
    path.unlink()
    clock.now_s += 2.0
    with pytest.raises(TraceError, match="is no file"):
        source.read()
