# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: their arithmetic, their file, and the real programs on small work."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks import wide  # noqa: E402
from benchmarks.common import Row, commit, interleaved, machine, quantile, report  # noqa: E402
from benchmarks.decode import ratio_rows  # noqa: E402


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, drafter = tiny.make_pair(tmp_path_factory.mktemp("pair"))
    return str(target), str(drafter)


def figures(name: str, file: Path, *arguments: str) -> dict[str, float]:
    """Run a benchmark as its user does; return its rows by name."""
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json", str(file), *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert set(document) == {"machine", "commit", "rows"}
    rows = {row["name"]: row["value"] for row in document["rows"]}
    assert len(rows) == len(document["rows"])
    for shown in document["rows"]:
        assert set(shown) == {"name", "value", "unit"}
    return rows


def test_each_case_runs_once_a_turn_and_each_turn_begins_with_another() -> None:
    order: list[str] = []
    cases = {name: (lambda name=name: order.append(name)) for name in "abc"}
    interleaved(cases, 3)
    assert "".join(order) == "abcbcacab"


def test_the_median_ignores_a_turn_that_was_disturbed() -> None:
    durations = {"slow": iter([4.0, 400.0, 4.0]), "fast": iter([1.0, 100.0, 1.0])}
    now = 0.0

    def run(name: str) -> None:
        nonlocal now
        now += next(durations[name])

    cases = {name: (lambda name=name: run(name)) for name in durations}
    assert interleaved(cases, 3, clock=lambda: now) == {"slow": 4.0, "fast": 1.0}


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.505, 51), (0.99, 99), (1.0, 100)]
)
def test_a_quantile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert quantile(list(range(100, 0, -1)), share) == expected


def test_goals_are_bounds() -> None:
    assert Row("a", 5.0, "ms", ("<=", 5.0)).met
    assert Row("a", 5.1, "ms", ("<=", 5.0)).met is False
    assert Row("a", 0.94, "share", (">=", 0.95)).met is False
    assert Row("a", 1.0, "share").met is None


def test_ratios_compare_like_with_like() -> None:
    names = ("hf", "hf_assisted4", "plain", "mtp4", "plain_reproducible", "mtp4_reproducible")
    seconds = dict(zip(names, (8.0, 6.0, 4.0, 2.0, 5.0, 3.0), strict=True))
    assert {row.name: row.value for row in ratio_rows(seconds)} == {
        "pair.plain_vs_hf": 2.0,
        "pair.mtp4_vs_hf_assisted4": 3.0,
        "pair.mtp4_vs_plain": 2.0,
        "pair.plain_vs_hf_reproducible": 8.0 / 5.0,
        "pair.mtp4_vs_hf_assisted4_reproducible": 2.0,
        "pair.mtp4_vs_plain_reproducible": 5.0 / 3.0,
    }


def test_the_report_shows_goals_and_writes_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    rows = [Row("x.good", 1.0, "ms", ("<=", 5.0)), Row("x.bad", 9.0, "ms", ("<=", 5.0))]
    report("Title", rows, 2, file, in_table=[Row("x.more", 3.0, "s")])
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if "x.good" in line and "met" in line]
    assert [line for line in shown.splitlines() if "x.bad" in line and "missed" in line]
    document = json.loads(file.read_text())
    assert [row["name"] for row in document["rows"]] == ["x.more", "x.good", "x.bad"]
    assert document["machine"]["threads"] == 2
    assert document["commit"] == commit()


def test_the_machine_is_described_and_not_named() -> None:
    described = machine(2)
    assert described["cpu"]
    assert described["cores"] >= 1
    assert socket.gethostname() not in json.dumps(described)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_decode_agrees_with_transformers(pair: tuple[str, str], tmp_path: Path) -> None:
    options = ["--model", pair[0], "--drafter", pair[1], "--prompts", "2", "--repeats", "1"]
    options += ["--wide-repeats", "0"]
    rows = figures("decode", tmp_path / "f", *options, "--max-new-tokens", "24", "--threads", "1")
    for name in ("plain_vs_hf", "mtp4_vs_hf_assisted4", "mtp4_vs_plain"):
        assert rows[f"pair.{name}"] > 0
        assert rows[f"pair.{name}_reproducible"] > 0
    for case, mode in itertools.product(("plain", "mtp2", "mtp4", "mtp6"), ("", "_reproducible")):
        assert rows[f"pair.{case}{mode}.same_tokens"] == 1.0


@pytest.mark.slow
def test_the_large_model_of_decode_in_small() -> None:
    found = {row.name: row.value for row in wide.rows(1, 2, lambda stage: None, small=True)}
    for name in ("row1_vs_flinear", "v5"):
        assert found[f"wide.bf16_{name}"] > 0
        assert found[f"wide.int8_{name}"] > 0
    assert found["wide.oracle_bf16"] > 0
    assert found["wide.oracle_int8"] > 0
    assert found["wide.ttft_1000_vs_hf"] > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_embedded_pair_is_as_good_as_stated(tmp_path: Path) -> None:
    rows = figures("demo_pair", tmp_path / "f")
    assert rows["pair.json_valid"] == 1.0
    assert rows["pair.plan_exact"] >= 0.95
    assert rows["pair.tokens_per_pass_k4"] >= 3.5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_answers_by_a_schema_are_valid(tmp_path: Path) -> None:
    rows = figures("structured", tmp_path / "f", "--instructions", "2", "--threads", "1")
    assert rows["structured.valid"] == 1.0
    assert rows["structured.same_tokens"] == 1.0
    assert rows["structured.tokens_per_pass_gain"] > 1.0
    assert rows["structured.tokens_per_pass_gain_k4"] >= 1.0


@pytest.mark.ros
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ros_overhead_measures_real_processes(pair: tuple[str, str], tmp_path: Path) -> None:
    options = ["--model", pair[0], "--drafter", pair[1], "--goals", "4", "--chunks", "100"]
    rows = figures("ros_overhead", tmp_path / "f", *options)
    for name in (
        "chunk_latency_p50_ms",
        "chunk_latency_p99_ms",
        "goal_to_feedback_p50_ms",
        "node_cpu_share",
        "paced_rate",
    ):
        assert rows[f"ros.{name}"] > 0
    assert rows["ros.cancel_to_result_p99_ms"] >= 0
