# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp bench --drafters``: kinds of drafters by kind of task, printed, written, drawn."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import tiny

from gemma_mtp_ros.api import MemoryUse
from gemma_mtp_ros.cli import bench as bench_module
from gemma_mtp_ros.cli import drafters
from gemma_mtp_ros.cli.drafter_tables import notes, per_pass, plot, rows, tables
from gemma_mtp_ros.cli.drafters import Comparison, Kind
from gemma_mtp_ros.cli.findings import Total
from gemma_mtp_ros.cli.main import main
from gemma_mtp_ros.cli.tasks import CLAIMED, ERRANDS, tasks
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.engine.text import Text

KINDS = ["none", "prompt_lookup", "mtp", "draft_model"]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(["bench", *arguments])
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    target, drafter = tiny.make_pair(tmp_path_factory.mktemp("pair"))
    return str(target), str(drafter)


def test_tasks_are_several_of_each_kind_and_fit_the_embedded_pair() -> None:
    text = Text(TARGET_DIR)
    asked = tasks()
    assert len(asked) == 8
    assert asked.keys() >= CLAIMED.keys()
    for kind, texts in asked.items():
        assert len(set(texts)) == 3, kind
        for each in texts:
            assert "DOCUMENT" not in each
            assert len(text.encode((), each)) < 2048 - 256
    document = asked["summary of a long document"][0]
    assert len(document.split()) > 400


@pytest.mark.parametrize("option", ["--drafter", "--draft-model"])
def test_a_wrong_drafter_is_refused_before_anything_is_measured(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
) -> None:
    monkeypatch.delattr(bench_module, "load")
    wrong = pair[option == "--draft-model"]
    status, out, err = bench(capsys, "--model", pair[0], "--drafters", option, wrong)
    assert (status, out) == (2, "")
    assert f"drafter {wrong} is" in err


def test_a_folder_is_no_file_to_write(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, err = bench(capsys, "--model", pair[0], "--drafters", "--json", str(tmp_path))
    assert (status, out) == (2, "")
    assert f"--json {tmp_path} cannot be written to; give another name" in err


def test_every_kind_is_measured_written_and_drawn(
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the target itself for a draft model, each of whose drafts stands."""
    pytest.importorskip("matplotlib")
    asked = {"code": ["x = 1"], "conversation": ["Hi"], "too long": ["x" * 5000]}
    monkeypatch.setattr(drafters, "tasks", lambda: asked)
    options = ["--model", pair[0], "--drafter", pair[1], "--drafters", "--draft-model", pair[0]]
    options += ["--tokens", "21", "--repeats", "1", "--draft-length", "3"]
    files = ["--json", str(tmp_path / "found.json"), "--picture", str(tmp_path / "found.svg")]
    status, out, err = bench(capsys, *options, *files)
    assert status == 0, err
    for word in ("draft_model", "prompt_lookup", "4.0 to 5.5", "T = 0.7", "too long", "MiB"):
        assert word in out
    found = {
        row["name"]: row["value"]
        for row in json.loads((tmp_path / "found.json").read_text())["rows"]
    }
    assert found["drafters.draft_model.conversation.tokens_per_pass"] == 20 / 5
    assert found["drafters.draft_model.code.acceptance"] == 1.0
    assert found["drafters.none.code.tokens_per_pass"] == 1.0
    assert found["drafters.mtp.memory.drafter"] > 0 == found["drafters.none.memory.drafter"]
    assert found["drafters.draft_model.memory"] > found["drafters.mtp.memory"]
    assert not any("too_long" in name for name in found)
    svg = (tmp_path / "found.svg").read_text()
    assert svg.startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--drafters", "--plot", "x.png"], ["--plot", "--picture"]),
        (["--drafters", "--draft-kind", "none"], ["--draft-kind"]),
        (["--picture", "x.png"], ["--picture", "--drafters"]),
        (["--draft-model", "x"], ["--draft-model", "--drafters"]),
        (["--drafters", "--picture", "x.pdf"], ["--picture x.pdf", ".png", ".svg"]),
        (["--drafters", "--picture", "/no/such/folder/x.svg"], ["--picture", "/no/such/folder"]),
        (["--drafters", "--draft-length", "0"], ["--draft-length", "1 to 7"]),
        (["--drafters", "--draft-model", "DRAFTER"], ["MTP assistant", "--draft-kind is"]),
        (["--drafters", "--drafter", "TARGET"], ["--draft-kind is mtp", "whole model"]),
        (["--draft-kind", "draft_model"], ["--draft-kind is draft_model", "as --drafter,"]),
    ],
)
def test_a_mistake_gets_one_sentence(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setattr(drafters, "tasks", lambda: {"code": ["x"]})
    names = {"TARGET": pair[0], "DRAFTER": pair[1]}
    given = [names.get(each, each) for each in arguments]
    status, _, err = bench(capsys, "--model", pair[0], "--tokens", "2", "--repeats", "1", *given)
    assert status == 2
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_without_matplotlib_a_sentence_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "matplotlib" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(bench_module.importlib.util, "find_spec", absent)
    status, _, err = bench(capsys, "--model", "demo", "--drafters", "--picture", "x.svg")
    assert status == 2
    assert "--picture needs matplotlib; pip install matplotlib" in err


def made_up(kind: str, tokens: int, rounds: int, **memory: int) -> Kind:
    total = Total(tokens=tokens, seconds=2.0, rounds=rounds, drafted=4 * rounds, accepted=tokens)
    greedy = {ERRANDS: total, "code": Total()}
    plain = {ERRANDS: Total(tokens=100, seconds=4.0, rounds=100), "code": Total()}
    return Kind(kind, kind, MemoryUse(**memory), greedy, plain, {0.0: total})


def test_figures_follow_from_the_counts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = Comparison("demo/target", "float32", "cpu", 4, 32, 1)
    found.kinds = [made_up("none", 100, 100, kv=10), made_up("mtp", 100, 25, kv=10, drafter=7)]
    named = {row.name: row.value for row in rows(found)}
    assert named["drafters.mtp.robot_errands.tokens_per_pass"] == 4.0
    assert named["drafters.mtp.robot_errands.speed"] == 50.0
    assert named["drafters.mtp.robot_errands.over_plain"] == 2.0
    assert named["drafters.mtp.memory"] == 17
    assert per_pass(Total()) is None
    assert len(list(tables(found))) == 4
    assert any("robot errands only" in note for note in notes(found))
    plot(found, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
