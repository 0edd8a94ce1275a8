# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Masks that keep an answer within a JSON Schema, drafted or not.

A mask is a function of the standing tokens, the schema and the token limit alone, so the text is
the same whatever was drafted. JSON is written without white space. Two rules beside the schema:

* Of the tokens that spell the same bytes only one is allowed (:class:`token_masks.Vocabulary`).
* Where no more tokens are left than a known end of the text takes, that end is the only choice,
  and a choice after which none would fit is replaced by it (:meth:`GrammarState.settle`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from llguidance import LLMatcher

from .channels import QUOTE
from .grammar_state import GrammarState, check, reason_of
from .grammar_trial import LIMITS, trial
from .json_schema import CHEAP_BYTES, SchemaError, may_be_costly, parse
from .token_masks import Vocabulary

CACHED = 16
"""Schemas whose grammars are kept, or why there is none."""

LONGEST_END = 2048
"""Tokens after which the search for the end of an empty text gives up."""

WATCHED, WATCHED_ENDS = 128, 4
"""Tokens before the limit in which room for an end is kept: so many, or so many times the known end
of an empty text. One token that needs more than that to be followed up may leave the text cut."""

MAX_CALL_GRAMMAR = 256 * 1024
"""Characters of a grammar of tool calls."""

OPTIONS = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""Of llguidance: compact, and a keyword that is not enforced is an error."""


NOTHING = 'start: ""'
"""A grammar of no text."""


def _no_beat() -> None:
    pass


class Grammars:
    """Compiles schemas, and keeps the last ones.

    :param force_strings: allow only the tokenizer's own spelling of text that the schema forces,
        so that a whole property name is forced. The model may prefer another spelling, so answers
        can differ.
    """

    def __init__(self, vocabulary: Vocabulary, force_strings: bool = False) -> None:
        self.vocabulary = vocabulary
        self.force_strings = force_strings
        self._kept: OrderedDict[str, Grammar | str] = OrderedDict()

    def compile(self, schema: str, beat: Callable[[], None] = _no_beat) -> Grammar:
        """The grammar of a JSON Schema.

        :param beat: called while it takes; may raise to give it up.
        :raises SchemaError: with the reason, when it cannot be enforced.
        """

        def source() -> str:
            parsed = parse(schema)
            body = json.dumps({**parsed, "x-guidance": OPTIONS})
            made = self.source(f"start: %json {body}")
            if may_be_costly(schema, parsed):
                _try(made, beat)
            return made

        return self._keep(schema, self.vocabulary, source)

    def of_calls(
        self,
        written: Callable[[str], str],
        vocabulary: Vocabulary,
        quote: int,
        costly: bool,
        beat: Callable[[], None] = _no_beat,
    ) -> Grammar:
        """The grammar of tool calls.

        :param written: gives it, from how the mark around strings is written in it.
        :param vocabulary: of calls.
        :param costly: whether its schemas may be, see :func:`json_schema.may_be_costly`.
        :param beat: as for :meth:`compile`.
        :raises SchemaError: as :meth:`compile`.
        """
        grammar = written(f"<[{quote}]>")

        def source() -> str:
            if len(grammar) > MAX_CALL_GRAMMAR:
                raise SchemaError(f"its grammar has more than {MAX_CALL_GRAMMAR} characters")
            if costly or len(grammar) > CHEAP_BYTES:
                # The trial is over bytes, where the mark is text as any other.
                _try(self.source(written(json.dumps(QUOTE))), beat)
            return self.source(grammar)

        return self._keep(grammar, vocabulary, source)

    def nothing(self) -> Grammar:
        """The grammar after which an answer may only end."""
        return self._keep(NOTHING, self.vocabulary, lambda: self.source(NOTHING))

    def source(self, rules: str) -> str:
        """What llguidance compiles."""
        return f"%llguidance {json.dumps({'no_forcing': not self.force_strings})}\n{rules}"

    def _keep(self, name: str, vocabulary: Vocabulary, source: Callable[[], str]) -> Grammar:
        kept = self._kept.get(name)
        if kept is None:
            try:
                kept = Grammar(vocabulary, source())
            except SchemaError as error:
                kept = error.reason
            self._kept[name] = kept
            if len(self._kept) > CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        if isinstance(kept, str):
            raise SchemaError(kept)
        return kept


def _try(source: str, beat: Callable[[], None]) -> None:
    error = trial(source, beat)
    if error:
        raise SchemaError(reason_of(error))


class Grammar:
    """A compiled schema, for any number of answers.

    Attributes:
        shortest: tokens of the shortest text that was found, the end-of-sequence token aside;
            None: no text of up to :data:`LONGEST_END` tokens.
    """

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        self.vocabulary = vocabulary
        self.matcher = LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=LIMITS)
        check(self.matcher)
        begun = self.matcher.deep_copy()
        begun.compute_bitmask()
        check(begun)
        end = vocabulary.closers.end(begun, LONGEST_END)
        check(begun)
        self.shortest = len(end) if end is not None and len(end) <= LONGEST_END else None
        self.watched = max(WATCHED, WATCHED_ENDS * (self.shortest or 0))

    def start(
        self, limit: int, detours: Iterable[int] = (), begun: Sequence[int] = ()
    ) -> GrammarState:
        """The state of a new answer of at most ``limit`` tokens.

        :param detours: tokens that may come instead of it.
        :param begun: tokens of the prompt that are its beginning.
        :raises SchemaError: when no token may come first.
        """
        matcher = self.matcher
        if begun:
            matcher = matcher.deep_copy()
            if matcher.try_consume_tokens(list(begun)) < len(begun):
                raise SchemaError("the prompt has begun it otherwise")
        state = GrammarState(self.vocabulary, matcher, limit, self.watched, detours)
        state.mask()
        return state
