# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The example's check of a plan: all of it, before anything moves."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.demo import corpus

EXAMPLE = Path(__file__).parent.parent / "examples" / "plan_to_goals"
sys.path.insert(0, str(EXAMPLE))

from plan import (  # noqa: E402
    ACTIONS,
    MAX_STEPS,
    Drive,
    Goal,
    Handle,
    Pause,
    PlanRefusedError,
    World,
    goals_of,
    load_world,
)

WORLD = load_world(EXAMPLE / "world.yaml")
BRING = [
    {"action": "navigate", "to": "kitchen"},
    {"action": "pick", "object": "red cup"},
    {"action": "give", "object": "red cup", "to": "Anna"},
]


def said(plan: list[Any]) -> list[str]:
    return [str(goal) for goal in goals_of(plan, WORLD)]


def goals_or_none(plan: list[Any]) -> list[Goal] | None:
    """None: the plan is refused, in one sentence."""
    try:
        return goals_of(plan, WORLD)
    except PlanRefusedError as error:
        if "\n" in str(error):
            raise
        return None


def refusal(plan: list[Any]) -> str:
    with pytest.raises(PlanRefusedError) as refused:
        goals_of(plan, WORLD)
    return str(refused.value)


def test_a_plan_becomes_goals_in_order() -> None:
    goals = goals_of(BRING, WORLD)
    assert [str(goal) for goal in goals] == [
        "drive to kitchen",
        "pick red cup",
        "drive to office",  # where Anna is met
        "give red cup to Anna",
    ]
    assert [goal.step for goal in goals] == [1, 2, 3, 3]
    assert isinstance(goals[0], Drive)
    assert goals[0].pose == WORLD.places["kitchen"]


def test_no_drive_to_a_person_where_the_robot_is() -> None:
    plan = [{"action": "pick", "object": "book"}, {"action": "navigate", "to": "Anna"}]
    plan.append({"action": "give", "object": "book", "to": "Anna"})
    assert said(plan) == ["pick book", "drive to office", "give book to Anna"]


def test_the_other_steps() -> None:
    plan: list[Any] = [{"action": "wait", "seconds": 20}, {"action": "dock"}]
    plan += [{"action": "pick", "object": "cup", "count": 1}]
    plan += [{"action": "place", "object": "cup", "target": "shelf"}]
    assert said(plan) == ["wait 20 s", "drive to dock", "pick cup", "place cup on shelf"]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ([], "the plan is empty"),
        ([BRING[0]] * (MAX_STEPS + 1), f"{MAX_STEPS + 1} steps, more than {MAX_STEPS}"),
        ([{"action": "navigate", "to": "moon"}], "step 1, navigate moon: moon is no place"),
        ([BRING[0], {"action": "pick", "object": "dragon"}], "step 2, .*dragon is no object"),
        ([*BRING[:2], {"action": "give", "object": "red cup", "to": "Bob"}], "Bob is no person"),
        ([{"action": "open", "target": "door"}], "step 1, open door: this robot has no such"),
        ([BRING[2]], "would hold nothing then; it has to pick it up before"),
        ([{"action": "place", "object": "cup", "target": "table"}], "would hold nothing"),
        ([BRING[1], {"action": "pick", "object": "cup"}], "hand is full, it holds the red cup"),
        ([BRING[1], BRING[1]], "hand is full"),
        ([*BRING, BRING[2]], "step 4, .*would hold nothing"),
        ([BRING[1], {"action": "place", "object": "cup", "target": "table"}], "hold the red cup"),
        ([BRING[1], {"action": "place", "object": "red cup", "target": "roof"}], "roof is no spot"),
        ([{"action": "pick", "object": "cup", "count": 3}], "one thing at a time"),
        ([{"action": "wait", "seconds": -1}], "seconds: "),
        ([{"action": "wait", "seconds": 1e9}], "seconds: "),
        ([{"action": "wait", "seconds": float("nan")}], "seconds: "),
        ([{"action": "navigate"}], "to: field required"),
        ([{"action": "navigate", "to": 7}], "to: "),
        ([{"action": "navigate", "to": "kitchen", "speed": 9}], "speed: "),
        (["navigate"], "no such action"),
        ([{"to": "kitchen"}], "no such action"),
        ([None], "no such action"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(plan: list[Any], why: str) -> None:
    sentence = refusal(plan)
    assert re.search(why, sentence), sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


NAMES = st.sampled_from(
    [*WORLD.places, *WORLD.people, *WORLD.objects, *WORLD.spots, "moon", "dragon", ""]
)
STEPS = st.fixed_dictionaries(
    {"action": st.sampled_from([*ACTIONS, "open", "follow"])},
    optional={
        "to": NAMES,
        "object": NAMES,
        "target": NAMES,
        "seconds": st.one_of(st.integers(-2, 5), st.floats(), st.just("5")),
        "count": st.integers(0, 3),
    },
)


@given(st.lists(st.one_of(STEPS, st.sampled_from(BRING)), max_size=8))
def test_goals_never_ask_for_the_impossible(plan: list[Any]) -> None:
    goals = goals_or_none(plan)
    if goals is None:
        return
    held: str | None = None
    for goal in goals:
        if isinstance(goal, Drive):
            assert goal.pose == WORLD.places[goal.place]
        elif isinstance(goal, Pause):
            assert goal.seconds > 0
        else:
            assert goal.object in WORLD.objects
            assert held == (None if goal.operation == "pick" else goal.object)
            held = goal.object if goal.operation == "pick" else None
    assert [goal.step for goal in goals] == sorted(goal.step for goal in goals)
    assert {goal.step for goal in goals} == set(range(1, len(plan) + 1))


def test_every_plan_of_the_embedded_pairs_form_is_judged() -> None:
    """What the corpus has: carried out, or refused with a sentence, and both are seen."""
    done = refused = 0
    for example in itertools.islice(corpus.examples(3), 1500):
        goals = goals_or_none(json.loads(corpus.dump_plan(example.plan))["plan"])
        done, refused = done + (goals is not None), refused + (goals is None)
    assert done > 5
    assert refused > 5


def test_a_person_must_be_at_a_place() -> None:
    with pytest.raises(ValueError, match="Anna is met in nowhere, which is no place"):
        World.model_validate({"places": {}, "people": {"Anna": "nowhere"}})


def test_goals_are_whole() -> None:
    assert all(isinstance(goal, (Drive, Handle, Pause)) for goal in goals_of(BRING, WORLD))
