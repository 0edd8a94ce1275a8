# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The script for a GPU, run where there is none: every section in small shapes on the CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks import gpu_check  # noqa: E402
from benchmarks.common import Row  # noqa: E402
from benchmarks.gpu_sections import Check, Rows  # noqa: E402
from benchmarks.gpu_shapes import B12, E2B, E4B, guesses  # noqa: E402
from gemma_mtp_ros.engine.spec import check_pair, drafter_spec, text_spec  # noqa: E402

CPU = torch.device("cpu")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments])
    return gpu_check.main()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    monkeypatch.setattr(gpu_check, "SECTION_S", 600.0)
    options = ["--device", "cpu", "--small", "--tokens", "24", "--threads", "1", "--minutes", "14"]
    status = run(monkeypatch, *options, "--json", str(file))
    said = capsys.readouterr().out
    assert status == 0, said
    rows = {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert not [name for name in rows if name.endswith(".failed")]
    for name, value in rows.items():
        if name.endswith((".recorded_same_answers", ".verified", ".same_answers")):
            assert value == 1.0, name
        if name.endswith(".recorded_vs_eager"):
            assert value <= 1e-4, name
    for shape in ("e4b", "12b"):
        theirs = rows[f"correct.{shape}.float32.natural.error_transformers"]
        for kind in ("prefill", "decode"):
            assert rows[f"correct.{shape}.float32.natural.error_{kind}"] <= 10 * theirs
    for shape in ("e4b", "e2b", "12b"):
        for precision in ("bfloat16", "int4"):
            for mode in ("natural", "reproducible"):
                name = f"{shape}.{precision}.{mode}"
                assert rows[f"{name}.adaptive"] > 0
                # Of four drafts; those behind a wrong one are lost with it.
                assert 0.4 < rows[f"{name}.mtp4.acceptance"] < 0.9
    assert rows["e4b.mtp4_vs_assisted"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no CUDA device" in err


def test_a_section_that_fails_or_takes_too_long_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def good(check: Check) -> Rows:
        yield Row("good", 1.0, "")

    def broken(check: Check) -> Rows:
        yield Row("half", 1.0, "")
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    def endless(check: Check) -> Rows:
        while True:
            check.ends_s = 0.0
            yield Row("endless", 1.0, "")

    shown: list[int] = []
    check = Check(CPU, True, 8)
    chosen = {"broken": broken, "endless": endless, "good": good}
    rows, failed = gpu_check.run_all(check, chosen, 60.0, lambda rows: shown.append(len(rows)))
    names = [row.name for row in rows if not row.name.endswith(".took")]
    assert names == ["half", "broken.failed", "endless", "endless.failed", "good"]
    assert failed == 2
    assert shown == [3, 6, 8]
    assert "illegal memory access" in check.notes[0]
    assert "\n" not in check.notes[0]


def test_sections_past_the_end_are_named_and_not_run() -> None:
    def never(check: Check) -> Rows:
        yield Row("was run", 1.0, "")

    rows, failed = gpu_check.run_all(Check(CPU, True, 8), {"late": never}, -1.0, lambda rows: None)
    assert [row.name for row in rows] == ["late.failed", "late.took"]
    assert failed == 1


@pytest.mark.parametrize("shape", [E2B, E4B, B12], ids=lambda shape: shape.name)
def test_shapes_are_those_of_the_released_models(shape) -> None:
    sizes = {
        "e2b": (1536, 35, 15, (256, 512), 256),
        "e4b": (2560, 42, 24, (256, 512), 256),
        "12b": (3840, 48, 48, (256, 512), 0),
    }
    target, drafter = shape.configs()
    spec, draft = text_spec(target), drafter_spec(drafter)
    heads = tuple(sorted({layer.head_dim for layer in spec.layers}))
    found = (spec.hidden, len(spec.layers), spec.first_shared, heads, spec.ple)
    assert found == sizes[shape.name]
    assert spec.vocab == 262_144
    assert not spec.layers[-1].sliding
    check_pair(spec, draft, "target", "drafter")
    small, small_draft = shape.small().configs()
    check_pair(text_spec(small), drafter_spec(small_draft), "target", "drafter")


def test_the_oracle_is_right_as_often_as_it_is_told() -> None:
    answer = list(range(2000))
    assert guesses(answer, 1.0)[:2000] == answer
    right = sum(a == b for a, b in zip(answer, guesses(answer, 0.85), strict=False))
    assert right == 1700
