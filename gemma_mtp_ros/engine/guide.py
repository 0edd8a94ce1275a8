# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Which grammar holds at each place of an answer.

An answer is a thought (no grammar), then text that follows the response schema, or calls of tools,
each of which follows the functions' schemas. Without a response schema, what is not a call is free.
All of it is a function of the standing tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .channels import CALL_CLOSE, CALL_OPEN, CHANNEL_CLOSE, CHANNEL_OPEN, RESPONSE_OPEN
from .grammar import Grammar
from .grammar_state import GrammarState
from .sampling import standing
from .token_masks import allow


@dataclass(frozen=True)
class Plan:
    """What a goal asks of its answer.

    Attributes:
        response: of the text; None: it is free.
        calls: of calls; None: there are none, or they are free.
        nothing: of what follows a call where the text is not free.
        thinking: whether a thought may come first.
        markers: tokens of the answer's marks.
        eos: tokens that end an answer.
    """

    response: Grammar | None
    calls: Grammar | None
    nothing: Grammar | None
    thinking: bool
    markers: Mapping[str, int]
    eos: frozenset[int]


class Guide:
    """Follows an answer from one grammar to the next.

    :param limit: tokens that the answer may have.
    :param opening: the marker that the prompt left open, or an empty string.
    :param begun: tokens of the prompt after it.
    :param suppress: rules out of logits what the checkpoint never wants to see.

    Attributes:
        grammar: that of the next token; None: it is free.
    """

    def __init__(
        self,
        plan: Plan,
        limit: int,
        opening: str,
        begun: Sequence[int],
        suppress: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._plan = plan
        self._left = limit
        self._suppress = suppress
        self.grammar: GrammarState | None = None
        self._in_text = False
        self._opens: frozenset[int] = frozenset()
        """Tokens after which another grammar holds, where none does."""
        self._never: torch.Tensor | None = None
        if opening == CALL_OPEN and plan.calls is not None:
            self._call(begun)
        elif opening == CHANNEL_OPEN and plan.response is not None:
            self._think()
        else:
            self._answer(plan.thinking)

    @property
    def finished(self) -> bool:
        """Whether the text follows its schema and is whole, where no more can or may follow."""
        if not self._in_text or self.grammar is None:
            return False
        return self.grammar.finished or (self._left <= 0 and self.grammar.complete)

    def restrict(self, logits: torch.Tensor, drafts: Sequence[int] = ()) -> torch.Tensor:
        """Logits of what may come after 0, 1, ... of the drafts.

        Where a grammar holds it alone decides: it knows what is suppressed, and when the end is
        due.
        """
        if self.grammar is not None:
            return allow(logits, self.grammar.masks(drafts))
        logits = self._suppress(logits)
        if self._never is not None:
            logits = logits.index_fill(1, self._never.to(logits.device), float("-inf"))
        return logits

    def settle(
        self, drafts: Sequence[int], choices: Sequence[int], forcing: bool = True
    ) -> tuple[list[int], int]:
        """What a round decides, which stands from now on.

        :param choices: the target's after 0, 1, ... of the drafts.
        :param forcing: whether the rest of the text, if it is forced, stands at once.
        :return: the tokens, with the rest of the text if that is forced, and how many drafts stand
            before the target's own choice. A round ends where another grammar begins.
        """
        grammar = self.grammar
        if grammar is None:
            chosen = list(choices[: standing(drafts, choices) + 1])
            at = next((i for i, token in enumerate(chosen) if token in self._opens), None)
            if at is not None:
                del chosen[at + 1 :]
            self._left -= len(chosen)
            if at is not None:
                self._follow(chosen[-1])
            return chosen, len(chosen) - 1
        chosen = grammar.settle(drafts, choices)
        kept = len(chosen) - 1
        grammar.accept(chosen)
        self._left -= len(chosen)
        if grammar.ended is not None:
            self._follow(grammar.ended)
        elif self._in_text and forcing:
            rest = grammar.rest(self._left)
            grammar.accept(rest)
            self._left -= len(rest)
            chosen += rest
        return chosen, kept

    def _follow(self, token: int) -> None:
        markers = self._plan.markers
        if token == markers.get(CALL_OPEN) and self._plan.calls is not None:
            self._call(())
        elif token == markers.get(CHANNEL_OPEN):
            self._think()
        elif token == markers.get(CHANNEL_CLOSE):
            self._answer(thinking=False)
        elif token == markers.get(CALL_CLOSE):
            self._after_call()

    def _free(self, opens: Iterable[str], never: Iterable[int] = ()) -> None:
        self.grammar = None
        self._in_text = False
        self._opens = self._tokens(opens)
        ids = sorted(never)
        self._never = torch.tensor(ids) if ids else None

    def _tokens(self, markers: Iterable[str]) -> frozenset[int]:
        known = self._plan.markers
        return frozenset(known[marker] for marker in markers if marker in known)

    def _answer(self, thinking: bool) -> None:
        plan = self._plan
        calls = [CALL_OPEN] if plan.calls is not None else []
        if plan.response is None:
            self._free(calls)
            return
        detours = self._tokens([*calls, CHANNEL_OPEN] if thinking else calls)
        self.grammar = plan.response.start(self._left, detours)
        self._in_text = True

    def _think(self) -> None:
        """A thought ends with its marker or with a call, not with the answer."""
        plan = self._plan
        opens, never = [CHANNEL_CLOSE], [CHANNEL_OPEN, RESPONSE_OPEN, CALL_CLOSE]
        (never if plan.calls is None else opens).append(CALL_OPEN)
        self._free(opens, plan.eos | self._tokens(never))

    def _call(self, begun: Sequence[int]) -> None:
        plan = self._plan
        assert plan.calls is not None
        self._in_text = False
        # One token less, for the marker that ends it.
        self.grammar = plan.calls.start(max(1, self._left - 1), begun=begun)

    def _after_call(self) -> None:
        plan = self._plan
        if plan.response is None or plan.nothing is None:
            self._free([CALL_OPEN])
            return
        self._in_text = False
        detours = self._tokens([CALL_OPEN, RESPONSE_OPEN])
        self.grammar = plan.nothing.start(self._left, detours)
