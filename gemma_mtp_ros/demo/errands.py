# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Errands of a robot: how each is asked for, how it is promised, and the steps it takes.

The steps and their keys are listed in `corpus`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemma_mtp_ros.demo import vocabulary as words
from gemma_mtp_ros.demo.speech import Noun, Speaker

Step = dict[str, Any]

_FURNITURE = frozenset(noun for _, noun in words.SPOTS)
YOU = Noun("me", "you", "user")


@dataclass(frozen=True)
class Clause:
    """One errand: how it is asked for, how it is promised, what is to be done."""

    request: str
    promise: str
    steps: tuple[Step, ...]


def go(to: Noun) -> Step:
    """The step to a place or a person."""
    return {"action": "navigate", "to": to.name}


def take(thing: Noun) -> Step:
    """The step that picks a thing up."""
    step: Step = {"action": "pick", "object": thing.name}
    if thing.count > 1:
        step["count"] = thing.count
    return step


def give(thing: Noun, person: Noun) -> Step:
    """The step that hands a thing over."""
    return {"action": "give", "object": thing.name, "to": person.name}


def put_down(thing: Noun, target: str = "floor") -> Step:
    """The step that puts a thing somewhere."""
    return {"action": "place", "object": thing.name, "target": target}


def laid_in(place: Noun) -> str:
    """Where a thing ends that is brought to `place`: on a table as such, else on the floor."""
    return place.name if place.name in _FURNITURE else "floor"


def navigate(s: Speaker) -> Clause:
    """To a place, a person or whoever asks."""
    if s.chance(0.15):
        if s.chance(0.6):
            request = s.pick(["come here", "come to me", "come over here", "come over", "come back",
                              "come back to me", "come back here", "return to me"])  # fmt: skip
            return Clause(request, "come to you", (go(YOU),))
        to = s.person(allow_me=False)
    else:
        to = s.place()
    verb = s.pick([
        "go to", "go to", "go to", "drive to", "move to", "head to", "navigate to", "head over to",
        "walk to", "go over to", "drive over to", "return to", "go back to", "visit",
    ])  # fmt: skip
    return Clause(f"{verb} {to.said}", f"go to {to.promised}", (go(to),))


def bring(s: Speaker) -> Clause:
    """From a place to a person; to whoever asks, if nobody is named."""
    thing, place, person = s.thing(), s.place(), s.person()
    verb = s.pick(["bring", "bring", "fetch", "get"])
    steps = (go(place), take(thing), give(thing, person))
    promise = f"bring {person.promised} {thing.promised} from {place.promised}"
    origin = f"from {place.said}"
    are = "that is" if thing.pronoun == "it" else "that are"
    if s.chance(0.12) and place.name not in _FURNITURE:
        where, spot = s.pick(words.SPOTS)
        origin = s.pick((f"from the {spot}", f"{are} {where} the {spot}")) + f" in {place.said}"
    elif s.chance(0.08):
        origin = f"{are} in {place.said}"
    if person.said == "me" and s.chance(0.35):
        return Clause(f"{verb} {thing.said} {origin}", promise, steps)
    request = s.pick([
        f"{verb} {person.said} {thing.said} {origin}",
        f"{verb} {person.said} {thing.said} {origin}",
        f"{verb} {thing.said} {origin} for {person.said}",
        f"deliver {thing.said} {origin} to {person.said}",
        f"{verb} {thing.said} {origin} to {person.said}",
    ])  # fmt: skip
    return Clause(request, promise, steps)


def transport(s: Speaker) -> Clause:
    """From a place to a place."""
    thing, origin, goal = s.thing(), s.place(), s.place()
    if s.chance(0.4):
        where, spot = s.pick(words.SPOTS)
        request = s.pick([
            f"take {thing.said} from {origin.said} and put {thing.pronoun} ",
            f"pick up {thing.said} in {origin.said} and put {thing.pronoun} ",
            f"get {thing.said} from {origin.said} and leave {thing.pronoun} ",
        ])  # fmt: skip
        request += f"{where} the {spot} in {goal.said}"
        promise = f"put {thing.promised} from {origin.promised} {where} the {spot}"
        promise += f" in {goal.promised}"
        target = spot
    else:
        verb = s.pick(["take", "move", "carry", "transport", "bring", "deliver"])
        request = f"{verb} {thing.said} from {origin.said} to {goal.said}"
        promise = f"take {thing.promised} from {origin.promised} to {goal.promised}"
        target = laid_in(goal)
    return Clause(request, promise, (go(origin), take(thing), go(goal), put_down(thing, target)))


def carry(s: Speaker) -> Clause:
    """To a place; from where is not said."""
    thing, goal = s.thing(), s.place()
    verb = s.pick(["take", "bring", "carry", "move", "deliver"])
    request = f"{verb} {thing.said} to {goal.said}"
    if goal.name not in _FURNITURE and s.chance(0.25):
        request = f"{s.pick(['put', 'leave', 'place'])} {thing.said} in {goal.said}"
    return Clause(
        request,
        f"take {thing.promised} to {goal.promised}",
        (take(thing), go(goal), put_down(thing, laid_in(goal))),
    )


def pick(s: Speaker) -> Clause:
    """Take something up, here or somewhere."""
    thing = s.thing()
    verb = s.pick(["pick up", "pick up", "grab", "take", "pick", "collect"])
    if s.chance(0.6):
        return Clause(f"{verb} {thing.said}", f"pick up {thing.promised}", (take(thing),))
    place = s.place()
    return Clause(
        f"{verb} {thing.said} {s.pick(['from', 'from', 'in'])} {place.said}",
        f"pick up {thing.promised} from {place.promised}",
        (go(place), take(thing)),
    )


def put(s: Speaker) -> Clause:
    """Onto or into something."""
    thing, (where, spot) = s.thing(), s.pick(words.SPOTS)
    request = s.pick([
        f"put {thing.said} {where} the {spot}",
        f"put {thing.said} {where} the {spot}",
        f"place {thing.said} {where} the {spot}",
        f"pick up {thing.said} and put {thing.pronoun} {where} the {spot}",
        f"grab {thing.said} and place {thing.pronoun} {where} the {spot}",
    ])  # fmt: skip
    promise = f"put {thing.promised} {where} the {spot}"
    if s.chance(0.75):
        return Clause(request, promise, (take(thing), put_down(thing, spot)))
    place = s.place()
    return Clause(
        f"{request} in {place.said}",
        f"{promise} in {place.promised}",
        (take(thing), go(place), put_down(thing, spot)),
    )


def hand(s: Speaker) -> Clause:
    """To a person; from where is not said."""
    thing = s.thing()
    person = YOU if s.chance(0.3) else s.person()
    verb = s.pick(["bring", "bring", "get", "fetch", "give", "give", "hand", "pass"])
    goes = s.pick(["give", "hand", "take", "bring", "deliver", "carry"])
    request = s.pick([
        f"{verb} {person.said} {thing.said}",
        f"{verb} {person.said} {thing.said}",
        f"{goes} {thing.said} to {person.said}",
    ])  # fmt: skip
    return Clause(
        request,
        f"give {person.promised} {thing.promised}",
        (take(thing), give(thing, person)),
    )


def deliver(s: Speaker) -> Clause:
    """To somebody at a place."""
    thing, person, place = s.thing(), s.person(allow_me=False), s.place()
    verb = s.pick(["take", "bring", "deliver", "carry", "give"])
    steps: tuple[Step, ...] = (take(thing), go(place), give(thing, person))
    promise = f"give {person.promised} {thing.promised} in {place.promised}"
    request = f"{verb} {thing.said} to {person.said} {s.pick(['in', 'in', 'at'])} {place.said}"
    if s.chance(0.25):
        origin = s.place()
        request = request.replace(" to ", f" from {origin.said} to ", 1)
        promise = promise.replace(f" in {place.promised}", "")
        promise += f" from {origin.promised} in {place.promised}"
        steps = (go(origin), *steps)
    return Clause(request, promise, steps)


def _operate(
    s: Speaker, action: str, verbs: list[str], promise: str, listed: tuple[str, ...]
) -> Clause:
    target = s.target(listed)
    verb = s.pick(verbs)
    request, promise = f"{verb} the {target}", f"{promise} the {target}"
    if action.startswith("turn_") and s.chance(0.25):
        first, *rest = verb.split()
        request = " ".join([first, "the", target, *rest])
    elif action == "inspect" and s.chance(0.15):
        request = f"check if the {target} is {s.pick(words.STATES)}"
    step = {"action": action, "target": target}
    if s.chance(0.5):
        return Clause(request, promise, (step,))
    place = s.place()
    where = s.pick(["in", "in", "in", "at"])
    return Clause(
        f"{request} {where} {place.said}", f"{promise} in {place.promised}", (go(place), step)
    )


def open_(s: Speaker) -> Clause:
    """Open something, here or somewhere."""
    return _operate(s, "open", ["open"], "open", words.OPENABLE)


def close(s: Speaker) -> Clause:
    """Close something, here or somewhere."""
    return _operate(s, "close", ["close", "shut"], "close", words.OPENABLE)


def turn_on(s: Speaker) -> Clause:
    """Turn a device on, here or somewhere."""
    verbs = ["turn on", "turn on", "switch on", "start"]
    return _operate(s, "turn_on", verbs, "turn on", words.DEVICES)


def turn_off(s: Speaker) -> Clause:
    """Turn a device off, here or somewhere."""
    verbs = ["turn off", "turn off", "switch off", "stop"]
    return _operate(s, "turn_off", verbs, "turn off", words.DEVICES)


def inspect(s: Speaker) -> Clause:
    """Look at a place or a thing."""
    verbs = ["inspect", "check", "look at", "have a look at", "examine"]
    if s.chance(0.15):
        place = s.place()
        steps = (go(place), {"action": "inspect", "target": place.name})
        return Clause(f"{s.pick(verbs)} {place.said}", f"inspect {place.promised}", steps)
    listed = s.pick((words.INSPECTABLE, words.OPENABLE + words.DEVICES))
    return _operate(s, "inspect", verbs, "inspect", listed)


def wait(s: Speaker) -> Clause:
    """Let seconds or minutes pass."""
    verb = s.pick(["wait", "wait for", "wait for", "pause for", "hold on for"])
    if s.chance(0.4):
        amount, unit, factor = s.rng.randint(1, 10), "minute", 60
    else:
        amount, unit, factor = (
            s.pick((*range(1, 11), 15, 20, 25, 30, 40, 45, 50, 60, 90)),
            "second",
            1,
        )
    unit += "s" if amount > 1 else ""
    said = words.NUMBER_WORDS[amount - 1] if amount <= 10 and s.chance(0.5) else str(amount)
    said = "a" if amount == 1 and s.chance(0.5) else said
    step = {"action": "wait", "seconds": amount * factor}
    return Clause(f"{verb} {said} {unit}", f"wait {amount} {unit}", (step,))


def follow(s: Speaker) -> Clause:
    """Go after a person."""
    person = s.person()
    request, promise = f"follow {person.said}", f"follow {person.promised}"
    step = {"action": "follow", "person": person.name}
    if s.chance(0.5):
        to = s.place()
        request, promise = f"{request} to {to.said}", f"{promise} to {to.promised}"
        step["to"] = to.name
    return Clause(request, promise, (step,))


def report(s: Speaker) -> Clause:
    """Tell a person; what is told is no part of the plan."""
    person = s.person()
    news = s.pick([
        f"the {s.pick(words.OPENABLE)} is {s.pick(words.STATES)}",
        f"the {s.pick(words.DEVICES)} is {s.pick(words.STATES)}",
        f"{s.thing().said} is {s.pick(words.STATES)}",
        f"{s.person(allow_me=False).said} is {s.pick(['here', 'late', 'waiting'])}",
        "I am late", "dinner is ready", "you are done", "I am waiting",
    ])  # fmt: skip
    request = s.pick([
        f"report to {person.said}",
        f"report back to {person.said}",
        f"tell {person.said} how it went",
        f"let {person.said} know",
        f"tell {person.said} that {news}",
        f"report to {person.said} that {news}",
    ])  # fmt: skip
    return Clause(
        request, f"report to {person.promised}", ({"action": "report", "to": person.name},)
    )


def dock(s: Speaker) -> Clause:
    """Back to the charger."""
    base = s.pick(["dock", "dock", "charger", "charging station", "charging dock", "base"])
    verb = s.pick(["go to", "drive to", "move to", "head to", "return to", "go back to",
                   "drive back to", "come back to", "navigate to"])  # fmt: skip
    request = f"{verb} {s.pick(['the', 'the', 'your'])} {base}"
    if s.chance(0.3):
        request = s.pick(["go charging", "recharge", "dock", "go home", "go back home",
                          "charge yourself", "go and charge", "charge your battery"])  # fmt: skip
    return Clause(request, "return to the dock", ({"action": "dock"},))


# How often each is asked for.
ERRANDS: tuple[tuple[Callable[[Speaker], Clause], int], ...] = (
    (navigate, 18), (bring, 18), (transport, 9), (carry, 9), (pick, 7), (put, 9), (hand, 12),
    (deliver, 7), (open_, 5), (close, 4), (turn_on, 5), (turn_off, 4), (inspect, 9), (wait, 6),
    (follow, 5), (report, 5), (dock, 6),
)  # fmt: skip
