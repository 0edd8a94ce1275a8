# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Draft lengths chosen by the controller against every fixed one, in simulation and for real.

The simulated texts, costs and noise are those of ``draft_scenarios``; a figure is a ratio of true
times for the same tokens. The best fixed length is that of each text in hindsight. The real part
decodes with the embedded pair, all lengths in turns.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table

from . import draft_scenarios as given
from .common import FEWER, MORE, Row, parser, quantile, report
from .draft_policies import Adaptive, Fixed, Heuristic, Policy, Threshold, Tiers, answer

FOLLOW_TOKENS = 800
FOLLOW_SEEDS = range(40)
FOLLOWED = 0.9
"""A draft length has followed a change once it is worth this share of the best under the new costs,
in five rounds in a row; each change makes the length before it worth less."""

ROUNDS_IN_A_ROW = 5

T = TypeVar("T")

Make = Callable[[given.Costs, float], Policy]
"""A policy, from measured costs and the measured noise of a timing."""


class Run(NamedTuple):
    """One text decoded by one policy, relative to the best fixed length and to no drafts."""

    scenario: str
    noise: float
    quality: str
    vs_best: float
    vs_plain: float


def measured_noise(noise: float, seed: str) -> float:
    """What 15 timings of each of 9 costs say of the noise."""
    rng = random.Random(seed)
    count = 9 * (given.REPEATS - 1)
    return noise * math.sqrt(sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(count)) / count)


def decode(
    make: Make, scenario: given.Scenario, seed: int, tokens: int, noise: float, quality: str
) -> float:
    """True cost of a text."""
    name = f"{scenario.name} {seed} {noise}"
    policy = make(
        given.measured(scenario.costs, noise, f"configure {name}"),
        measured_noise(noise, f"noise {name}"),
    )

    def costs(place: int) -> given.Costs:
        changed = scenario.after is not None and place >= tokens // 2
        return scenario.after if changed and scenario.after is not None else scenario.costs

    history = given.history_of(scenario, seed)
    if history is not None:
        before = f"history {name}"
        answer(policy, history, given.HISTORY, lambda _: scenario.costs, noise, before, quality)
    policy.new_answer()
    text = given.text_of(scenario, tokens, seed)
    return answer(policy, text, tokens, costs, noise, name, quality).cost


@functools.cache
def fixed(scenario: given.Scenario, seed: int, tokens: int) -> list[float]:
    """True cost of a text at every fixed length, which neither noise nor confidence changes."""
    return [
        decode(always(k), scenario, seed, tokens, 0.0, given.NO_CONFIDENCE)
        for k in range(given.DEPTHS + 1)
    ]


def always(k: int) -> Make:
    """A fixed length."""
    return lambda costs, noise: Fixed(k)


def runs(
    make: Callable[[bool], Make],
    tokens: int,
    noises: tuple[float, ...] = given.NOISES,
    qualities: tuple[str, ...] = given.QUALITIES,
) -> Iterator[Run]:
    """A policy on all scenarios. ``make`` is told whether the drafter's probability is known."""
    for scenario in given.SCENARIOS:
        for noise in noises:
            for quality in qualities:
                confident = quality != given.NO_CONFIDENCE
                for seed in given.SEEDS:
                    costs = fixed(scenario, seed, tokens)
                    cost = decode(make(confident), scenario, seed, tokens, noise, quality)
                    vs = (min(costs) / cost, costs[0] / cost)
                    yield Run(scenario.name, noise, quality, *vs)


def adaptive(confident: bool) -> Make:
    """The controller."""
    return lambda costs, noise: Adaptive(costs, noise, confident)


def whatever(make: Make) -> Callable[[bool], Make]:
    """A policy that does not care whether the drafter's probability is known."""
    return lambda confident: make


def others() -> dict[str, tuple[Make, tuple[str, ...]]]:
    """What the controller is compared with, and the qualities of confidence that matter to it."""
    silent = (given.NO_CONFIDENCE,)
    policies: dict[str, tuple[Make, tuple[str, ...]]] = {
        f"fixed{k}": (always(k), silent) for k in range(given.DEPTHS + 1)
    }
    policies["heuristic"] = (lambda costs, noise: Heuristic(), silent)
    policies["threshold"] = (lambda costs, noise: Threshold(), (given.WEAK, given.INFORMATIVE))
    policies["tiers"] = (lambda costs, noise: Tiers(), silent)
    return policies


def worth(costs: given.Costs, k: int) -> float:
    """Tokens per time at a draft length, on the text of the changes."""
    tokens = chance = 1.0
    for depth in range(k):
        chance *= given.FOLLOW_KIND.acceptance * given.FOLLOW_KIND.decline**depth
        tokens += chance
    return tokens / (costs.passes[k] + k * costs.draft)


def constant(value: T) -> Callable[[int], T]:
    """The same at every place."""
    return lambda place: value


def rounds_to_follow(change: given.Follow, noise: float, seed: int, confident: bool) -> int:
    """Rounds from a change of costs until the draft length has followed it."""
    name = f"{change.name} {noise} {seed}"
    quality = given.INFORMATIVE if confident else given.NO_CONFIDENCE
    text = given.make_text(given.steady(given.FOLLOW_KIND), FOLLOW_TOKENS, f"follow {name}")
    policy = Adaptive(
        given.measured(change.costs, noise, f"configure {name}"),
        measured_noise(noise, f"noise {name}"),
        confident,
    )
    for visit in range(change.visits):
        for costs, mode in ((change.after, "after"), (change.costs, "before")):
            seen = f"{mode} {visit} {name}"
            answer(policy, text, 100, constant(costs), noise, seen, quality, constant(mode))

    def after(place: int) -> bool:
        return place >= given.FOLLOW_AT

    trace = answer(
        policy,
        text,
        FOLLOW_TOKENS,
        lambda place: change.after if after(place) else change.costs,
        noise,
        name,
        quality,
        lambda place: "after" if change.told and after(place) else "before",
    )
    lengths = [k for place, k in zip(trace.places, trace.checked, strict=True) if after(place)]
    best = max(worth(change.after, k) for k in range(given.DEPTHS + 1))
    good = [worth(change.after, k) >= FOLLOWED * best for k in lengths]
    for i in range(len(good) - ROUNDS_IN_A_ROW):
        if all(good[i : i + ROUNDS_IN_A_ROW]):
            return i
    return len(good)


def follow_rows() -> list[Row]:
    """How fast the length follows changes of clock and mode, with the chain fixed before a round.

    With confidence, lengths differ from round to round, and there is no one length to follow.
    """
    rows = []
    for noise, goal in zip(given.NOISES, (10, 20), strict=True):
        suffix = "" if noise == given.NOISES[0] else "_noisy"
        slowest = 0.0
        for change in given.FOLLOWS:
            taken = [rounds_to_follow(change, noise, seed, False) for seed in FOLLOW_SEEDS]
            p95 = quantile(taken, 0.95)
            slowest = max(slowest, p95)
            rows.append(Row(f"draft.follow.{change.name}{suffix}", p95, "rounds (p95)"))
        name = f"draft.rounds_to_follow{suffix}"
        rows.append(Row(name, slowest, "rounds (p95)", (FEWER, goal)))
    return rows


def goal_rows(long: list[Run], short: list[Run]) -> list[Row]:
    """The figures with goals."""
    quiet, noisy = given.NOISES
    switching = {each.name for each in given.SWITCHING}
    informed = [
        r.vs_best for r in long if r.scenario in switching and r.quality == given.INFORMATIVE
    ]
    medians = statistics.median(r.vs_best for r in long)
    short_median = statistics.median(r.vs_best for r in short)
    rows = [
        ("median_vs_best_fixed", medians, 0.98),
        ("worst_vs_best_fixed", min(r.vs_best for r in long), 0.93),
        ("worst_vs_plain", min(r.vs_plain for r in long if r.noise == quiet), 0.98),
        ("worst_vs_plain_noisy", min(r.vs_plain for r in long if r.noise == noisy), 0.97),
        ("short_median", short_median, 0.96),
        ("short_worst", min(r.vs_best for r in short), 0.75),
        ("short_worst_vs_plain", min(r.vs_plain for r in short), 0.87),
        ("switching", statistics.median(informed), 1.02),
        ("switching_worst", min(informed), None),
    ]
    for quality in given.QUALITIES:
        of = [r.vs_best for r in long if r.quality == quality]
        rows.append((f"median_confidence_{quality}", statistics.median(of), None))
        rows.append((f"worst_confidence_{quality}", min(of), None))
    return [
        Row(f"draft.{name}", value, "ratio", None if goal is None else (MORE, goal))
        for name, value, goal in rows
    ]


def summary(name: str, found: list[Run]) -> list[Row]:
    """Rows of one policy in the table of policies."""
    best = [r.vs_best for r in found]
    return [
        Row(f"draft.{name}.median", statistics.median(best), "ratio"),
        Row(f"draft.{name}.p05", quantile(best, 0.05), "ratio"),
        Row(f"draft.{name}.worst", min(best), "ratio"),
        Row(f"draft.{name}.worst_vs_plain", min(r.vs_plain for r in found), "ratio"),
    ]


def policy_table(rows: list[Row]) -> Table:
    """One line a policy."""
    table = Table(
        title=f"Against the best fixed length, {given.TOKENS} tokens",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy", no_wrap=True)
    for heading in ("median", "5th percentile", "worst", "worst\nagainst plain"):
        table.add_column(heading, justify="right")
    for at in range(0, len(rows), 4):
        name = rows[at].name.split(".")[1]
        table.add_row(name, *(f"{row.value:.3f}" for row in rows[at : at + 4]))
    return table


def scenario_table(found: list[Run]) -> Table:
    """The controller on each scenario: median and worst, by noise and confidence."""
    table = Table(
        title="The controller by scenario: median / worst against the best fixed length",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("scenario", no_wrap=True)
    for noise in given.NOISES:
        for quality in given.QUALITIES:
            table.add_column(f"{quality}\n{100 * noise:.0f} % noise", justify="right")
    for scenario in given.SCENARIOS:
        cells = []
        for noise in given.NOISES:
            for quality in given.QUALITIES:
                of = [
                    r.vs_best
                    for r in found
                    if (r.scenario, r.noise, r.quality) == (scenario.name, noise, quality)
                ]
                cells.append(f"{statistics.median(of):.3f} / {min(of):.3f}")
        table.add_row(scenario.name, *cells)
    return table


def main() -> None:
    """Simulate, measure and report."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--model", default="demo")
    options_parser.add_argument("--drafter", default="")
    options_parser.add_argument("--prompts", type=int, default=6, help="of the real part")
    options_parser.add_argument(
        "--repeats", type=int, default=5, help="of the real part; 0 leaves it out"
    )
    options_parser.add_argument("--max-new-tokens", type=int, default=160)
    options_parser.add_argument("--real-only", action="store_true", help="leave out the simulation")
    options_parser.set_defaults(threads=1)
    options = options_parser.parse_args()

    rows: list[Row] = []
    policy_rows: list[Row] = []
    console = Console(width=140)
    with Console(stderr=True).status("simulating") as status:
        if not options.real_only:
            long = list(runs(adaptive, given.TOKENS))
            short = list(runs(adaptive, given.SHORT))
            rows += goal_rows(long, short)
            policy_rows += summary("controller", long)
            for name, (make, qualities) in others().items():
                status.update(f"simulating {name}")
                found = list(runs(whatever(make), given.TOKENS, given.NOISES[:1], qualities))
                policy_rows += summary(name, found)
            status.update("simulating changes")
            rows += follow_rows()
            console.print(scenario_table(long))
        if options.repeats:
            from . import draft_real

            rows += draft_real.rows(options, status.update)
    report(
        "How well the draft length is chosen",
        rows,
        options.threads,
        options.json,
        table=policy_table(policy_rows) if policy_rows else None,
        in_table=policy_rows,
        notes=[
            f"Simulated: {len(given.SCENARIOS)} scenarios, {len(given.SEEDS)} texts each, "
            f"{' and '.join(f'{100 * n:.0f}' for n in given.NOISES)} % noise of a timing, three "
            f"qualities of the drafter's probability; {given.TOKENS} tokens, short ones "
            f"{given.SHORT}; true costs.",
            "The best fixed length is chosen for each text in hindsight, 0 to 7.",
            f"Rounds to follow: until the length is worth {FOLLOWED} of the best under the new "
            f"costs, {ROUNDS_IN_A_ROW} rounds in a row; the slowest of {len(given.FOLLOWS)} "
            "changes.",
        ],
    )


if __name__ == "__main__":
    main()
