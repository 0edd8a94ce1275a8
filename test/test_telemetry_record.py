# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""`gemma-mtp record` as its user runs it, and what it writes played back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jetson_tree import ORIN_NANO, JetsonTree

from gemma_mtp_ros import __version__
from gemma_mtp_ros.cli.main import MISTAKE, main
from gemma_mtp_ros.telemetry.reader import SourceReader
from gemma_mtp_ros.telemetry.reading import Reading
from gemma_mtp_ros.telemetry.sources import open_source
from gemma_mtp_ros.telemetry.trace import TraceReader, check

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def board(tmp_path: Path) -> Iterator[JetsonTree]:
    with JetsonTree(tmp_path / "board", ORIN_NANO) as tree:
        yield tree


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.gz"])
def test_record_and_replay(
    board: JetsonTree, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = tmp_path / name
    arguments = ["--seconds", "0.3", "--period", "0.05", "--root", str(board.root)]
    assert main(["record", *arguments, str(file)]) == 0
    reader = TraceReader(file)
    assert (reader.header.source, reader.header.period_s) == ("sysfs", 0.05)
    assert "Orin Nano" in (reader.header.board or "")
    assert reader.header.recorder == f"gemma_mtp_ros {__version__}"
    readings = list(reader)
    assert 1 <= len(readings) <= 6
    assert {reading.temperature_c for reading in readings} == {51.687}
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"Wrote {len(readings)} readings over 0." in captured.err
    assert f" s to {file}." in captured.err

    replayed = open_source("replay", trace=file).read()
    assert (replayed.source, replayed.power_mode) == ("replay", "MAXN_SUPER")
    assert replayed.zones == readings[0].zones
    assert replayed.trips == readings[0].trips


def recorder(*arguments: str) -> subprocess.Popen[str]:
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-m", "gemma_mtp_ros", "record", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_lines(file: Path, count: int, process: subprocess.Popen[str]) -> None:
    limit_s = time.monotonic() + 30
    while not file.exists() or file.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def test_ctrl_c_ends_a_recording_cleanly(board: JetsonTree, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    process = recorder("--root", str(board.root), "--period", "0.02", str(file))
    wait_for_lines(file, 4, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 0, said
    count = check(file).count
    assert count >= 3
    assert f"Wrote {count} readings" in said
    assert "Traceback" not in said


def test_a_killed_recorder_leaves_what_it_read(board: JetsonTree, tmp_path: Path) -> None:
    file = tmp_path / "trace"
    process = recorder("--root", str(board.root), "--period", "0.02", str(file))
    wait_for_lines(file, 4, process)
    process.kill()
    process.communicate(timeout=30)
    assert check(file).count >= 3


def test_a_host_without_sensors_is_recorded_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare").mkdir()
    file = tmp_path / "trace"
    arguments = ["--seconds", "0.05", "--period", "0.05", "--root", str(tmp_path / "bare")]
    assert main(["record", *arguments, str(file)]) == 0
    assert "No temperature and no power can be read below" in capsys.readouterr().err
    assert json.loads(file.read_text().splitlines()[1])["note"]


class Hanging:
    """A source whose read hangs until the end of the test."""

    name = "hanging"

    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo

    def read(self) -> Reading:
        with open(self.fifo, "rb") as file:
            file.read()
        raise RuntimeError("the bus is gone")

    def close(self) -> None:
        pass


def test_a_source_that_hangs_or_fails_leaves_gaps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    source = Hanging(tmp_path / "fifo")
    monkeypatch.setattr("gemma_mtp_ros.cli.record.open_source", lambda kind, root: source)
    monkeypatch.setattr(
        "gemma_mtp_ros.cli.record.SourceReader.close", lambda self, timeout_s: closed.append(self)
    )
    closed: list[SourceReader] = []
    file = tmp_path / "trace"
    assert main(["record", "--seconds", "0.2", "--period", "0.05", str(file)]) == 1
    assert "No reading came within 0." in capsys.readouterr().err
    assert not file.exists()
    with open(source.fifo, "wb"):
        pass
    (reader,) = closed
    assert reader.wait(10.0)
    answer = reader.answer
    assert answer is not None
    assert "the bus is gone" in str(answer.error)
    monkeypatch.undo()
    assert reader.close(10.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--root", "nowhere", "FILE"], "--root 'nowhere' is not a directory; name the directory"),
        (["--seconds", "0", "FILE"], "'0' is no number of seconds from 0.01 to 1e+07"),
        (["--period", "nan", "FILE"], "'nan' is no number of seconds from 0.01 to 3600"),
        (["--source", "replay", "FILE"], "invalid choice: 'replay'"),
        (["--seconds", "1", "nowhere/trace"], "nowhere/trace cannot be written (No such file or"),
        ([], "required: FILE"),
    ],
)
def test_mistakes_get_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["record", *arguments])
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert (status, said.count("\n")) == (MISTAKE, 1)
    assert sentence in said


def test_a_file_that_exists_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace"
    file.write_text("precious")
    assert main(["record", "--seconds", "1", str(file)]) == MISTAKE
    assert f"{file} exists already; name a new file" in capsys.readouterr().err
    assert file.read_text() == "precious"


@pytest.mark.slow
def test_the_benchmark_measures_every_board(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ["--readings", "3", "--seconds", "0.6", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", "--json", str(file), *options],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert rows["telemetry.share_at_2hz"] > 0
    for board in ("orin_nano_super_r36", "agx_orin_r36", "agx_thor_r38", "this_host"):
        for figure in ("search_cpu_ms", "cold_reading_cpu_ms", "watchdog_share_at_2hz"):
            assert rows[f"telemetry.{figure}.{board}"] > 0
