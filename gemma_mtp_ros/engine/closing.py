# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A short way to end a JSON text that has begun."""

from __future__ import annotations

import string
from collections.abc import Iterable

from llguidance import LLMatcher

VALUES = "0123456789ntf-.[{"
"""Scalars come before what needs to be closed again."""

REPEATS = 4
"""The same character so many times in a row is taken for a pattern that allows it for ever."""


class Closers:
    """Finds an end by always taking the first of a list of characters that the grammar allows.

    That is short, not shortest, and may find none where a pattern needs characters in an order.

    :param spelt: the token of each byte string.
    :param usable: these tokens, as the bits of a number.
    :param quote: the token that ends a string; None: JSON's quotation mark.
    """

    def __init__(self, spelt: dict[bytes, int], usable: int, quote: int | None = None) -> None:
        self._spelt = spelt
        self._usable = usable
        self._longest = max(map(len, spelt), default=0)
        self._brackets = self._tokens("}]")
        self._quote = self._tokens('"') if quote is None else [quote]
        self._leads_on = self._tokens(",:")
        others = string.ascii_letters + " " + string.punctuation
        self._rest = self._tokens(dict.fromkeys(VALUES + others))
        self._letter = self._tokens("a")
        """Allowed in most strings, and nowhere else."""

    def _tokens(self, characters: Iterable[str]) -> list[int]:
        return [t for c in characters if (t := self._spelt.get(c.encode())) is not None]

    def end(self, matcher: LLMatcher, most: int) -> list[int] | None:
        """Tokens after which the text may end; the matcher is left as it was.

        :param most: tokens after which to give up.
        :return: None if no end was found; more than ``most`` tokens, which do not end the text, if
            it was given up.
        """
        run: list[int] = []
        turn = 0
        try:
            while not (matcher.is_stopped() or matcher.is_accepting()):
                if len(run) > most:
                    return run
                step = matcher.compute_ff_tokens() or self._spell(matcher.compute_ff_bytes())
                if step:
                    turn = 0
                else:
                    fresh = not run or run[-1] in self._quote
                    last = run[-REPEATS:]
                    if len(last) == REPEATS and len(set(last)) == 1 and last[0] in self._rest:
                        turn = 1 + self._rest.index(last[0])
                    step, turn = self._choice(matcher, turn, fresh)
                if not step or matcher.try_consume_tokens(step) != len(step):
                    return None
                run += step
            return None if matcher.is_error() else run
        finally:
            if run and not matcher.is_error():
                matcher.rollback(len(run))

    def _choice(self, matcher: LLMatcher, turn: int, fresh: bool) -> tuple[list[int], int]:
        """The first token allowed, and where to go on.

        :param turn: 0, or which of the characters that go on to try first, where each is to have
            its turn.
        :param fresh: whether a string may have begun just now, so that one character may be all
            that its pattern wants.
        """
        letter = [t for t in self._letter if matcher.validate_tokens([t])]
        if letter and fresh and not self._may_end(matcher, []):
            for token in self._rest:
                if self._may_end(matcher, [token]):
                    return [token], 0
        first = self._quote if letter else self._brackets + self._quote
        if not turn:
            first = first + letter + self._leads_on
        for token in first:
            if matcher.validate_tokens([token]):
                return [token], 0
        for token in self._rest[turn:] + self._rest[:turn]:
            if matcher.validate_tokens([token]):
                return [token], turn and 1 + self._rest.index(token)
        # Within a character of several bytes, or where a pattern wants one that is not ASCII.
        row = int.from_bytes(matcher.compute_bitmask(), "little") & self._usable
        return [(row & -row).bit_length() - 1] if row else [], turn

    def _may_end(self, matcher: LLMatcher, text: list[int]) -> bool:
        """Whether the string that is open may end after the tokens of this text."""
        whole = len(text) + 1
        return any(matcher.validate_tokens([*text, quote]) == whole for quote in self._quote)

    def _spell(self, text: bytes) -> list[int]:
        """The longest token at each place; nothing if there is none for a byte."""
        tokens: list[int] = []
        at = 0
        while at < len(text):
            for end in range(min(len(text), at + self._longest), at, -1):
                token = self._spelt.get(text[at:end])
                if token is not None:
                    break
            else:
                return []
            tokens.append(token)
            at = end
        return tokens
