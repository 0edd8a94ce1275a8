# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft in the next round. Pure.

A round is worth its expected tokens, less its time at the rate that tokens come at otherwise:
``tokens - rate * seconds`` (the price of time in a renewal process; Dinkelbach 1967). The length
with the greatest worth is drafted, 0 among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from ..api import MAX_DRAFT
from .acceptance import Acceptance
from .draft_costs import CostBelief, Costs

__all__ = ["Costs", "DraftController", "Round", "best_length", "longest_draft"]

OPTIMISM, OPTIMISM_LATELY, LATELY = 0.4, 0.6, 60
"""Standard deviations by which an uncertain cost is taken to be lower: what may pay is tried. The
second in so many rounds after a change of costs."""

BALANCE, BALANCE_MOST, ALLOWED = 8.0, 15.0, 0.005
"""Account of what drafting won against plain decoding, in passes of one row: at first, at most, and
what it is given a round."""

CAUTION = 0.02
"""Tokens that are asked for more for each pass that the account is overdrawn by."""

PROBING = 0.005
"""Share of the time for drafts that are made only to see whether they would stand."""

READING = 0.25
"""What a drafter takes to read a token of the text, in draft steps, until it was measured."""

READ_MEMORY = 0.9
"""What earlier readings weigh when another is measured. A pass over the few tokens at the end of a
text takes about as long as one over many."""

EARNED_MOST, OVERDRAFT, READING_SHARE = 100.0, 10.0, 0.02
"""Account of what drafting won and reading for it took, in passes of one row: at most, how far it
may be overdrawn before nothing more is read, and what it is given a round."""

RATE_MEMORY = 0.995
"""What a round's tokens and time weigh in the next, in the rate that prices time."""

SWEEP, SWEEP_NOISY, NOISY = (7, 0, 3), (7, 0, 3, 5, 1, 7), 0.1
"""Draft lengths of the rounds after a change of costs, which time passes anew: few, or more where
the noise of a timing is over the third figure."""

SWEEP_EVERY = 200
"""Rounds between two sweeps at least, new power modes aside: a busy machine changes all the time.
"""

SMALL_GAIN, PLAIN_EVERY, PLAIN_EVERY_LATELY = 1.3, 48, 16
"""While drafting gains less than this over plain decoding, one round in so many is plain, to time
it; the second figure after a change of costs."""

LONGER_AFTER, LONGER_AFTER_MOST, LONGER_TRIES = 12, 192, 3
"""After so many rounds in which all drafts stood, and more could have been drafted, the longest
draft is tried, as often as the third figure says (one timing alone is taken for an outlier): a
length that was timed while another program ran is not believed for ever. Each try doubles the
number, up to the second figure."""

ASSUMED = 15.0
"""Passes for which the rate at first is that of the best draft length."""

MODES = 8
"""Power modes whose costs are remembered."""


def longest_draft(cap: int, tokens_left: int, context_left: int) -> int:
    """Longest draft that a round may have.

    :param cap: the least of ``draft.max_length`` and the watchdog's cap.
    :param tokens_left: tokens that the completion may still take; a round decides one more than it
        drafts.
    :param context_left: rows that the context may still take; a round writes one more than it
        drafts.
    """
    return max(0, min(cap, MAX_DRAFT, tokens_left - 1, context_left - 1))


def best_length(
    chances: Sequence[float], passes: Sequence[float], draft: float, longest: int
) -> tuple[int, float]:
    """Draft length with the most tokens per second expected, and that rate.

    :param chances: of draft ``i``, given that those before it stand.
    """
    best, best_rate = 0, 1.0 / passes[0]
    tokens, chance = 1.0, 1.0
    for k in range(1, min(longest, len(passes) - 1) + 1):
        chance *= chances[k - 1]
        tokens += chance
        rate = tokens / (passes[k] + k * draft)
        if rate > best_rate:
            best, best_rate = k, rate
    return best, best_rate


def worth_going_on(
    reach: float,
    chances: Sequence[float],
    passes: Sequence[float],
    draft: float,
    rate: float,
) -> float:
    """Most that up to so many more drafts add to what a round is worth, relative to a pass of none.

    :param reach: chance that all drafts so far stand.
    :param chances: of the drafts to come, each given those before it.
    :param passes: costs of passes that check all drafts so far and 1, 2, ... more.
    """
    best, gained, chance = -float("inf"), 0.0, reach
    for m, each in enumerate(chances, 1):
        chance *= each
        gained += chance
        best = max(best, gained - rate * (passes[m - 1] + m * draft))
    return best


@dataclass
class Round:
    """Drafts of a round.

    Attributes:
        longest: most that may be drafted.
        steps: drafts made; where that is fixed before the round, drafts to make.
        checked: drafts to check in the target pass.
        probe: whether to draft once though it does not pay, to see whether the draft would stand.
        forced: whether to draft and check ``longest``, to time it.
        log_odds: of the drafts made, where the drafter's probability is known.
        tokens: expected if the first 0, 1, ... drafts are checked.
        reach: chance that all drafts so far stand.
    """

    longest: int
    steps: int = 0
    checked: int = 0
    probe: bool = False
    forced: bool = False
    log_odds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=lambda: [1.0])
    reach: float = 1.0


class DraftController:
    """Chooses draft lengths and learns from what came of them.

    A round is :meth:`chain` (the length is fixed before it), or :meth:`open` and then :meth:`more`
    and :meth:`add` by turns and :meth:`settle`; at its end comes :meth:`close`.

    Attributes:
        measured: costs that it began with.
        costs: what it believes them to be now, in the present power mode.
        acceptance: what it believes of the drafter.
    """

    def __init__(self, costs: Costs) -> None:
        self.measured = costs
        self.costs = CostBelief(costs)
        self.acceptance = Acceptance()
        self._mode = ""
        self._modes: dict[str, CostBelief] = {}
        self._credit_s = 0.0
        self._token_s = READING * costs.draft
        self._read_tokens = self._read_s = self._reading_s = 0.0
        self._earned = self._unpaid_s = 0.0
        self._balance = BALANCE
        self._sweep: list[int] = []
        self._since_sweep = SWEEP_EVERY
        self._since_change = LATELY
        self._since_plain = 0
        self._all_stood = 0
        self._longer_after = LONGER_AFTER
        self._changes = 0
        self._new_rate()
        self._rates = self.acceptance.rates()
        self._passes = list(self.costs.passes)
        self._rate = 1.0

    def _new_rate(self) -> None:
        self._rounds_of = [0.0] * (MAX_DRAFT + 1)
        self._steps = self._tokens = 0.0
        self._assumed = ASSUMED

    def new_answer(self) -> None:
        """Another text begins."""
        self.acceptance.new_answer()
        self._new_rate()

    def power_mode(self, name: str) -> None:
        """Take up the costs of a power mode; a new one begins with those of the last.

        :param name: empty: unknown, taken to be what it was.
        """
        if not name or name == self._mode:
            return
        if not self._mode:  # the mode that costs were measured in
            self._mode = name
            return
        self._modes[self._mode] = self.costs
        if len(self._modes) > MODES:
            self._modes.pop(next(iter(self._modes)))
        self._mode = name
        known = self._modes.pop(name, None)
        if known is None:
            self.costs = self.costs.copy()
            self.costs.changed()
            self._since_sweep = SWEEP_EVERY
        else:
            self.costs = known
            self._changes = known.changes
        self._new_rate()

    def wants(self, longest: int, unread: int, left: float = math.inf) -> bool:
        """Whether the drafter is to read what it must before it can draft: where drafts are
        expected to pay and have earned what was read before, and else now and then, to see whether
        they would stand.

        :param unread: tokens of the text that it has not read.
        :param left: most tokens that the answer still takes: what drafting saves in all of them
            has to make up for the reading, once it is known what that costs.
        """
        self._reading_s = unread * self._token_s
        if self._reading_s <= self.costs.draft:
            return True
        costs = self.costs
        pays, rate = best_length(self.acceptance.rates(), costs.passes, costs.draft, longest)
        saved_s = left * (costs.passes[0] - 1.0 / rate) if pays else 0.0
        known = self._read_tokens > 0
        if pays and self._earned >= -OVERDRAFT and (not known or saved_s > self._reading_s):
            return True
        return self._credit_s >= self._reading_s + costs.draft

    def read(self, tokens: int, spent_s: float) -> None:
        """The drafter read so many tokens of the text."""
        if tokens > 0:
            self._read_tokens = READ_MEMORY * self._read_tokens + tokens
            self._read_s = READ_MEMORY * self._read_s + spent_s
            self._token_s = self._read_s / self._read_tokens
        self._unpaid_s += spent_s
        self._credit_s = max(0.0, self._credit_s - spent_s)

    def _look(self, longest: int) -> int | None:
        """Take stock before a round: chances, costs and the price of time.

        :return: the draft length, if it is set, to time it.
        """
        costs = self.costs
        self._rates = self.acceptance.rates()
        likely, rate = best_length(self._rates, costs.passes, costs.draft, longest)
        lately = self._since_change < LATELY
        self._passes = costs.optimistic(likely + 1, OPTIMISM_LATELY if lately else OPTIMISM)
        spent = sum(map(mul, self._rounds_of, costs.passes)) + self._steps * costs.draft
        assumed = self._assumed * costs.passes[0]
        self._rate = max(rate, (self._tokens + assumed * rate) / (spent + assumed))
        self._credit_s = min(self._credit_s, self._reading_s + 2.0 * costs.draft)
        self._since_sweep += 1
        self._since_change += 1
        if costs.changes != self._changes:
            self._changes = costs.changes
            self._since_change = 0
            self._longer_after = LONGER_AFTER
            self._new_rate()
            if self._since_sweep > SWEEP_EVERY:
                self._sweep = list(SWEEP_NOISY if costs.noise > NOISY else SWEEP)
                self._since_sweep = 0
        if self._sweep and longest:
            return min(self._sweep.pop(0), longest)
        if self._all_stood >= self._longer_after:
            self._all_stood = 0
            self._longer_after = min(2 * self._longer_after, LONGER_AFTER_MOST)
            self._sweep = [longest] * (LONGER_TRIES - 1)
            return longest
        every = PLAIN_EVERY_LATELY if lately else PLAIN_EVERY
        if self._since_plain >= every and rate * costs.passes[0] < SMALL_GAIN:
            return 0
        return None

    def chain(self, longest: int) -> Round:
        """A round whose draft length is fixed before it begins."""
        swept = self._look(longest)
        if swept is not None:
            return Round(longest, swept, swept)
        best, most = 0, 1.0 + self._margin() - self._rate * self._passes[0]
        tokens = chance = 1.0
        for k in range(1, longest + 1):
            chance *= self._rates[k - 1]
            tokens += chance
            worth = tokens - self._rate * (self._passes[k] + k * self.costs.draft)
            if worth > most:
                best, most = k, worth
        if best == 0 and longest and self._credit_s >= self.costs.draft:
            return Round(longest, 1, 0, probe=True)
        return Round(longest, best, best)

    def open(self, longest: int) -> Round:
        """A round that may end its drafting after each step: see :meth:`more`."""
        swept = self._look(longest)
        if swept is not None:
            return Round(swept, forced=True)
        probe = bool(longest) and self._credit_s >= self.costs.draft
        return Round(longest, probe=probe)

    def more(self, now: Round) -> bool:
        """Whether to draft one more."""
        made = now.steps
        if made >= now.longest:
            return False
        if now.forced:
            return True
        stop = max(map(self._worth, now.tokens, self._passes))
        needed = stop + (self._margin() if made == 0 else 0.0)
        so_far, later = now.tokens[-1], self._rates[made : now.longest]
        if so_far + self._ahead(now, later) > needed:
            return True
        heard = self.acceptance.may_say(made)
        if heard:
            drafted = stop - self._rate * self.costs.draft
            value = 0.0
            for weight, chance in heard:
                later[0] = chance
                value += weight * max(drafted, so_far + self._ahead(now, later))
            if value > needed:
                return True
        return now.probe and made == 0

    def _margin(self) -> float:
        """Tokens that drafting must promise over a plain round."""
        return CAUTION * max(0.0, -self._balance)

    def _worth(self, tokens: float, cost: float) -> float:
        return tokens - self._rate * cost

    def _ahead(self, now: Round, chances: list[float]) -> float:
        passes, draft = self._passes[now.steps + 1 :], self.costs.draft
        return worth_going_on(now.reach, chances, passes, draft, self._rate)

    def add(self, now: Round, probability: float | None) -> None:
        """A draft was made.

        :param probability: the drafter's, of its own draft; None: not known.
        """
        if probability is not None:
            log_odds = self.acceptance.note(probability)
            now.log_odds.append(log_odds)
            chance = self.acceptance.chance(now.steps, log_odds)
        else:
            chance = self._rates[now.steps]
        now.steps += 1
        now.reach *= chance
        now.tokens.append(now.tokens[-1] + now.reach)

    def settle(self, now: Round) -> int:
        """How many of the drafts made to check."""
        worth = list(map(self._worth, now.tokens, self._passes))
        now.checked = now.steps if now.forced else worth.index(max(worth))
        return now.checked

    def close(
        self,
        now: Round,
        kept: int,
        next_stood: bool | None,
        round_s: float,
        draft_s: float | None = None,
    ) -> None:
        """Learn from a round.

        :param kept: checked drafts that stood.
        :param next_stood: whether the first draft that was not checked equals the token that the
            target chose there; None: there is none, or one before it fell.
        :param round_s: time of the round, pauses aside.
        :param draft_s: time of its draft steps, where that was measured.
        """
        rows = now.checked + 1
        if round_s > 0.0:
            if draft_s is None or not now.steps or not 0.0 < draft_s < round_s:
                self.costs.round_s(rows, now.steps, round_s)
            else:
                self.costs.draft_s(now.steps, draft_s)
                self.costs.pass_s(rows, round_s - draft_s)
        self._since_plain = self._since_plain + 1 if now.checked else 0
        stood = 0 < now.checked == kept < now.longest
        self._all_stood = self._all_stood + 1 if stood else 0
        self.acceptance.age()
        outcomes = [True] * kept + [False] * (kept < now.checked)
        if kept == now.checked and next_stood is not None:
            outcomes.append(next_stood)
        for depth, stood in enumerate(outcomes):
            log_odds = now.log_odds[depth] if depth < len(now.log_odds) else None
            self.acceptance.observe(depth, log_odds, stood)
        self._assumed *= RATE_MEMORY
        self._rounds_of = [RATE_MEMORY * each for each in self._rounds_of]
        self._rounds_of[now.checked] += 1.0
        self._steps = RATE_MEMORY * self._steps + now.steps
        self._tokens = RATE_MEMORY * self._tokens + kept + 1.0
        spent = self.costs.passes[now.checked] + now.steps * self.costs.draft
        won = kept + 1.0 - spent / self.costs.passes[0]
        self._balance = max(-BALANCE, min(BALANCE_MOST, self._balance + won + ALLOWED))
        paid = self._unpaid_s / self.costs.passes[0]
        self._earned = min(EARNED_MOST, self._earned + won + READING_SHARE - paid)
        self._unpaid_s = 0.0
        if now.checked == 0:
            self._credit_s += PROBING * self.costs.passes[0]
        if now.probe and now.steps and not (kept or next_stood):  # else it looks again at once
            self._credit_s -= self.costs.draft
