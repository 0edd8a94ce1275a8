# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Phrases for places, people and things, as said in a request, in its promise and in the plan."""

from __future__ import annotations

import random
from dataclasses import dataclass

from gemma_mtp_ros.demo import vocabulary as words

_ONSETS = (
    *"bcdfghjklmnprstvwyz", "bl", "br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "ph", "pl",
    "pr", "qu", "sc", "sh", "sl", "sm", "sn", "sp", "st", "str", "sw", "th", "tr", "wh",
)  # fmt: skip
_VOWELS = (*"aeioaeiou", "ai", "ea", "ee", "oa", "oo", "ou", "ie", "ay", "y")
_CODAS = (
    *[""] * 6, *"nrlstdmpbgkx", "ck", "ll", "ss", "nd", "nt", "rd", "rk", "rt", "st", "ng", "lt",
    "le", "er", "on", "en",
)  # fmt: skip
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLACE_ENDINGS = ("", "", " room", " lab", " hall", " area", " desk")


@dataclass(frozen=True)
class Noun:
    """A phrase as said in the request, as said in the promise, and its name in the plan.

    pronoun: what it is called once it was named, "it" or "them".
    """

    said: str
    promised: str
    name: str
    count: int = 1
    pronoun: str = "it"


def plural(noun: str) -> str:
    """Regular English plural of an entry of `vocabulary.OBJECTS`."""
    if " of " in noun:
        head, content = noun.split(" of ", 1)
        return f"{plural(head)} of {content}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


class Speaker:
    """Draws phrases; `free` is the probability of an invented name in place of a listed one."""

    def __init__(self, rng: random.Random, free: float) -> None:
        self.rng = rng
        self.free = free
        self.pick = rng.choice

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def invented(self) -> str:
        """A word that is in no list: mostly pronounceable, at times any letters."""
        if self.chance(0.15):
            return "".join(self.rng.choices(_LETTERS, k=self.rng.randint(2, 7)))
        syllables = (
            self.pick(_ONSETS) + self.pick(_VOWELS) + self.pick(_CODAS)
            for _ in range(self.rng.randint(1, 3))
        )
        return "".join(syllables)

    def cased(self, word: str) -> str:
        """Some invented names are capitalised, some are acronyms, some hold a hyphen or digit."""
        word = self.pick((word, word, word.capitalize(), word[:4].upper()))
        if self.chance(0.06):
            word += self.pick(("-", "-", "", " ")) + self.pick(
                (self.invented(), str(self.number()))
            )
        return word

    def place(self) -> Noun:
        """Somewhere to go."""
        name = self.pick(words.PLACES)
        if self.chance(self.free):
            name = self.cased(self.invented())
            name += self.pick((*_PLACE_ENDINGS, f" {self.invented()}"))
        elif self.chance(0.05):
            name = f"{self.person(allow_me=False).name}'s {name}"
            name = name if name[0].isupper() else f"the {name}"
            return Noun(name, name, name.removeprefix("the "))
        elif self.chance(0.27):
            name = self.pick(words.NUMBERED_PLACES)
            if self.chance(0.7):
                letter = self.pick("ABCDEFGHabc") if self.chance(0.3) else ""
                name = f"{name} {letter}{self.number()}"
                return Noun(name, name, name)
        article = "my" if self.chance(0.04) else "the"
        return Noun(f"{article} {name}", f"the {name}", name)

    def number(self) -> int:
        """1 to 999, small ones more often."""
        return self.rng.randint(1, self.pick((9, 20, 99, 99, 999)))

    def person(self, allow_me: bool = True) -> Noun:
        """Somebody; "me" is the user."""
        if allow_me and self.chance(0.3):
            return Noun("me", "you", "user")
        if self.chance(self.free):
            name = self.pick((str.capitalize, str.capitalize, self.cased))(self.invented())
        elif self.chance(0.25):
            role = self.pick(words.ROLES)
            return Noun(f"the {role}", f"the {role}", role)
        else:
            name = self.pick(words.PEOPLE)
            name = name.lower() if self.chance(0.06) else name
        return Noun(name, name, name)

    def thing(self) -> Noun:
        """Something to carry."""
        adjectives = []
        if self.chance(0.45):
            adjectives = self.rng.sample(words.ADJECTIVES, 2 if self.chance(0.15) else 1)
        if self.chance(0.12):
            name = " ".join([*adjectives, self.pick(words.SEVERAL)])
            article = self.pick(("the", "the", "my", "some"))
            return Noun(f"{article} {name}", f"the {name}", name, pronoun="them")
        if self.chance(0.08):
            name = self.pick(words.MASSES)
            return Noun(f"{self.pick(('the', 'some', 'some'))} {name}", f"the {name}", name)
        noun = self.pick(words.OBJECTS)
        if self.chance(self.free):
            noun = self.cased(self.invented())
            noun += self.pick(["", "", " " + self.invented(), " of " + self.invented()])
        name = " ".join([*adjectives, noun])
        if self.chance(0.1):
            count = self.rng.randint(2, 10)
            many = " ".join([*adjectives, plural(noun)])
            said = words.NUMBER_WORDS[count - 1] if self.chance(0.6) else str(count)
            return Noun(f"{said} {many}", f"{count} {many}", name, count, "them")
        article = "an" if name[0] in "aeiouAEIOU" else "a"
        said = self.pick(["the", "the", "the", article, article, "my"])
        return Noun(f"{said} {name}", f"the {name}", name)

    def target(self, listed: tuple[str, ...]) -> str:
        """Something to operate, at times named by its place: "kitchen door"."""
        if self.chance(self.free):
            return self.invented()
        name = self.pick(listed)
        return f"{self.pick(words.PLACES)} {name}" if self.chance(0.08) else name
