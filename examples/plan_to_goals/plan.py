# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From a model's plan to goals, as pure functions: all is checked before anything moves.

A plan that names an unknown place or object, an action that the robot does not have, or an order
that cannot work (to give what is not held) is refused as a whole, with one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

MAX_STEPS = 20
MAX_WAIT_S = 3600.0


class PlanRefusedError(Exception):
    """The plan is not carried out; one sentence says why."""


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Pose(Strict):
    """x, y in m, yaw in rad."""

    x: float
    y: float
    yaw: float = 0.0


class World(Strict):
    """What a plan may speak of; see world.yaml."""

    frame: str = "map"
    places: dict[str, Pose]
    people: dict[str, str] = {}
    objects: tuple[str, ...] = Field((), strict=False)
    spots: tuple[str, ...] = Field((), strict=False)

    @model_validator(mode="after")
    def _people_are_at_places(self) -> World:
        for person, place in self.people.items():
            if place not in self.places:
                raise ValueError(f"people: {person} is met in {place}, which is no place")
        return self


def load_world(path: Path) -> World:
    """Read a world.

    Raises:
        OSError, yaml.YAMLError, ValueError: it cannot be read, or is none.
    """
    return World.model_validate(yaml.safe_load(path.read_text()))


# The steps of a plan, as the model writes them.


class Navigate(Strict):
    """Drive to a place, or to where a person is met."""

    action: Literal["navigate"]
    to: str


class Dock(Strict):
    """Drive to the place named dock."""

    action: Literal["dock"]


class Pick(Strict):
    """Take an object up."""

    action: Literal["pick"]
    object: str
    count: int = Field(1, ge=1)


class Place(Strict):
    """Put the object that is held down."""

    action: Literal["place"]
    object: str
    target: str


class Give(Strict):
    """Hand the object that is held to a person; the robot drives there if it is not."""

    action: Literal["give"]
    object: str
    to: str


class Wait(Strict):
    """Let time pass."""

    action: Literal["wait"]
    seconds: float = Field(gt=0.0, le=MAX_WAIT_S)


Step = Annotated[Navigate | Dock | Pick | Place | Give | Wait, Field(discriminator="action")]
STEP: TypeAdapter[Step] = TypeAdapter(Step)
ACTIONS = ("navigate", "pick", "place", "give", "wait", "dock")


# What is sent to the robot.


class Drive(Strict):
    """A goal of NavigateToPose."""

    step: int
    place: str
    pose: Pose

    def __str__(self) -> str:
        return f"drive to {self.place}"


class Handle(Strict):
    """A goal of the arm."""

    step: int
    operation: Literal["pick", "place", "give"]
    object: str
    target: str = ""

    def __str__(self) -> str:
        link = {"pick": "", "place": " on ", "give": " to "}[self.operation]
        return f"{self.operation} {self.object}{link}{self.target}"


class Pause(Strict):
    """No goal: time passes."""

    step: int
    seconds: float

    def __str__(self) -> str:
        return f"wait {self.seconds:g} s"


Goal = Drive | Handle | Pause


def goals_of(plan: Sequence[Any], world: World) -> list[Goal]:
    """The goals that carry the plan out, in order; `plan` is what the JSON says.

    Raises:
        PlanRefusedError: not all of it can be carried out.
    """
    if not plan:
        raise PlanRefusedError("the plan is empty: there is nothing to do")
    if len(plan) > MAX_STEPS:
        raise PlanRefusedError(f"the plan has {len(plan)} steps, more than {MAX_STEPS}")
    goals: list[Goal] = []
    robot = _Robot(world)
    for number, raw in enumerate(plan, 1):
        try:
            goals += robot.goals(number, _step(raw))
        except PlanRefusedError as error:
            raise PlanRefusedError(f"step {number}, {_shown(raw)}: {error}") from None
    return goals


def _step(raw: Any) -> Step:
    if not isinstance(raw, dict) or raw.get("action") not in ACTIONS:
        raise PlanRefusedError(f"this robot has no such action, only {', '.join(ACTIONS)}")
    try:
        return STEP.validate_python(raw)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in found["loc"][1:]) or "step"
        raise PlanRefusedError(f"{where}: {found['msg'][0].lower()}{found['msg'][1:]}") from None


def _shown(raw: Any) -> str:
    said = json.dumps(raw, ensure_ascii=False)
    if isinstance(raw, dict) and isinstance(raw.get("action"), str):
        said = " ".join(str(value) for value in raw.values())
    return said if len(said) <= 60 else said[:57] + "..."


class _Robot:
    """Where the robot will be and what it will hold, step by step."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at: str | None = None
        self._holds: str | None = None

    def goals(self, number: int, step: Step) -> list[Goal]:
        if isinstance(step, Navigate):
            return self._drive(number, self._place_of(step.to))
        if isinstance(step, Dock):
            return self._drive(number, self._place_of("dock"))
        if isinstance(step, Wait):
            return [Pause(step=number, seconds=step.seconds)]
        self._known(step.object, self._world.objects, "object")
        if isinstance(step, Pick):
            if step.count > 1:
                raise PlanRefusedError("the hand holds one thing at a time")
            if self._holds is not None:
                raise PlanRefusedError(f"the hand is full, it holds the {self._holds}")
            self._holds = step.object
            return [Handle(step=number, operation="pick", object=step.object)]
        if self._holds != step.object:
            held = f"the {self._holds}" if self._holds else "nothing"
            raise PlanRefusedError(f"the robot would hold {held} then; it has to pick it up before")
        if isinstance(step, Place):
            target, drives = self._known(step.target, self._world.spots, "spot"), []
        else:
            target = self._known(step.to, self._world.people, "person")
            place = self._place_of(target)
            drives = [] if place == self._at else self._drive(number, place)
        self._holds = None
        handle = Handle(step=number, operation=step.action, object=step.object, target=target)
        return [*drives, handle]

    def _drive(self, number: int, place: str) -> list[Goal]:
        self._at = place
        return [Drive(step=number, place=place, pose=self._world.places[place])]

    def _place_of(self, name: str) -> str:
        place = self._world.people.get(name, name)
        return self._known(place, self._world.places, "place")

    @staticmethod
    def _known(name: str, names: Sequence[str] | dict[str, Any], kind: str) -> str:
        if name not in names:
            raise PlanRefusedError(
                f"{name} is no {kind} that the robot knows; it knows {', '.join(names) or 'none'}"
            )
        return name
