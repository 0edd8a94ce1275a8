# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Errands that belong together: what was named in one is "it" or "them" in the next.

The corpus puts a chain first, so that no other errand comes between a thing and its pronoun.
"""

from __future__ import annotations

from gemma_mtp_ros.demo import vocabulary as words
from gemma_mtp_ros.demo.errands import YOU, Clause, give, go, laid_in, put_down, take, wait
from gemma_mtp_ros.demo.speech import Speaker


def _walk(s: Speaker) -> Clause:
    """To a place, said in the ways that a chain of errands begins with."""
    to = s.place()
    verb = s.pick(["go to", "go to", "drive to", "move to", "head to", "navigate to", "walk to"])
    return Clause(f"{verb} {to.said}", f"go to {to.promised}", (go(to),))


def handle(s: Speaker) -> list[Clause]:
    """A thing is picked up and then only spoken of as "it" or "them"."""
    thing = s.thing()
    it = thing.pronoun
    clauses = [_walk(s)] if s.chance(0.5) else []
    verb = s.pick(["pick up", "pick up", "grab", "take", "get", "fetch"])
    if not clauses and s.chance(0.4):
        place = s.place()
        request = f"{verb} {thing.said} from {place.said}"
        promise = f"pick up {thing.promised} from {place.promised}"
        clauses.append(Clause(request, promise, (go(place), take(thing))))
    else:
        clauses.append(Clause(f"{verb} {thing.said}", f"pick up {thing.promised}", (take(thing),)))
    if s.chance(0.35):
        clauses.append(_walk(s))
    person, place, (where, spot) = s.person(), s.place(), s.pick(words.SPOTS)
    verb = s.pick(["give", "give", "bring", "hand", "take"])
    gives = Clause(
        f"{verb} {it} to {person.said}",
        f"give {person.promised} {thing.promised}",
        (give(thing, person),),
    )
    here = Clause(f"bring {it} {s.pick(['here', 'to me', 'back', 'back to me'])}",
                  f"give you {thing.promised}", (give(thing, YOU),))  # fmt: skip
    puts = Clause(
        f"{s.pick(['put', 'place', 'leave'])} {it} {where} the {spot}",
        f"put {thing.promised} {where} the {spot}",
        (put_down(thing, spot),),
    )
    drops = Clause(s.pick([f"put {it} down", f"drop {it}", f"leave {it} there"]),
                   f"put down {thing.promised}", (put_down(thing),))  # fmt: skip
    takes = Clause(
        f"{s.pick(['take', 'bring', 'carry', 'deliver'])} {it} to {place.said}",
        f"take {thing.promised} to {place.promised}",
        (go(place), put_down(thing, laid_in(place))),
    )
    person = s.person(allow_me=False)
    delivers = Clause(
        f"{s.pick(['take', 'bring', 'deliver', 'give'])} {it} to {person.said} in {place.said}",
        f"give {person.promised} {thing.promised} in {place.promised}",
        (go(place), give(thing, person)),
    )
    return [*clauses, s.pick((gives, gives, gives, here, here, puts, puts, drops, takes, delivers))]


def operate(s: Speaker) -> list[Clause]:
    """A thing is opened or turned on, and closed or turned off again as "it"."""
    if s.chance(0.5):
        target, first, second = s.target(words.OPENABLE), "open", "close"
        request, back = f"open the {target}", "close it"
    else:
        target, first, second = s.target(words.DEVICES), "turn_on", "turn_off"
        request, back = f"turn on the {target}", "turn it off"
    again = s.pick(["", "", " again"])
    clauses = [Clause(request, request, ({"action": first, "target": target},))]
    if s.chance(0.6):
        clauses.append(wait(s))
    promise = f"{second.replace('_', ' ')} the {target}"
    return [*clauses, Clause(back + again, promise, ({"action": second, "target": target},))]


CHAINS = (handle, handle, handle, handle, handle, operate)
