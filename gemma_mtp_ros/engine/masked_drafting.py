# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The drafts of a round under a grammar: forced ones, and the drafter's own among those allowed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .draft_length import DraftController, Round
from .draft_source import DraftSource
from .drafting import Place, prepare
from .grammar_state import GrammarState
from .ops import read_back
from .sampling import choose, penalise
from .token_masks import allow


@dataclass
class MaskedDrafts:
    """Drafts that the grammar allows.

    Attributes:
        own: places among ``tokens`` of those that the drafter chose; the others are forced.
        round: the controller's, where its number of drafts was made and nothing else.
        late_s: time for reading what rounds without drafts had left unread.
    """

    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    round: Round | None = None
    late_s: float = 0.0


def draft_masked(
    drafter: DraftSource | None,
    controller: DraftController | None,
    place: Place,
    grammar: GrammarState,
    longest: int,
    most: int,
    forcing: bool = True,
) -> MaskedDrafts:
    """Make the drafts of a round.

    Each of the drafter's own is read back, as the next mask depends on it.

    :param longest: most that the drafter may make.
    :param most: most drafts in all: a forced token always stands, so no cap is set for it.
    :param forcing: whether to draft forced tokens without the drafter.
    """
    made = MaskedDrafts()
    drafts = made.tokens
    now = None if drafter is None or controller is None else controller.chain(longest)
    wanted = longest if now is None else now.checked
    state, hidden, seen = place.state, None, 0
    first = read_back(place.token)
    while len(drafts) < most:
        forced = grammar.forced(most - len(drafts), drafts) if forcing else []
        ends = bool(forced) and forced[-1] in grammar.ending  # which the target has to choose
        drafts += forced[:-1] if ends else forced
        if ends or len(drafts) == most or drafter is None or len(made.own) == wanted:
            break
        if not seen:
            made.late_s = prepare(drafter)
        for taken in (first + drafts)[seen:]:
            token = torch.tensor([taken], device=place.token.device)
            state, hidden = drafter.step(token, state)
        seen = 1 + len(drafts)
        assert hidden is not None
        if not drafter.proposes():
            break
        scores, ids = drafter.logits(hidden)
        if place.counts is not None:
            so_far = torch.tensor(drafts, dtype=torch.long, device=place.token.device)
            counts, prompt = place.counts.rows(so_far)[-1:], place.counts.prompt
            if ids is not None:
                counts, prompt = counts[:, ids], prompt[ids]
            scores = penalise(scores, place.rules, prompt, counts)
        scores = allow(scores, grammar.mask(drafts), ids)
        choice = read_back(choose(scores, place.rules, place.index + len(drafts), ids))[0]
        if grammar.admitted([*drafts, choice]) <= len(drafts):
            break  # none of the clusters opened holds a token that is allowed
        made.own.append(len(drafts))
        drafts.append(choice)
        if choice in grammar.ending:
            break
    if now is not None and len(made.own) == len(drafts) == now.checked == now.steps:
        made.round = now
    return made
