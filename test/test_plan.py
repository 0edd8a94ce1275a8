# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""gemma-mtp plan: what fits, what is recommended, and the speeds that are estimated."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
import yaml
from jetson_tree import ORIN_NANO, JetsonTree

from gemma_mtp_ros import demo
from gemma_mtp_ros.api import EngineConfig
from gemma_mtp_ros.cli.main import main
from gemma_mtp_ros.engine import estimate, fitting, sizes
from gemma_mtp_ros.engine.estimate import BADLY, WELL, Setting, best_length, tokens_per_second
from gemma_mtp_ros.engine.fitting import Fit, Machine, Pair, choose, fits, module_machine
from gemma_mtp_ros.engine.released import RELEASED, find_released
from gemma_mtp_ros.telemetry.boards import MODULES

ROOT = Path(__file__).parent.parent
CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 2**30


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    try:
        status = main(["plan", *arguments])
    except SystemExit as ended:
        status = int(ended.code or 0)
    out = capsys.readouterr()
    return status, out.out, out.err


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = said(capsys, "--json", *arguments)
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    assert (status == 0) == (found["recommended"] is not None)
    return found


# --- What is recommended -------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_what_is_recommended_fits_and_can_run(
    capsys: pytest.CaptureFixture[str], module: Any
) -> None:
    found = plan(capsys, "--module", module.name)
    assert {(p["name"], p["weights"]) for p in found["plans"]} == {
        (released.size, weights) for released in RELEASED for weights in ("bfloat16", "int4")
    }
    for each in found["plans"]:
        assert each["fits"] == (not each["refusal"] and each["left"] >= found["reserve"])
    chosen = found["recommended"]
    if module.name == "orin-nano-4gb":
        assert chosen is None
        assert re.search(r"Nothing fits: E2B in int4 needs .* but .* are free; take", found["why"])
        return
    assert chosen["left"] >= found["reserve"]
    assert not chosen["refusal"]
    assert chosen["estimated_tokens_per_second"]["drafts_badly"] >= 10
    # A config of that kind passes the check of configure on a board with that much free.
    released = find_released(chosen["name"])
    assert released is not None
    config = EngineConfig(
        model=released.model,
        weights=chosen["weights"],
        max_context=chosen["max_context"],
        device="cuda",
    )
    assert sizes.needed(*released.specs, config, GPU) + found["reserve"] <= found["free"]


@pytest.mark.parametrize(
    ("module", "preset"),
    [
        ("orin-nano-8gb", "orin_nano"),
        ("orin-nx-16gb", "orin_nx"),
        ("agx-orin-32gb", "agx_orin"),
        ("agx-orin-64gb", "agx_orin"),
        ("thor-128gb", "thor"),
    ],
)
def test_presets_are_what_is_recommended(
    capsys: pytest.CaptureFixture[str], module: str, preset: str
) -> None:
    found = plan(capsys, "--module", module)
    chosen = found["recommended"]
    values = yaml.safe_load((ROOT / "config" / f"{preset}.yaml").read_text())["/**"]
    values = values["ros__parameters"]
    assert chosen["weights"] == values["engine"]["weights"]
    assert chosen["max_context"] == values["engine"]["max_context"]
    assert chosen["draft_max_length"] == values["draft"]["max_length"]
    assert chosen["bytes"]["snapshots"] == values["cache"]["max_mib"] * 2**20
    reserve = values["engine"]["memory_reserve_mib"] * 2**20
    assert chosen["left"] >= reserve
    comments = (ROOT / "config" / f"{preset}.yaml").read_text()
    assert f"for {chosen['name']} " in comments


def test_the_launch_line_names_arguments_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    tree = ast.parse((ROOT / "launch" / "node.launch.py").read_text())
    known = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Tuple):
            for row in statement.value.elts:
                if isinstance(row, ast.Tuple):
                    known.add(ast.literal_eval(row.elts[0]))
    options = ["--kv-dtype", "int8", "--ple", "disk", "--no-reproducible", "--cache-mib", "7"]
    options += ["--no-structured-output", "--draft-kind", "draft_model", "--drafter", "E2B"]
    line = plan(capsys, "--module", "thor-64gb", "--device", "cpu", *options)["launch"]
    words = line.split()
    assert words[:5] == ["ros2", "launch", "gemma_mtp_ros", "thor.launch.py", "preset:=thor"]
    assert {word.split(":=")[0] for word in words[4:]} == known - {
        "namespace", "params_file", "autostart", "respawn", "log_level", "use_sim_time",
        "telemetry_root",
    }  # fmt: skip


def test_a_draft_model_takes_its_weights_and_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    wish = ("--module", "agx-orin-64gb", "--model", "31B", "--weights", "int4", "--context", "4096")
    alone = plan(capsys, *wish, "--draft-kind", "none")["recommended"]
    small = plan(capsys, *wish[:3], "E2B", *wish[4:], "--draft-kind", "none")["recommended"]
    found = plan(capsys, *wish, "--draft-kind", "draft_model", "--drafter", "E2B")
    both = found["recommended"]
    assert both["bytes"]["kv"] == alone["bytes"]["kv"] + small["bytes"]["kv"]
    assert both["bytes"]["drafter"] == small["bytes"]["weights"] + small["bytes"]["ple"]
    speeds = both["estimated_tokens_per_second"]
    assert speeds["drafts_well"] > speeds["plain"]
    assert "drafter:=google/gemma-4-E2B-it draft_kind:=draft_model" in found["launch"]
    assistant = plan(capsys, *wish)["recommended"]["estimated_tokens_per_second"]
    assert assistant["drafts_well"] > speeds["drafts_well"]


def test_copies_need_no_memory_and_promise_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    wish = ("--module", "orin-nano-8gb", "--model", "E2B")
    alone = plan(capsys, *wish, "--draft-kind", "none")["recommended"]
    found = plan(capsys, *wish, "--draft-kind", "prompt_lookup")
    copies, speeds = found["recommended"], found["recommended"]["estimated_tokens_per_second"]
    assert copies["bytes"]["drafter"] == alone["bytes"]["drafter"] == 0
    assert 0 < copies["bytes"]["workspace"] - alone["bytes"]["workspace"] < 2**24
    assert speeds["drafts_badly"] == speeds["plain"] < speeds["drafts_well"]
    assert "draft_kind:=prompt_lookup" in found["launch"]
    assert "drafter:=" not in found["launch"]
    assert alone["draft_max_length"] == 0 < copies["draft_max_length"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none", "--drafter", "E2B"), "--draft-kind none has no drafter"),
        (("draft_model",), "needs --drafter: a smaller model"),
        (("draft_model", "--drafter", "demo"), "has a vocabulary of 1280 tokens"),
    ],
)
def test_a_kind_and_a_drafter_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    status, _, err = said(capsys, "--module", "orin-nano-8gb", "--draft-kind", *arguments)
    assert status != 0
    assert words in err


def test_options_narrow_what_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--module", "agx-orin-64gb", "--model", "e4b", "--weights", "bfloat16"]
    (one,) = plan(capsys, *options, "--context", "32768")["plans"]
    assert (one["name"], one["weights"], one["max_context"]) == ("E4B", "bfloat16", 32_768)
    (plain,) = plan(capsys, *options, "--context", "32768", "--drafter", "none")["plans"]
    assert plain["bytes"]["drafter"] == 0
    assert plain["draft_max_length"] == 0
    (large,) = plan(capsys, *options, "--ple", "memory")["plans"]
    assert large["bytes"]["ple"] == 262_144 * 42 * 256 * 2
    (small,) = plan(capsys, *options, "--context", "32768", "--kv-dtype", "int8")["plans"]
    assert 0.5 < small["bytes"]["kv"] / one["bytes"]["kv"] < 0.52


def test_no_drafts_are_planned_for_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "--module", "orin-nano-8gb", "--drafter", "none")
    assert {each["name"] for each in found["plans"]} == {released.size for released in RELEASED}
    assert {each["bytes"]["drafter"] for each in found["plans"]} == {0}
    assert "draft_length:=0" in found["launch"]
    assert "drafter:=" not in found["launch"]


def test_a_drafter_without_a_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--drafter", "google/gemma-4-E2B-it-assistant"]
    status, _, err = said(capsys, "--module", "thor-64gb", *options)
    assert status == 2
    assert "name that target with --model" in err


def test_a_drafter_of_another_target_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "E2B", "--drafter", "google/gemma-4-E4B-it-assistant"]
    status, _, err = said(capsys, "--module", "thor-64gb", *options)
    assert status == 2
    assert "use the drafter that was trained with this target" in err


def test_a_mixture_in_int4_on_a_gpu_is_said_to_be_impossible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--module", "thor-128gb", "--model", "26B-A4B", "--weights", "int4"]
    found = plan(capsys, *options)
    assert found["recommended"] is None
    assert "set engine.weights to bfloat16" in found["why"]


def test_what_is_printed_says_what_is_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "--module", "orin-nano-8gb")
    assert status == 0
    text = " ".join(out.split())
    for words in (
        "weights of the target", "table of per-layer embeddings", "drafter", "keys and values",
        "cached prefixes", "workspace", "CUDA context", "left for the robot", "on disk; in memory",
        "are estimates", "nothing was measured on a Jetson", "Recommended: E2B in int4",
        "ros2 launch gemma_mtp_ros orin.launch.py preset:=orin_nano model:=google/gemma-4-E2B-it",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("name", ["my models", "[bold]", "[/x]"])
def test_any_name_of_a_folder_is_printed_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    shutil.copy(demo.TARGET_DIR / "config.json", folder)
    status, out, _ = said(capsys, "--module", "orin-nano-8gb", "--model", str(folder))
    assert status == 0
    assert f"Recommended: {folder.name} in bfloat16" in out
    (line,) = [line for line in out.splitlines() if line.startswith("ros2 launch")]
    assert f"model:={folder}" in shlex.split(line)


def test_precisions_can_be_told_apart_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = said(capsys, "--module", "orin-nano-8gb")
    table = out.split("What fits")[1].split("Keys and values")[0]
    assert table.count("26B-A4B") == 2
    assert table.count("bfloat16") >= len(RELEASED)
    assert "reserve" in table


def test_an_unknown_module_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = said(capsys, "--module", "xavier")
    assert status == 2
    assert all(module.name in err for module in MODULES)


def test_an_unknown_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = said(capsys, "--module", "thor-64gb", "--model", "/no/such/folder")
    assert status == 2
    assert "does not exist" in err


# --- Where it runs -------------------------------------------------------------------------------


def meminfo(total_gib: float, free_gib: float) -> str:
    return (
        f"MemTotal: {int(total_gib * 2**20)} kB\nMemFree: 5 kB\n"
        f"MemAvailable: {int(free_gib * 2**20)} kB\n"
    )


def test_on_a_board_it_is_the_board_and_what_is_free_now(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with JetsonTree(tmp_path, ORIN_NANO) as tree:
        tree.write("proc/meminfo", meminfo(7.4, 6.0))
        found = plan(capsys, "--root", str(tmp_path))
        assert found["module"]["name"] == "orin-nano-8gb"
        assert found["free"] == 6 * GIB
        assert found["recommended"]["name"] == "E2B"
        if not torch.cuda.is_available():
            assert "sees no CUDA device" in found["notes"][0]
        tree.write("proc/meminfo", meminfo(7.4, 3.0))
        assert plan(capsys, "--root", str(tmp_path))["recommended"] is None


def test_a_jetson_that_is_not_known_is_asked_for_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with JetsonTree(tmp_path) as tree:
        tree.write("proc/device-tree/model", "NVIDIA Jetson Xavier NX Developer Kit")
        tree.write("proc/meminfo", meminfo(7, 6))
        status, _, err = said(capsys, "--root", str(tmp_path))
    assert status == 2
    assert "--module" in err


def test_on_a_computer_its_memory_is_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target, drafter = tiny.make_pair(tmp_path / "pair")
    capsys.readouterr()  # transformers tells that it saves
    with JetsonTree(tmp_path / "root") as tree:
        tree.write("proc/meminfo", meminfo(16, 12))
        options = ["--root", str(tmp_path / "root"), "--device", "cpu", "--model", str(target)]
        found = plan(capsys, *options, "--drafter", str(drafter))
    assert found["device"] == "cpu"
    assert found["bandwidth_reached"] > 1e8
    assert [each["weights"] for each in found["plans"]] == ["bfloat16", "int8", "int4"]
    chosen = found["recommended"]
    assert chosen["max_context"] == 4096  # all that this model allows
    assert chosen["bytes"]["overhead"] == fitting.PROCESS_BYTES
    assert "node.launch.py preset:=cpu device:=cpu" in found["launch"]
    assert f"model:={target} drafter:={drafter}" in found["launch"]


# --- Rules ---------------------------------------------------------------------------------------


def pair(size: str) -> Pair:
    found = find_released(size)
    assert found is not None
    return Pair(found.size, found.model, found.drafter, *found.specs)


def candidates(machine: Machine, *sizes_: str) -> list[Fit]:
    base = EngineConfig(model="x")
    return fits(map(pair, sizes_), base, machine, precisions=("bfloat16", "int4"), context=4096)


def test_the_largest_target_that_is_fast_enough_is_chosen_in_its_exactest_weights() -> None:
    machine = module_machine(64, 204.8, GPU)
    found = candidates(machine, "E2B", "E4B", "12B")
    slow, fast = (each.badly for each in found[-2:])
    chosen = choose(found, 0, (slow + fast) / 2)
    assert chosen is found[-1]
    assert choose(found, 0, slow) is found[-2]
    quick = choose(found, 0, 1e9)
    assert quick is not None
    assert quick.badly == max(each.badly for each in found)
    assert choose(found, machine.memory) is None


def test_contexts_grow_with_memory() -> None:
    base = EngineConfig(model="x", weights="bfloat16")
    contexts = [
        fitting.recommended_context(pair("12B"), base, module_machine(memory, 100, GPU))
        for memory in (8, 32, 64)
    ]
    assert contexts == sorted(contexts)
    assert contexts[0] == 4096
    assert contexts[-1] == 16_384


@pytest.mark.parametrize(("memory_gib", "reserve_gib"), [(3.7, 1), (7.4, 1.85), (61.4, 15.35)])
def test_a_quarter_is_kept_and_at_least_a_gibibyte(memory_gib: float, reserve_gib: float) -> None:
    assert fitting.default_reserve(int(memory_gib * GIB)) / GIB == pytest.approx(
        reserve_gib, rel=0.01
    )


def setting(size: str = "E2B", device: torch.device = GPU, **values: Any) -> Setting:
    it = pair(size)
    fixed = {"precision": "bfloat16", "kv_dtype": "bfloat16", "bandwidth": 60e9}
    return Setting(it.target, it.draft, device=device, **{**fixed, **values})


def test_plain_speed_is_bandwidth_over_bytes() -> None:
    at = setting("31B", reproducible=False)
    read = sizes.pass_bytes(at.target, "bfloat16", "bfloat16", GPU, at.position)
    assert tokens_per_second(at, 0) == pytest.approx(60e9 / read, rel=0.02)
    twice = setting("31B", reproducible=False, bandwidth=120e9)
    assert tokens_per_second(twice, 0) == pytest.approx(2 * tokens_per_second(at, 0), rel=0.02)


def test_speed_with_drafts_follows_the_formula() -> None:
    at = setting("E2B", CPU, precision="int8")
    for k in range(1, 5):
        v, c = at.pass_s(k + 1) / at.pass_s(1), at.step_s / at.pass_s(1)
        expected = (1 + sum(WELL[:k])) / (v + c * k) / at.pass_s(1)
        assert tokens_per_second(at, k) == pytest.approx(expected)
    assert at.pass_s(5) / at.pass_s(1) == pytest.approx(1.31, abs=0.03)  # docs/benchmarks.md


def test_the_best_length_is_short_where_rows_cost_or_text_drafts_badly() -> None:
    cheap = setting("E2B", CPU)
    dear = setting("E2B", CPU, precision="int4")
    assert best_length(cheap) == len(WELL)
    assert 1 <= best_length(dear) < best_length(cheap)
    assert best_length(cheap, BADLY) < best_length(cheap)
    alone = Setting(cheap.target, None, "bfloat16", "bfloat16", CPU, 60e9)
    assert best_length(alone) == 0


def test_a_mixture_gains_little_from_drafts() -> None:
    def gain(size: str) -> float:
        at = setting(size, reproducible=False)
        return tokens_per_second(at, best_length(at)) / tokens_per_second(at, 0)

    assert gain("26B-A4B") < 1.3 < 2.5 < gain("31B")
    assert estimate.EFFICIENCY < estimate.EFFICIENCY_MEASURED < 1


# --- The page ------------------------------------------------------------------------------------


def test_the_page_shows_what_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "sizing.md").read_text().splitlines()
    monkeypatch.setenv("COLUMNS", "110")
    _, out, _ = said(capsys, "--module", "orin-nano-8gb")
    shown = [line for line in out.splitlines() if line[:1] in "┏┃┡│├└" or "ros2 launch" in line]
    assert len(shown) > 25
    assert [line for line in shown if line.rstrip() not in page] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_the_page_names_what_is_recommended(
    capsys: pytest.CaptureFixture[str], module: Any
) -> None:
    (row,) = (
        line
        for line in (ROOT / "docs" / "sizing.md").read_text().splitlines()
        if line.startswith(f"| `{module.name}` |")
    )
    chosen = plan(capsys, "--module", module.name)["recommended"]
    if chosen is None:
        assert "nothing fits" in row
        return
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[3:6] == [chosen["name"], chosen["weights"], f"{chosen['max_context']:,}"]
    taken = (chosen["bytes"]["total"], chosen["left"])
    assert cells[6:8] == [f"{size / GIB:.1f} GiB" for size in taken]
    speeds = chosen["estimated_tokens_per_second"]
    assert cells[8].startswith(f"~{speeds['plain']:.0f};")
