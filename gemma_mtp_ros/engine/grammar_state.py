# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Where an answer stands in its grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from llguidance import LLMatcher

from .json_schema import SchemaError
from .token_masks import Vocabulary, bits


def reason_of(message: str) -> str:
    """llguidance's message without where in the source it was and what surrounds it."""
    if message.startswith("NoExtensionBias"):
        return "it allows no text at all, or none from some place on"
    message = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", message)
    message = re.split(r"\n *\d+ \||\n?<", message)[0]
    return " ".join(re.sub(r"\^+\s", "", message).split())[:300]


def check(matcher: LLMatcher) -> None:
    """Raise what is wrong with a matcher.

    :raises SchemaError: when something is.
    """
    if matcher.is_error():
        raise SchemaError(reason_of(matcher.get_error()))


def _forget(places: dict[int, Any], gone: Callable[[int], bool]) -> None:
    for place in [place for place in places if gone(place)]:
        del places[place]


class GrammarState:
    """Where an answer stands in its grammar.

    Drafts are only looked at: each method takes those that stand on the accepted tokens, and what
    it computed is kept for as long as the drafts begin alike.

    :param matcher: of a text that has not begun; it is not changed.
    :param limit: tokens that the text may have.
    :param watched: so many tokens before the limit, room for an end is kept.
    :param detours: tokens that may come instead of the whole text; they end it as its own end does.

    Attributes:
        ended: the token that ended the text; None: it goes on.
        ending: tokens that end it, detours among them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        matcher: LLMatcher,
        limit: int,
        watched: int,
        detours: Iterable[int] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self.limit = limit
        self.ended: int | None = None
        self._detours = frozenset(detours)
        self.ending = vocabulary.eos | self._detours
        self._watched = watched
        self._matcher = matcher.deep_copy()
        self._path: list[int] = []
        """Tokens that the matcher has taken: the accepted ones, then drafts."""
        self._accepted = 0
        self._rows: dict[int, int] = {}
        """Allowed tokens by place of the path, from the accepted ones on, as the bits of a number.
        """
        self._ends: dict[int, list[int] | None] = {}
        """Ends found, by place."""

    @property
    def finished(self) -> bool:
        """Whether the text is whole and nothing may follow: no target pass is needed to end it."""
        return self.ended is not None or not self._standing_row() & ~self.vocabulary.eos_bits

    @property
    def complete(self) -> bool:
        """Whether the text is whole, though more may follow."""
        return self.ended in self.vocabulary.eos or bool(
            self._standing_row() & self.vocabulary.eos_bits
        )

    def mask(self, drafts: Sequence[int] = ()) -> torch.Tensor:
        """``(1, size)`` bool: what may come after the drafts, each of which must be allowed.

        :raises SchemaError: when the grammar grows beyond its bounds or allows nothing.
        """
        self._follow(drafts)
        return self.vocabulary.tensor([self._row()])

    def masks(self, drafts: Sequence[int]) -> torch.Tensor:
        """``(len(drafts) + 1, size)`` bool: what may come after 0, 1, ... of the drafts.

        Rows after a draft that is not allowed, or that ends the text, allow everything: no such
        row is ever used.

        :raises SchemaError: as :meth:`mask`.
        """
        taken = self._seek(drafts)
        self._row()
        rows = [self._rows[place] for place in range(self._accepted, self._accepted + taken + 1)]
        return self.vocabulary.tensor(rows + [self.vocabulary.every] * (len(drafts) - taken))

    def admitted(self, drafts: Sequence[int]) -> int:
        """How many of the drafts the masks allow, one after another."""
        taken = self._seek(drafts)
        ends = taken < len(drafts) and drafts[taken] in self.ending
        return taken + (ends and bool(self._row() >> drafts[taken] & 1))

    def forced(self, most: int, drafts: Sequence[int] = ()) -> list[int]:
        """Tokens after the drafts of which each is the only one that its mask allows.

        :param most: how many of them to look for at most.
        """
        run: list[int] = []
        self._follow(drafts)
        while len(run) < most:
            row = self._row()
            if row & (row - 1):
                break
            token = row.bit_length() - 1
            run.append(token)
            if token in self.ending:
                break
            self._take(token)
        return run

    def rest(self, most: int) -> list[int]:
        """The whole rest of the text, if it is forced and has up to ``most`` tokens; else none.

        No target pass is needed for it.
        """
        run = self.forced(most)
        if run and run[-1] in self.vocabulary.eos:
            return run[:-1]
        return [] if self._row() & ~self.vocabulary.eos_bits else run

    def settle(self, drafts: Sequence[int], choices: Sequence[int]) -> list[int]:
        """The tokens that a round decides: the drafts that stand, then the target's own choice.

        :param choices: what the target chose under :meth:`masks` after 0, 1, ... drafts.
        """
        chosen: list[int] = []
        for place, choice in enumerate(choices):
            token = self._with_room(chosen, choice)
            chosen.append(token)
            stands = place < len(drafts) and drafts[place] == token
            if not stands or token in self.ending:
                break
        return chosen

    def accept(self, tokens: Sequence[int]) -> None:
        """Let tokens stand, up to the first that ends the text.

        :raises ValueError: when a token is not allowed where it stands.
        """
        if self.ended is not None and tokens:
            raise ValueError(f"token {tokens[0]} comes after the end of the text")
        taken = self._seek(tokens)
        if taken < len(tokens):
            token = tokens[taken]
            if token not in self.ending or not self._row() >> token & 1:
                place = self._accepted + taken
                raise ValueError(f"token {token} is not allowed at place {place}")
            self.ended = token
        self._accepted += taken
        # A row has a bit for each token of the vocabulary: what lies behind is let go. An end is
        # found with the help of the one before it.
        _forget(self._rows, lambda place: place < self._accepted)
        _forget(self._ends, lambda place: place < self._accepted - 1)

    def rollback(self, count: int) -> None:
        """Take back the last accepted tokens, the one that ended the text among them."""
        held = self._accepted + (self.ended is not None)
        if not 0 <= count <= held:
            raise ValueError(f"cannot take back {count} of {held} tokens")
        if count and self.ended is not None:
            self.ended = None
            count -= 1
        self._accepted -= count
        self._drop(len(self._path) - self._accepted)

    def end(self, drafts: Sequence[int] = ()) -> list[int] | None:
        """Tokens that would end the text after the drafts; None: no end was found.

        A list longer than the tokens that are left does not end it.
        """
        self._follow(drafts)
        most = max(0, self.limit - len(self._path))
        return self.vocabulary.closers.end(self._matcher, most)

    def _standing_row(self) -> int:
        if self._accepted not in self._rows:
            self._seek(())
            self._row()
        return self._rows[self._accepted]

    def _follow(self, drafts: Sequence[int]) -> None:
        taken = self._seek(drafts)
        if taken < len(drafts):
            raise ValueError(f"draft {drafts[taken]} is not allowed by the schema")

    def _seek(self, drafts: Sequence[int]) -> int:
        """Bring the matcher behind the drafts; how many it could take."""
        ahead = len(self._path) - self._accepted
        same = 0
        while same < min(ahead, len(drafts)) and self._path[self._accepted + same] == drafts[same]:
            same += 1
        self._drop(ahead - same)
        for place in range(same, len(drafts)):
            token = drafts[place]
            if token in self.ending or not self._row() >> token & 1:
                return place
            self._take(token)
        return len(drafts)

    def _take(self, token: int) -> None:
        self._matcher.consume_token(token)
        check(self._matcher)
        self._path.append(token)

    def _drop(self, count: int) -> None:
        if count:
            self._matcher.rollback(count)
            check(self._matcher)
            del self._path[-count:]
            _forget(self._rows, lambda place: place > len(self._path))
            _forget(self._ends, lambda place: place > len(self._path))

    def _row(self) -> int:
        """What is allowed at the matcher's place."""
        place = len(self._path)
        if place in self._rows:
            return self._rows[place]
        matcher, vocabulary = self._matcher, self.vocabulary
        check(matcher)
        row = 0
        if not matcher.is_stopped():
            row = int.from_bytes(matcher.compute_bitmask(), "little") & vocabulary.usable
            check(matcher)
        if matcher.is_stopped() or matcher.is_accepting():
            row |= vocabulary.eos_bits
        if not self._path:
            row |= bits(self._detours)
        if not row:
            raise SchemaError(f"no token continues its text after {len(self._path)} tokens")
        row = self._keeping_room(row)
        self._rows[place] = row
        return row

    def _end(self) -> list[int] | None:
        place = len(self._path)
        if place not in self._ends:
            most = max(0, self.limit - place)
            end = self.vocabulary.closers.end(self._matcher, most)
            check(self._matcher)
            before = self._ends.get(place - 1)
            # What follows on the end that was known is an end, and the search may miss it.
            if before and before[0] == self._path[-1] and (end is None or len(before) <= len(end)):
                end = before[1:]
            self._ends[place] = end
        return self._ends[place]

    def _keeping_room(self, row: int) -> int:
        """Only the way to the known end where there is room for no more."""
        left = self.limit - len(self._path)
        if not 0 < left <= self._watched:
            return row
        end = self._end()
        if end is None or len(end) < left:
            return row
        only = 1 << end[0] if end else self.vocabulary.eos_bits
        return row & only or row

    def _with_room(self, before: list[int], choice: int) -> int:
        """The choice, or the way to the known end where that would not fit after it."""
        left = self.limit - self._accepted - len(before) - 1
        if choice in self.ending or not 0 <= left <= self._watched:
            return choice
        if self._seek([*before, choice]) <= len(before):
            return choice
        after = self._end()
        if after is not None and len(after) <= left:
            return choice
        self._seek(before)
        end = self._end()
        if not end:
            return choice if end is None else min(self.vocabulary.eos)
        return end[0] if self._row() >> end[0] & 1 else choice
