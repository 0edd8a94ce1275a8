# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Instructions to a robot with the answer that is wanted of the embedded pair.

An answer is one sentence, a line break and a plan in compact JSON::

    I will bring Anna the red cup from the kitchen.
    {"plan":[{"action":"navigate","to":"kitchen"},{"action":"pick","object":"red cup"},...]}

Everything is a function of a seed. Training and held-out examples share no plan: the hash of a
plan says to which side it belongs (`is_held_out`). Actions and their keys:

=============  ==================================  ============================================
action         keys                                meaning
=============  ==================================  ============================================
navigate       to                                  drive to a place
pick           object, count (if more than one)    take it up
place          object, target                      put down what was picked
give           object, to                          hand over to a person ("user": who asked)
open, close    target
turn_on/_off   target
inspect        target
wait           seconds
follow         person, to (optional)
report         to                                  tell that person how it went
dock                                               return to the charger
=============  ==================================  ============================================
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gemma_mtp_ros.demo import vocabulary as words

Step = dict[str, Any]
Message = dict[str, str]

MAX_STEPS = 5
HELD_OUT_SHARE = 16  # one plan of so many is kept from training
HELD_OUT_SEED = 20260
REFUSAL = "I can only plan tasks for this robot."


@dataclass(frozen=True)
class Example:
    """One instruction with the wanted sentence and plan."""

    instruction: str
    sentence: str
    plan: tuple[Step, ...]

    @property
    def answer(self) -> str:
        """The text that the pair should generate, without the end-of-turn token."""
        return f"{self.sentence}\n{dump_plan(self.plan)}"

    @property
    def instance(self) -> str:
        """What makes this example a case of its own: its plan (an empty one: its wording)."""
        return dump_plan(self.plan) if self.plan else self.instruction


@dataclass(frozen=True)
class _Clause:
    """One errand: how it is asked for, how it is promised, what is to be done."""

    request: str
    promise: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class _Noun:
    """A phrase as said in the request, as said in the promise, and its name in the plan."""

    said: str
    promised: str
    name: str
    count: int = 1


def dump_plan(plan: tuple[Step, ...]) -> str:
    """Compact JSON of a plan, the exact text that the pair is trained on."""
    return json.dumps({"plan": list(plan)}, separators=(",", ":"), ensure_ascii=False)


def is_held_out(example: Example) -> bool:
    """Whether `example` belongs to the held-out side; a pure function of its instance."""
    return zlib.crc32(example.instance.encode()) % HELD_OUT_SHARE == 0


def plural(noun: str) -> str:
    """Regular English plural of an entry of `vocabulary.OBJECTS`."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


_ONSETS = (
    *"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "fl", "gr", "pl", "qu", "sh", "st", "tr",
)  # fmt: skip
_VOWELS = (*"aeiouaeio", "ai", "ea", "ou")
_CODAS = ("", "", "", "", *"nrlstxm", "ck")


class _Speaker:
    """Draws phrases; `free` is the probability of an invented name in place of a listed one."""

    def __init__(self, rng: random.Random, free: float) -> None:
        self.rng = rng
        self.free = free
        self.pick = rng.choice

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def invented(self) -> str:
        """A pronounceable lower-case word of 2 or 3 syllables that means nothing."""
        syllables = (
            self.pick(_ONSETS) + self.pick(_VOWELS) + self.pick(_CODAS)
            for _ in range(self.rng.randint(2, 3))
        )
        return "".join(syllables)

    def place(self) -> _Noun:
        if self.chance(self.free):
            name = self.invented() + self.pick(["", " room", " lab", " hall", " area", " station"])
        elif self.chance(0.25):
            letter = self.pick("ABCDEFGH") if self.chance(0.3) else ""
            name = f"{self.pick(words.NUMBERED_PLACES)} {letter}{self.number()}"
            return _Noun(name, name, name)
        else:
            name = self.pick(words.PLACES)
        return _Noun(f"the {name}", f"the {name}", name)

    def number(self) -> int:
        """1 to 999, small ones more often."""
        return self.rng.randint(1, self.pick((9, 20, 99, 99, 999)))

    def person(self, allow_me: bool = True) -> _Noun:
        if allow_me and self.chance(0.25):
            return _Noun("me", "you", "user")
        if self.chance(self.free):
            name = self.invented().capitalize()
        elif self.chance(0.25):
            role = self.pick(words.ROLES)
            return _Noun(f"the {role}", f"the {role}", role)
        else:
            name = self.pick(words.PEOPLE)
        return _Noun(name, name, name)

    def thing(self) -> _Noun:
        noun = self.invented() if self.chance(self.free) else self.pick(words.OBJECTS)
        adjectives = []
        if self.chance(0.6):
            adjectives = self.rng.sample(words.ADJECTIVES, 2 if self.chance(0.15) else 1)
        name = " ".join([*adjectives, noun])
        if self.chance(0.12):
            count = self.rng.randint(2, 10)
            many = " ".join([*adjectives, plural(noun)])
            said = words.NUMBER_WORDS[count - 1] if self.chance(0.6) else str(count)
            return _Noun(f"{said} {many}", f"{count} {many}", name, count)
        article = "an" if name[0] in "aeiou" else "a"
        return _Noun(f"{self.pick(['the', 'the', article])} {name}", f"the {name}", name)

    def target(self, listed: tuple[str, ...]) -> str:
        return self.invented() if self.chance(self.free) else self.pick(listed)


def _go(to: _Noun) -> Step:
    return {"action": "navigate", "to": to.name}


def _take(thing: _Noun) -> Step:
    step: Step = {"action": "pick", "object": thing.name}
    if thing.count > 1:
        step["count"] = thing.count
    return step


def _navigate(s: _Speaker) -> _Clause:
    to = s.place()
    verb = s.pick(["go to", "drive to", "move to", "head to", "navigate to", "head over to"])
    return _Clause(f"{verb} {to.said}", f"go to {to.promised}", (_go(to),))


def _bring(s: _Speaker) -> _Clause:
    thing, place, person = s.thing(), s.place(), s.person()
    verb = s.pick(["bring", "fetch", "get"])
    request = s.pick([
        f"{verb} {person.said} {thing.said} from {place.said}",
        f"{verb} {thing.said} from {place.said} for {person.said}",
        f"go to {place.said} and {verb} {person.said} {thing.said}",
        f"deliver {thing.said} from {place.said} to {person.said}",
    ])  # fmt: skip
    give = {"action": "give", "object": thing.name, "to": person.name}
    promise = f"bring {person.promised} {thing.promised} from {place.promised}"
    return _Clause(request, promise, (_go(place), _take(thing), give))


def _transport(s: _Speaker) -> _Clause:
    thing, origin, goal, (where, spot) = s.thing(), s.place(), s.place(), s.pick(words.SPOTS)
    if s.chance(0.5):
        request = s.pick([
            f"take {thing.said} from {origin.said} and put it {where} the {spot} in {goal.said}",
            f"pick up {thing.said} in {origin.said} and put it {where} the {spot} in {goal.said}",
            f"get {thing.said} from {origin.said} and leave it {where} the {spot} in {goal.said}",
        ])  # fmt: skip
        if thing.count > 1:
            request = request.replace(" it ", " them ")
        promise = f"put {thing.promised} from {origin.promised} {where} the {spot}"
        promise += f" in {goal.promised}"
        target = spot
    else:
        verb = s.pick(["take", "move", "carry", "transport"])
        request = f"{verb} {thing.said} from {origin.said} to {goal.said}"
        promise = f"take {thing.promised} from {origin.promised} to {goal.promised}"
        target = "floor"
    put = {"action": "place", "object": thing.name, "target": target}
    return _Clause(request, promise, (_go(origin), _take(thing), _go(goal), put))


def _pick(s: _Speaker) -> _Clause:
    thing = s.thing()
    verb = s.pick(["pick up", "grab", "take", "pick"])
    return _Clause(f"{verb} {thing.said}", f"pick up {thing.promised}", (_take(thing),))


def _put(s: _Speaker) -> _Clause:
    thing, (where, spot) = s.thing(), s.pick(words.SPOTS)
    it = "it" if thing.count == 1 else "them"
    request = s.pick([
        f"put {thing.said} {where} the {spot}",
        f"place {thing.said} {where} the {spot}",
        f"pick up {thing.said} and put {it} {where} the {spot}",
        f"grab {thing.said} and place {it} {where} the {spot}",
    ])  # fmt: skip
    put = {"action": "place", "object": thing.name, "target": spot}
    return _Clause(request, f"put {thing.promised} {where} the {spot}", (_take(thing), put))


def _hand(s: _Speaker) -> _Clause:
    thing, person = s.thing(), s.person()
    request = s.pick([
        f"give {person.said} {thing.said}",
        f"hand {person.said} {thing.said}",
        f"give {thing.said} to {person.said}",
        f"hand {thing.said} to {person.said}",
    ])  # fmt: skip
    give = {"action": "give", "object": thing.name, "to": person.name}
    return _Clause(request, f"give {person.promised} {thing.promised}", (_take(thing), give))


def _operate(
    s: _Speaker, action: str, verbs: list[str], promise: str, listed: tuple[str, ...]
) -> _Clause:
    target = s.target(listed)
    request, promise = f"{s.pick(verbs)} the {target}", f"{promise} the {target}"
    step = {"action": action, "target": target}
    if s.chance(0.4):
        return _Clause(request, promise, (step,))
    place = s.place()
    if s.chance(0.25):
        request = f"go to {place.said} and {request}"
    else:
        request = f"{request} in {place.said}"
    return _Clause(request, f"{promise} in {place.promised}", (_go(place), step))


def _open(s: _Speaker) -> _Clause:
    return _operate(s, "open", ["open"], "open", words.OPENABLE)


def _close(s: _Speaker) -> _Clause:
    return _operate(s, "close", ["close", "shut"], "close", words.OPENABLE)


def _turn_on(s: _Speaker) -> _Clause:
    return _operate(s, "turn_on", ["turn on", "switch on", "start"], "turn on", words.DEVICES)


def _turn_off(s: _Speaker) -> _Clause:
    return _operate(s, "turn_off", ["turn off", "switch off", "stop"], "turn off", words.DEVICES)


def _inspect(s: _Speaker) -> _Clause:
    listed = s.pick((words.INSPECTABLE, words.OPENABLE + words.DEVICES))
    verbs = ["inspect", "check", "look at", "have a look at", "examine"]
    return _operate(s, "inspect", verbs, "inspect", listed)


def _wait(s: _Speaker) -> _Clause:
    verb = s.pick(["wait", "wait for", "pause for", "hold on for"])
    if s.chance(0.4):
        amount, unit, factor = s.rng.randint(1, 10), "minute", 60
    else:
        amount, unit, factor = s.pick((*range(1, 11), 15, 20, 25, 30, 40, 45, 50, 90)), "second", 1
    unit += "s" if amount > 1 else ""
    said = words.NUMBER_WORDS[amount - 1] if amount <= 10 and s.chance(0.5) else amount
    step = {"action": "wait", "seconds": amount * factor}
    return _Clause(f"{verb} {said} {unit}", f"wait {amount} {unit}", (step,))


def _follow(s: _Speaker) -> _Clause:
    person = s.person()
    request, promise = f"follow {person.said}", f"follow {person.promised}"
    step = {"action": "follow", "person": person.name}
    if s.chance(0.5):
        to = s.place()
        request, promise = f"{request} to {to.said}", f"{promise} to {to.promised}"
        step["to"] = to.name
    return _Clause(request, promise, (step,))


def _report(s: _Speaker) -> _Clause:
    person = s.person()
    request = s.pick([
        f"report to {person.said}",
        f"report back to {person.said}",
        f"tell {person.said} how it went",
        f"let {person.said} know",
    ])  # fmt: skip
    return _Clause(
        request, f"report to {person.promised}", ({"action": "report", "to": person.name},)
    )


def _dock(s: _Speaker) -> _Clause:
    request = s.pick([
        "go back to your dock", "return to the dock", "go charging", "recharge",
        "dock", "go home", "drive back to the charger", "go to your charging station",
    ])  # fmt: skip
    return _Clause(request, "return to the dock", ({"action": "dock"},))


_ERRANDS: tuple[tuple[Callable[[_Speaker], _Clause], int], ...] = (
    (_navigate, 10), (_bring, 22), (_transport, 14), (_pick, 4), (_put, 10), (_hand, 6),
    (_open, 5), (_close, 4), (_turn_on, 4), (_turn_off, 4), (_inspect, 10), (_wait, 5),
    (_follow, 5), (_report, 4), (_dock, 4),
)  # fmt: skip
_ERRAND_KINDS = [kind for kind, _ in _ERRANDS]
_ERRAND_WEIGHTS = [weight for _, weight in _ERRANDS]


def _clauses(s: _Speaker) -> list[_Clause]:
    """One to three errands with at most `MAX_STEPS` steps between them."""
    wanted = s.pick((1, 1, 1, 1, 2, 2, 2, 2, 2, 3))
    while True:
        kinds = s.rng.choices(_ERRAND_KINDS, _ERRAND_WEIGHTS, k=wanted)
        clauses = [kind(s) for kind in kinds]
        if sum(len(clause.steps) for clause in clauses) <= MAX_STEPS:
            return clauses


def _join(s: _Speaker, requests: list[str]) -> str:
    if len(requests) == 1:
        return requests[0]
    if len(requests) == 2:
        first, second = requests
        return s.pick([
            f"{first}, then {second}",
            f"{first} and then {second}",
            f"first {first}, then {second}",
            f"{first}, and after that {second}",
            f"before you {second}, {first}",
            f"{first} before you {second}",
        ])  # fmt: skip
    first, second, third = requests
    return s.pick([
        f"{first}, then {second}, then {third}",
        f"first {first}, then {second}, and finally {third}",
        f"{first}, {second} and then {third}",
    ])  # fmt: skip


_PLAIN = ("{}.", "{}.", "{}", "Robot, {}.", "Hey robot, {}.", "{}, please.")
_POLITE = (
    "{}.", "{}.", "{}", "Please {}.", "please {}", "{}, please.", "Could you {}?", "Can you {}?",
    "Could you please {}?", "Robot, {}.", "I need you to {}.", "I want you to {}.",
    "Would you {}?", "Hey robot, {}.", "{} please", "You should {}.",
)  # fmt: skip


def _address(s: _Speaker, request: str) -> str:
    """Wrap a request as people say it: politely or not, with or without a full stop."""
    form = s.pick(_PLAIN if request.startswith("before") else _POLITE)
    text = form.format(request)
    return text[0].upper() + text[1:] if s.chance(0.85) else text


def _example(s: _Speaker) -> Example:
    if s.chance(0.03):
        filler = s.pick([s.place, s.person, s.thing])().said
        return Example(s.pick(words.OFF_TOPIC).format(filler), REFUSAL, ())
    clauses = _clauses(s)
    promises = [clause.promise for clause in clauses]
    sentence = f"I will {', then '.join(promises)}."
    instruction = _address(s, _join(s, [clause.request for clause in clauses]))
    return Example(instruction, sentence, tuple(x for clause in clauses for x in clause.steps))


def examples(seed: int, *, held_out: bool = False, free_names: float = 0.0) -> Iterator[Example]:
    """Yield examples of one side without end.

    free_names: probability, for each name, of an invented one that is in no list.
    """
    speaker = _Speaker(random.Random(seed), free_names)
    while True:
        example = _example(speaker)
        if is_held_out(example) == held_out:
            yield example


def held_out(count: int = 200, *, free_names: float = 0.0) -> list[Example]:
    """The first `count` held-out examples, no two of the same instance; always the same list."""
    chosen: dict[str, Example] = {}
    for example in examples(HELD_OUT_SEED, held_out=True, free_names=free_names):
        chosen.setdefault(example.instance, example)
        if len(chosen) == count:
            break
    return list(chosen.values())


def conversations(seed: int, *, free_names: float = 0.15) -> Iterator[list[Message]]:
    """Yield training conversations without end: mostly one turn, some with a system turn before.

    One in eight has two or three instructions, so that earlier turns are seen as context.
    """
    rng = random.Random(seed)
    speaker = _Speaker(rng, free_names)
    stream = examples(rng.getrandbits(32), free_names=free_names)
    while True:
        messages: list[Message] = []
        if speaker.chance(0.15):
            prompts = rng.sample(words.SYSTEM_PROMPTS, rng.randint(1, 3))
            text = " ".join(prompts).replace("{}", speaker.place().name)
            messages.append({"role": "system", "content": text})
        for _ in range(rng.randint(2, 3) if speaker.chance(0.125) else 1):
            example = next(stream)
            messages.append({"role": "user", "content": example.instruction})
            messages.append({"role": "assistant", "content": example.answer})
        yield messages
