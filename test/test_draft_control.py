# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of draft lengths: arithmetic, scenarios, the real program on little work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from benchmarks import draft_control, draft_policies  # noqa: E402
from benchmarks import draft_scenarios as scenarios  # noqa: E402
from benchmarks.draft_control import Run  # noqa: E402
from benchmarks.draft_policies import Outcome  # noqa: E402


def test_there_are_scenarios_enough() -> None:
    assert len({each.name for each in scenarios.SCENARIOS}) == len(scenarios.SCENARIOS) >= 12
    assert len(scenarios.SEEDS) == 8
    for scenario in scenarios.SCENARIOS:
        for costs in (scenario.costs, scenario.after):
            assert costs is None or len(costs.passes) == scenarios.DEPTHS + 1


@pytest.mark.parametrize(("wanted", "decline"), [(0.9, 1.0), (0.3, 0.95)])
def test_texts_have_the_acceptance_they_are_made_for(wanted: float, decline: float) -> None:
    walk = scenarios.turning(*[scenarios.Kind(wanted, decline)] * 2)
    text = scenarios.make_text(walk, 4000, "acceptance")
    for depth in (0, 6):
        share = sum(row[depth] for row in text.stands) / len(text.stands)
        assert share == pytest.approx(wanted * decline**depth, abs=0.03)


def test_an_informative_drafter_tells_more_than_a_weak_one() -> None:
    walk = scenarios.turning(*[scenarios.Kind(0.6)] * 2)
    text = scenarios.make_text(walk, 3000, "confidence")
    gap = {}
    for quality, said in text.confidence.items():
        rows = list(zip(text.stands, said, strict=True))
        right = [p[0] for stood, p in rows if stood[0]]
        wrong = [p[0] for stood, p in rows if not stood[0]]
        gap[quality] = sum(right) / len(right) - sum(wrong) / len(wrong)
    assert gap[scenarios.INFORMATIVE] > 2 * gap[scenarios.WEAK] > 0


def test_a_plain_answer_costs_a_pass_a_token() -> None:
    scenario = scenarios.SCENARIOS[0]
    plain = draft_control.decode(
        draft_control.always(0), scenario, 0, 50, 0.2, scenarios.NO_CONFIDENCE
    )
    assert plain == pytest.approx(50 * scenario.costs.passes[0])


def test_transformers_heuristic_and_tiers_move_as_theirs_do() -> None:
    heuristic = draft_policies.Heuristic()
    lengths = []
    for kept in (5, 7, 0, 0):
        lengths.append(heuristic.length())
        heuristic.learn(Outcome(kept, None, 1.0, 0.0))
    assert lengths == [5, 7, 7, 6]
    tiers = draft_policies.Tiers()
    for _ in range(40):
        tiers.learn(Outcome(tiers.length(), None, 1.0, 0.0))
    assert tiers.length() == 7
    for _ in range(80):
        tiers.learn(Outcome(0, None, 1.0, 0.0))
    assert tiers.length() == 1


def test_goals_are_of_the_worst_and_the_median_run() -> None:
    quiet, noisy = scenarios.NOISES
    name, switching = "flat_high", scenarios.SWITCHING[0].name
    informed = scenarios.INFORMATIVE
    long = [
        Run(name, quiet, "none", 0.94, 0.99),
        Run(name, noisy, "weak", 1.0, 0.975),
        Run(switching, quiet, informed, 1.04, 1.5),
    ]
    short = [Run(name, quiet, "none", 0.8, 0.9), Run(name, noisy, "none", 1.0, 1.0)]
    rows = {row.name: row for row in draft_control.goal_rows(long, short)}
    values = {row_name: row.value for row_name, row in rows.items()}
    assert values["draft.median_vs_best_fixed"] == 1.0
    assert values["draft.worst_vs_best_fixed"] == 0.94
    assert values["draft.worst_vs_plain"] == 0.99
    assert values["draft.worst_vs_plain_noisy"] == 0.975
    assert values["draft.short_median"] == pytest.approx(0.9)
    assert values["draft.short_worst"] == 0.8
    assert values["draft.short_worst_vs_plain"] == 0.9
    assert values["draft.switching"] == 1.04
    assert [name for name, row in rows.items() if row.met is False] == ["draft.short_median"]


def test_in_the_real_engine_every_length_gives_the_same_answers(tmp_path: Path) -> None:
    target, drafter = tiny.make_pair(tmp_path / "pair")
    file = tmp_path / "rows.json"
    options = ["--prompts", "1", "--repeats", "1", "--max-new-tokens", "12", "--json", str(file)]
    pair = ["--model", str(target), "--drafter", str(drafter)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.draft_control", "--real-only", *options, *pair],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert rows["draft.real_same_answers"] == 1.0
    for name in ("controller", "fixed0", "fixed7", "vs_best_fixed", "vs_plain"):
        assert rows[f"draft.real_{name}"] > 0
