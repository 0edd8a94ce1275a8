# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp bench``: the command, its arithmetic, what the engine measures for it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import tiny
import torch
from engine_tools import arithmetic, load

from gemma_mtp_ros.api import MAX_DRAFT, ModelInfo, Stats
from gemma_mtp_ros.cli.figures import commit, rotated
from gemma_mtp_ros.cli.findings import ADAPTIVE, Findings, Speed, Total, rows
from gemma_mtp_ros.cli.main import main
from gemma_mtp_ros.engine.costs import Bandwidth, bandwidth, measure, pass_bytes
from gemma_mtp_ros.engine.draft_length import Costs

QUICK = ("--tokens", "6", "--repeats", "1", "--context", "40")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny.make_pair(tmp_path_factory.mktemp("pair"))


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `gemma-mtp bench`, in this process."""
    try:
        status = main(["bench", *arguments])
    except SystemExit as ended:  # argparse ends the process itself
        status = ended.code
    said = capsys.readouterr()
    return status, said.out, said.err


def figures(file: Path) -> dict[str, float]:
    document = json.loads(file.read_text())
    assert set(document) == {"machine", "commit", "rows"}
    assert document["commit"] == commit()
    found = {row["name"]: row["value"] for row in document["rows"]}
    assert len(found) == len(document["rows"])
    return found


def test_every_figure_is_printed_and_written(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    model = ["--model", str(pair[0]), "--drafter", str(pair[1])]
    precisions = ["--weights", "bfloat16", "--drafter-weights", "float32", "--kv-dtype", "int8"]
    status, out, err = bench(capsys, *model, *precisions, *QUICK, "--json", str(file))
    assert status == 0, err
    for word in ("v(n)/v(1)", "draft step", "first token", "engine's choice", "GB/s", "bfloat16"):
        assert word in out
    found = figures(file)
    for n in range(1, MAX_DRAFT + 2):
        assert found[f"bench.pass_{n}"] > 0
        assert found[f"bench.v_{n}"] == pytest.approx(
            found[f"bench.pass_{n}"] / found["bench.pass_1"]
        )
    for k in range(1, MAX_DRAFT + 1):
        assert found[f"bench.mtp{k}"] > 0
        assert 0 <= found[f"bench.mtp{k}.acceptance"] <= 1
    assert found["bench.plain.tokens_per_pass"] == 1
    for name in ("draft_step", "ttft", "adaptive", "bandwidth", "bound", "bound_share"):
        assert found[f"bench.{name}"] > 0
    assert 1 <= found["bench.ttft_prompt"] <= 40 + 60  # a whole number of sentences
    assert found["bench.memory.weights"] > 0
    assert found["bench.pass_bytes"] > found["bench.memory.weights"] / 2


def test_without_a_drafter_it_is_plain_decoding_alone(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bench.json"
    status, _, err = bench(capsys, "--model", str(pair[0]), *QUICK, "--json", str(file))
    assert status == 0, err
    found = figures(file)
    assert found["bench.plain"] > 0
    assert not {"bench.mtp1", "bench.adaptive", "bench.draft_step"} & set(found)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_plot_is_drawn(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plot.{ending}"
    model = ["--model", str(pair[0]), "--drafter", str(pair[1])]
    status, _, err = bench(capsys, *model, *QUICK, "--plot", str(file))
    assert status == 0, err
    assert file.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "TARGET", "--context", "0"], ["--context", "'0'"]),
        (["--model", "TARGET", "--context", "5000"], ["--context 5000", "4096"]),
        (["--model", "TARGET", "--repeats", "none"], ["--repeats", "'none'"]),
        (["--model", "TARGET", "--threads", "-1"], ["--threads = -1"]),
        (["--model", "TARGET", "--weights", "int3"], ["--weights", "int3"]),
        (["--model", "TARGET", "--plot", "plot.pdf"], ["--plot", ".png", ".svg"]),
        (["--model", "TARGET", "--json", "/no/such/folder/x"], ["--json", "/no/such/folder"]),
        (["--model", "/no/such/folder"], ["/no/such/folder", "does not exist"]),
        (["--model", "TARGET", "--drafter", "TARGET"], ["drafter", "gemma4_text"]),
        ([], ["--model"]),
    ],
)
def test_a_mistake_gets_one_sentence(
    pair: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: list[str],
) -> None:
    given = [str(pair[0]) if word == "TARGET" else word for word in arguments]
    status, out, err = bench(capsys, *given)
    assert (status, out) == (2, "")
    assert err.startswith("gemma-mtp")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named_as_an_option(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = bench(capsys, "--model", str(pair[0]), "--device", "cuda")
    assert status == 2
    assert "--device" in err
    assert "engine." not in err


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, err = bench(capsys, "--model", "/no/such/folder", "--plot", "plot.png")
    assert status == 2
    assert "matplotlib" in err


def test_the_bound_is_bandwidth_over_what_a_pass_reads() -> None:
    stats = Stats(
        completion_tokens=11,
        decode_s=0.5,
        rounds=5,
        drafted_at=(5, 5, 0, 0, 0, 0, 0),
        accepted_at=(4, 1, 0, 0, 0, 0, 0),
    )
    total = Total()
    total.add(stats)
    speed = Speed([total.rate, 3.0, 40.0], total)
    passes = tuple(0.1 + 0.01 * n for n in range(MAX_DRAFT + 1))
    found = Findings(
        info=ModelInfo(
            model="m", precision="int8", context=64, vocabulary=8, bytes=1, reproducible="off"
        ),
        context=32,
        costs=Costs(passes, 0.02),
        prompt_tokens=30,
        ttft_s=0.25,
        speeds={0: Speed([10.0], Total()), ADAPTIVE: speed},
        bytes=2 * 10**9,
        bandwidth=Bandwidth(40e9, 2 * 10**9, "in thought"),
    )
    value = {row.name: row.value for row in rows(found)}
    assert value["bench.bound"] == pytest.approx(20.0)
    assert value["bench.bound_share"] == pytest.approx(0.5)
    assert value["bench.v_3"] == pytest.approx(1.2)
    assert value["bench.adaptive"] == 20.0
    assert value["bench.adaptive.acceptance"] == 0.5
    assert value["bench.adaptive.tokens_per_pass"] == 2.0
    assert value["bench.adaptive.draft_length"] == 2.0
    assert "bench.plain.acceptance" not in value


def test_turns_begin_with_another_case() -> None:
    assert [rotated([1, 2, 3], turn) for turn in (0, 1, 3)] == [[1, 2, 3], [2, 3, 1], [1, 2, 3]]


@pytest.mark.parametrize("kind", [tiny.E_SIZE, tiny.EXPERTS_26B], ids=lambda kind: kind.name)
def test_a_pass_reads_its_weights_once_and_the_keys_that_it_sees(tmp_path, kind) -> None:
    target = load(tiny.make_pair(tmp_path, kind)[0]).target
    experts = target.spec.experts
    weights = target.weight_bytes  # tied: the table is the head
    if experts is not None:
        stacks = sum(
            sum(m.bytes for m in (each.experts.gate_up, each.experts.down))
            for each in target.layers
        )
        weights -= stacks * (experts.count - experts.top_k) / experts.count
    keys = sum(
        (tiny.WINDOW if layer.spec.sliding else 101)
        * target.cache.layers[layer.spec.kv_source].row_bytes
        for layer in target.layers
    )
    assert pass_bytes(target, 100) == weights + keys
    assert pass_bytes(target, 3) < pass_bytes(target, 100)


@pytest.mark.parametrize("way", ["kernels", "torch"])
def test_bandwidth_says_how_it_was_measured(way: str) -> None:
    with arithmetic(way):
        found = bandwidth(torch.device("cpu"), 4096, repeats=1)
    assert found.bytes_per_s > 0
    assert found.buffer == (4096 if way == "kernels" else 8192)
    assert ("copying" in found.how) == (way == "torch")


def test_recorded_draft_steps_are_what_is_measured(pair: tuple[Path, Path]) -> None:
    """Where drafts come from a recording, its steps are timed, and not those of eager torch."""
    with arithmetic("torch"), torch.inference_mode():
        engine = load(*pair)
        engine.drafter.record(lambda: None)
        engine.drafter.step = None
        found = measure(engine.target, engine.drafter, lambda: None, 20, 1)
        without = measure(engine.target, None, lambda: None, 20, 1)
    assert 0 < found.draft < math.inf
    assert without.draft == math.inf
    assert engine.target.cache.length == 0
