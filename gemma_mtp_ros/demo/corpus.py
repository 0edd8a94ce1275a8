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
from collections.abc import Iterator
from dataclasses import dataclass

from gemma_mtp_ros.demo import vocabulary as words
from gemma_mtp_ros.demo.chains import CHAINS
from gemma_mtp_ros.demo.errands import ERRANDS, YOU, Clause, Step, give, go, take
from gemma_mtp_ros.demo.speech import Speaker

Message = dict[str, str]

MAX_STEPS = 6
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


def dump_plan(plan: tuple[Step, ...]) -> str:
    """Compact JSON of a plan, the exact text that the pair is trained on."""
    return json.dumps({"plan": list(plan)}, separators=(",", ":"), ensure_ascii=False)


def is_held_out(example: Example) -> bool:
    """Whether `example` belongs to the held-out side; a pure function of its instance."""
    return zlib.crc32(example.instance.encode()) % HELD_OUT_SHARE == 0


_KINDS = [kind for kind, _ in ERRANDS]
_WEIGHTS = [weight for _, weight in ERRANDS]


def _clauses(s: Speaker) -> list[Clause]:
    """One to four errands with at most `MAX_STEPS` steps between them."""
    wanted = s.pick((1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4))
    while True:
        clauses: list[Clause] = []
        if wanted > 1 and s.chance(0.4):
            clauses = s.pick(CHAINS)(s)
        kinds = s.rng.choices(_KINDS, _WEIGHTS, k=max(0, wanted - len(clauses)))
        clauses += [kind(s) for kind in kinds]
        if sum(len(clause.steps) for clause in clauses) <= MAX_STEPS:
            return clauses


def _join(s: Speaker, requests: list[str]) -> str:
    """Say several errands in one sentence; what is said first is mostly done first."""
    if len(requests) == 1:
        return requests[0]
    if len(requests) == 2:
        first, second = requests
        return s.pick([
            f"{first}, then {second}",
            f"{first} then {second}",
            f"{first} and then {second}",
            f"{first} and {second}",
            f"{first} and {second}",
            f"{first} and {second}",
            f"{first}, and {second}",
            f"{first}, {second}",
            f"{first}. Then {second}",
            f"first {first}, then {second}",
            f"{first}, and after that {second}",
            f"before you {second}, {first}",
            f"{first} before you {second}",
        ])  # fmt: skip
    *before, last = requests
    if s.chance(0.2):
        return s.pick(["first ", ""]) + ", then ".join(before) + f", and finally {last}"
    comma = s.pick([", ", ", ", ", ", ", then ", ". Then "])
    return comma.join(before) + s.pick([" and ", " and ", ", and ", comma, " and then "]) + last


_PLAIN = ("{}.", "{}.", "{}", "{}", "{}!", "Robot, {}.", "Hey robot, {}.", "{}, please.")
_POLITE = (
    *("{}.",) * 6, *("{}",) * 6, "{}!", "Please {}.", "please {}", "Please, {}.", "{}, please.",
    "{} please", "Could you {}?", "Can you {}?", "Could you please {}?", "Can you please {}?",
    "could you {}", "can you {}", "Would you {}?", "Will you {}?", "Robot, {}.", "Hey robot, {}.",
    "Hi, {}.", "Hello robot, {}.", "Hello, can you {}?", "OK, {}.", "Now {}.", "{} now.",
    "I need you to {}.", "I want you to {}.", "I would like you to {}.", "I'd like you to {}",
    "You should {}.",
)  # fmt: skip
_WISHES = ("I need", "I want", "I would like", "I'd like", "Can I have", "Could I have", "I'd like")


def _address(s: Speaker, request: str) -> str:
    """Wrap a request as people say it: politely or not, with or without a full stop."""
    plain = request.startswith("before") or ". " in request
    text = s.pick(_PLAIN if plain else _POLITE).format(request)
    return text[0].upper() + text[1:] if s.chance(0.75) else text


def _wish(s: Speaker) -> Example:
    """Say what is wanted, not what to do: "I need a coffee"."""
    thing, place = s.thing(), s.place()
    wish = s.pick(_WISHES)
    request, promise = thing.said, f"give you {thing.promised}"
    steps = [take(thing), give(thing, YOU)]
    if s.chance(0.3):
        request += f" from {place.said}"
        promise = f"bring you {thing.promised} from {place.promised}"
        steps.insert(0, go(place))
    end = "?" if "have" in wish else s.pick([".", "", " please"])
    return Example(f"{wish} {request}{end}", f"I will {promise}.", tuple(steps))


def _refused(s: Speaker) -> Example:
    """No errand, or one that the robot has no action for, alone or beside others."""
    filler = s.pick([s.place, s.person, s.thing, s.thing])().said
    if s.chance(0.2):
        filler = "the " + s.target(s.pick((words.INSPECTABLE, words.DEVICES, words.OPENABLE)))
    if s.chance(0.45):
        return Example(s.pick(words.OFF_TOPIC).format(filler), REFUSAL, ())
    unknown = s.invented() if s.chance(0.15) else s.pick(words.UNKNOWN_VERBS)
    request = f"{unknown} {filler}"
    if s.chance(0.15):
        request += f" in {s.place().said}"
    if s.chance(0.15):
        known = s.pick(_KINDS)(s).request
        request = s.pick([f"{request} and {known}", f"{known} and {request}",
                          f"{known}, then {request}"])  # fmt: skip
    return Example(_address(s, request), REFUSAL, ())


def _example(s: Speaker) -> Example:
    if s.chance(0.1):
        return _refused(s)
    if s.chance(0.03):
        return _wish(s)
    clauses = _clauses(s)
    promises = [clause.promise for clause in clauses]
    sentence = f"I will {', then '.join(promises)}."
    instruction = _address(s, _join(s, [clause.request for clause in clauses]))
    if s.chance(0.04):
        instruction = instruction.strip(".!")
    return Example(instruction, sentence, tuple(x for clause in clauses for x in clause.steps))


def examples(seed: int, *, held_out: bool = False, free_names: float = 0.0) -> Iterator[Example]:
    """Yield examples of one side without end.

    free_names: probability, for each name, of an invented one that is in no list.
    """
    speaker = Speaker(random.Random(seed), free_names)
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


def conversations(seed: int, *, free_names: float = 0.2) -> Iterator[list[Message]]:
    """Yield training conversations without end: mostly one turn, some with a system turn before.

    One in eight has two or three instructions, so that earlier turns are seen as context.
    """
    rng = random.Random(seed)
    speaker = Speaker(rng, free_names)
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
