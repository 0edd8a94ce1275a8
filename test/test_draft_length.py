# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The choice of the draft length: every rule in a line, and what holds whatever happens."""

from __future__ import annotations

import math
import random
import statistics
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.acceptance import Acceptance
from gemma_mtp_ros.engine.belief import Belief
from gemma_mtp_ros.engine.draft_costs import CostBelief, Costs, rising
from gemma_mtp_ros.engine.draft_length import (
    SWEEP,
    DraftController,
    Round,
    best_length,
    longest_draft,
    worth_going_on,
)

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import draft_control, draft_policies, draft_scenarios
from benchmarks.common import quantile

FLAT = Costs((1.0,) * 8, 0.05, 0.02)
STEEP = Costs(tuple(1.0 + 0.5 * n for n in range(8)), 0.25, 0.02)


@pytest.mark.parametrize(
    ("cap", "tokens_left", "context_left", "longest"),
    [(7, 99, 99, 7), (9, 99, 99, 7), (3, 99, 99, 3), (7, 3, 99, 2), (7, 99, 5, 4), (7, 1, 1, 0)],
)
def test_a_round_decides_and_writes_one_more_than_it_drafts(
    cap: int, tokens_left: int, context_left: int, longest: int
) -> None:
    assert longest_draft(cap, tokens_left, context_left) == longest


@pytest.mark.parametrize(
    ("chance", "passes", "draft", "best"),
    [
        (0.9, (1.0,) * 8, 0.01, 7),
        (0.8, (1.0,) * 8, 0.12, 5),
        (0.8, (1.0,) * 8, 0.25, 3),
        (0.3, STEEP.passes, 0.25, 0),
        (0.8, (1.0, 1.02, 1.03, 1.05, 1.6, 1.62, 1.64, 1.66), 0.06, 3),  # before a stair
        (0.95, (1.0, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2, 2.2), 0.01, 7),  # one step ahead sees only loss
    ],
)
def test_the_length_with_the_most_tokens_per_second(
    chance: float, passes: tuple[float, ...], draft: float, best: int
) -> None:
    assert best_length([chance] * 7, passes, draft, 7)[0] == best


def test_the_best_length_is_bounded() -> None:
    assert best_length([0.9] * 7, (1.0,) * 8, 0.01, 2)[0] == 2
    assert best_length([0.9] * 7, (1.0,) * 8, 0.01, 0) == (0, 1.0)


def test_going_on_looks_beyond_a_dear_step() -> None:
    passes = (3.0, 1.2)  # one more draft costs a stair, two cost little
    near = worth_going_on(1.0, [0.9], passes, 0.05, 1.0)
    far = worth_going_on(1.0, [0.9, 0.9], passes, 0.05, 1.0)
    assert near == pytest.approx(0.9 - 3.05)
    assert far == pytest.approx(0.9 + 0.81 - 1.3)


def test_rising_costs_are_the_nearest_that_never_fall() -> None:
    assert rising([1.0, 3.0, 2.0, 4.0]) == [1.0, 2.5, 2.5, 4.0]
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert rising([1.0, 2.0]) == [1.0, 2.0]


def test_an_observation_moves_what_moves_along() -> None:
    belief = Belief([0.0, 0.0, 0.0], [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0]])
    along, variance = belief.along([1.0, 0.0, 0.0])
    belief.take(along, 1.0, variance + 1.0)
    assert belief.mean == pytest.approx([0.5, 0.25, 0.0])
    assert belief.covariance[0][0] == pytest.approx(0.5)
    assert belief.covariance[1][1] == pytest.approx(0.875)


def test_costs_follow_what_passes_take() -> None:
    costs = CostBelief(FLAT)
    for _ in range(200):
        costs.pass_s(3, 1.02)
        costs.draft_s(2, 0.11)
    assert costs.passes[2] == pytest.approx(1.02, rel=0.01)
    assert costs.draft == pytest.approx(0.055, rel=0.02)
    assert costs.passes[7] == pytest.approx(1.0, rel=0.02)


def test_one_spike_is_no_change_and_moves_little() -> None:
    costs = CostBelief(FLAT)
    for seconds in (1.0, 1.0, 50.0, 1.0, 1.0):
        costs.pass_s(1, seconds)
    assert costs.changes == 0
    assert costs.passes[0] == pytest.approx(1.0, rel=0.05)


def test_a_change_of_clock_is_found_and_moves_all_widths() -> None:
    costs = CostBelief(FLAT)
    for _ in range(20):
        costs.pass_s(8, 1.0)
    for _ in range(3):
        costs.pass_s(8, 2.0)
    assert costs.changes == 1
    assert costs.passes[7] == pytest.approx(2.0, rel=0.1)
    assert all(each > 1.2 for each in costs.passes)


def test_uncertain_costs_are_taken_to_be_lower_relative_to_the_one_in_use() -> None:
    costs = CostBelief(FLAT)
    for _ in range(50):
        costs.pass_s(4, 1.0)
    low = costs.optimistic(4, 1.0)
    assert low[3] == costs.passes[3]
    assert all(low[n] < costs.passes[n] for n in range(8) if n != 3)


def test_acceptance_is_learned_by_depth() -> None:
    found = Acceptance()
    rng = random.Random(1)
    for _ in range(400):
        found.age()
        for depth, chance in enumerate((0.9, 0.8, 0.7, 0.6)):
            stood = rng.random() < chance
            found.observe(depth, None, stood)
            if not stood:
                break
    rates = found.rates()
    assert rates[0] == pytest.approx(0.9, abs=0.06)
    assert rates[3] == pytest.approx(0.6, abs=0.1)
    assert rates[0] > rates[3] > rates[6]


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def test_what_the_drafter_says_counts_as_much_as_it_tells() -> None:
    rng = random.Random(2)
    told, noise = Acceptance(), Acceptance()
    for _ in range(500):
        truth = rng.gauss(0.0, 2.0)
        stood = rng.random() < sigmoid(truth)
        for model, said in ((told, truth), (noise, rng.gauss(0.0, 2.0))):
            model.age()
            model.observe(0, model.note(sigmoid(said)), stood)
    assert told.chance(0, 3.0) > 0.85
    assert told.chance(0, -3.0) < 0.15
    assert abs(noise.chance(0, 3.0) - noise.chance(0, -3.0)) < 0.35
    assert told.may_say(0)


def test_an_overconfident_drafter_is_calibrated() -> None:
    rng = random.Random(3)
    model = Acceptance()
    for _ in range(600):
        model.age()
        said = sigmoid(4.0 + rng.gauss(0.0, 0.3))
        model.observe(0, model.note(said), rng.random() < 0.5)
    assert model.chance(0, 4.0) == pytest.approx(0.5, abs=0.15)


def test_an_answer_without_drafts_tells_nothing_of_them() -> None:
    model = Acceptance()
    for _ in range(30):
        model.observe(0, None, False)
    model.new_answer()
    before = model.rates()
    for _ in range(5):
        model.new_answer()
    assert model.rates() == before


def test_history_counts_for_little() -> None:
    model = Acceptance()
    for _ in range(300):
        model.age()
        model.observe(0, None, False)
    assert model.rates()[0] < 0.1
    model.new_answer()
    assert model.rates()[0] > 0.2
    for _ in range(8):
        model.age()
        model.observe(0, None, True)
    assert model.rates()[0] > 0.6


def play(
    controller: DraftController, costs: Costs, chance: float, rounds: int, seed: int = 0
) -> list[int]:
    """Rounds on a text of one acceptance, without noise; the lengths checked."""
    rng = random.Random(seed)
    lengths = []
    for _ in range(rounds):
        now = controller.chain(MAX_DRAFT)
        kept = 0
        while kept < now.checked and rng.random() < chance:
            kept += 1
        following = rng.random() < chance if kept == now.checked < now.steps else None
        seconds = costs.passes[now.checked] + now.steps * costs.draft
        controller.close(now, kept, following, seconds)
        lengths.append(now.checked)
    return lengths


def test_it_drafts_where_that_pays_and_not_where_it_does_not() -> None:
    assert statistics.mean(play(DraftController(FLAT), FLAT, 0.95, 200)[50:]) > 5
    assert statistics.mean(play(DraftController(STEEP), STEEP, 0.2, 200)[50:]) < 0.1


def test_a_cost_that_was_measured_under_load_is_not_believed_for_ever() -> None:
    disturbed = Costs((1.0, 1.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0), 0.05, 0.02)
    lengths = play(DraftController(disturbed), FLAT, 1.0, 60)
    assert lengths[5] <= 1
    assert statistics.mean(lengths[30:]) > 5


def test_at_zero_it_probes_within_a_share_of_the_time_and_finds_text_that_turned() -> None:
    costs = Costs((1.0,) * 8, 0.6, 0.02)
    controller = DraftController(costs)
    play(controller, costs, 0.0, 300)
    made = 0
    for _ in range(1000):
        now = controller.chain(MAX_DRAFT)
        controller.close(now, 0, False if now.steps else None, 1.0 + now.steps * costs.draft)
        made += now.steps
    assert 0 < made * costs.draft <= 0.0075 * 1000
    assert statistics.mean(play(controller, costs, 1.0, 600)[-100:]) > 1


def test_a_loss_against_plain_decoding_makes_it_cautious() -> None:
    controller = DraftController(STEEP)
    assert controller._margin() == 0.0
    for _ in range(4):
        controller.close(Round(7, 7, 7), 0, None, STEEP.passes[7] + 7 * STEEP.draft)
    assert controller._margin() > 0.1
    controller.close(Round(7, 7, 7), 7, None, STEEP.passes[7] + 7 * STEEP.draft)
    for _ in range(200):
        controller.close(Round(7), 0, None, STEEP.passes[0])
    assert controller._margin() < 0.15  # plain rounds pay it back, and what drafts win


def test_costs_are_remembered_by_power_mode() -> None:
    slow = Costs(tuple(3.0 + n for n in range(8)), 0.3, 0.02)
    controller = DraftController(FLAT)
    controller.power_mode("")
    controller.power_mode("MAXN")
    assert controller.costs.changes == 0  # the first name is that of the mode measured in
    play(controller, FLAT, 0.9, 50)
    controller.power_mode("15W")
    assert play(controller, slow, 0.9, 3) == list(SWEEP)
    play(controller, slow, 0.9, 50)
    held = list(controller.costs.passes)
    controller.power_mode("MAXN")
    controller.power_mode("")  # unknown for a while: as before
    assert controller.costs.passes[7] == pytest.approx(1.0, rel=0.05)
    assert play(controller, FLAT, 0.9, 1)[0] >= 5
    controller.power_mode("15W")
    assert controller.costs.passes[0] == pytest.approx(held[0], rel=0.1)
    assert play(controller, slow, 0.9, 3) != list(SWEEP)
    for i in range(100):
        controller.power_mode(f"mode {i}")
    assert len(controller._modes) <= 9


def test_a_cap_bounds_sweeps_and_probes_too() -> None:
    controller = DraftController(FLAT)
    controller.power_mode("a")
    controller.power_mode("b")
    assert controller.chain(0).steps == 0
    assert not controller.more(controller.open(0))
    now = controller.chain(2)
    assert now.steps == now.checked == 2


def test_after_drafting_only_the_prefix_that_pays_is_checked() -> None:
    controller = DraftController(Costs((1.0, 1.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0), 0.01, 0.02))
    now = controller.open(2)
    for probability in (0.98, 0.02):
        controller.add(now, probability)
    assert controller.settle(now) == 1


@given(
    seed=st.integers(0, 2**32),
    passes=st.lists(st.floats(1e-6, 1e3), min_size=8, max_size=8),
    draft=st.floats(1e-7, 1e3),
    noise=st.floats(0.0, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_lengths_are_allowed_and_beliefs_are_numbers(
    seed: int, passes: list[float], draft: float, noise: float
) -> None:
    rng = random.Random(seed)
    controller = DraftController(Costs(tuple(passes), draft, noise))
    for _ in range(60):
        if rng.random() < 0.05:
            controller.new_answer()
        if rng.random() < 0.05:
            controller.power_mode(rng.choice(["", "a", "b", "c"]))
        longest = rng.randrange(MAX_DRAFT + 1)
        if rng.random() < 0.5:
            now = controller.chain(longest)
        else:
            now = controller.open(longest)
            while controller.more(now):
                said = rng.choice([None, 0.0, 1.0, rng.random()])
                controller.add(now, said)
            controller.settle(now)
        assert 0 <= now.checked <= now.steps <= longest
        kept = rng.randint(0, now.checked)
        following = rng.random() < 0.5 if kept == now.checked < now.steps else None
        round_s = rng.choice([0.0, 1e-9, 1e6, abs(rng.gauss(0.0, 1.0))])
        controller.close(now, kept, following, round_s, rng.choice([None, 0.5 * round_s]))
        assert all(0.0 < each < math.inf for each in controller.costs.passes)
        assert 0.0 < controller.costs.draft < math.inf
        assert all(0.0 < each < 1.0 for each in controller.acceptance.rates())


@given(chances=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7), longest=st.integers(0, 7))
def test_a_better_drafter_never_makes_the_best_rate_worse(
    chances: list[float], longest: int
) -> None:
    better = [min(1.0, each + 0.05) for each in chances]
    assert (
        best_length(better, STEEP.passes, STEEP.draft, longest)[1]
        >= best_length(chances, STEEP.passes, STEEP.draft, longest)[1]
    )


@pytest.mark.parametrize(("noise", "rounds"), [(0.05, 10), (0.20, 20)])
def test_the_length_follows_a_changed_clock_or_mode(noise: float, rounds: int) -> None:
    taken = [
        draft_control.rounds_to_follow(change, noise, seed, False)
        for change in draft_scenarios.FOLLOWS
        for seed in range(12)
    ]
    assert quantile(taken, 0.95) <= rounds


@pytest.mark.parametrize("quality", draft_scenarios.QUALITIES)
def test_text_of_a_scenario_does_not_depend_on_the_policy(quality: str) -> None:
    """Two policies that make the same choices meet the same outcomes and are charged the same."""
    scenario = draft_scenarios.SCENARIOS[0]
    first, second = (
        draft_control.decode(
            lambda costs, noise: draft_policies.Fixed(3), scenario, 1, 200, noise, quality
        )
        for noise in (0.05, 0.2)
    )
    assert first == second


def test_a_drafter_reads_where_drafts_pay() -> None:
    controller = DraftController(FLAT)
    assert controller.wants(4, unread=100_000)


def test_a_drafter_reads_no_long_text_for_a_short_answer() -> None:
    controller = DraftController(FLAT)
    assert controller.wants(4, unread=100_000, left=1)  # to learn what it costs
    controller.read(100, 100 * FLAT.passes[0])
    assert controller.wants(4, unread=100, left=1000)
    assert not controller.wants(4, unread=100, left=100)  # as long as plain decoding of all


def test_a_drafter_that_does_not_pay_reads_what_is_cheap() -> None:
    controller = DraftController(Costs((1.0,) * 8, 1.0, 0.02))
    assert controller.wants(4, unread=0)
    assert controller.wants(4, unread=4)  # a draft step, by the estimate
    assert not controller.wants(4, unread=5)
    controller.read(100, 10.0)
    assert controller.wants(4, unread=10)
    assert not controller.wants(4, unread=11)


def test_a_few_tokens_at_the_end_do_not_tell_what_reading_costs() -> None:
    controller = DraftController(Costs((1.0,) * 8, 1.0, 0.02))
    controller.read(128, 1.28)
    controller.read(1, 1.0)
    assert controller.wants(4, unread=40)
    assert not controller.wants(4, unread=80)


def test_a_drafter_that_does_not_pay_reads_much_after_many_rounds() -> None:
    """So long that it takes half a per cent of the time; then at once, and again after as long."""
    controller = DraftController(Costs((1.0,) * 8, 1.0, 0.02))
    controller.read(1, 0.1)
    for _ in range(2):
        rounds = 0
        while not controller.wants(4, unread=40):
            controller.close(controller.chain(0), 0, None, 1.0)
            rounds += 1
        assert rounds == pytest.approx((4.0 + 1.0) / 0.005, rel=0.25)
        controller.read(40, 4.0)
        assert controller.chain(4).probe
        controller.read(0, 1.0)


@pytest.mark.parametrize(
    ("draft", "token", "chance", "least"),
    [
        (0.3, 0.05, 0.2, 0.94),  # never pays
        (0.3, 0.05, 0.6, 0.94),  # pays, but for what reading takes
        (0.1, 0.002, 0.8, 2.0),
        (0.2, 0.02, 0.8, 1.3),
    ],
)
def test_what_reading_takes_must_be_earned(
    draft: float, token: float, chance: float, least: float
) -> None:
    """Eight prompts of 2,000 tokens, each answered by 250, by a simulated draft model."""
    controller = DraftController(Costs(tuple(1.0 + 0.02 * n for n in range(8)), draft, 0.03))
    draw, spent_s = random.Random(1), 0.0
    for _ in range(8):
        controller.new_answer()
        unread, said = 2000, 0
        while said < 250:
            longest = 4 if controller.wants(4, unread, 250 - said) else 0
            if longest and unread > 8:
                controller.read(unread, unread * token)
                spent_s += unread * token
                unread = 0
            now = controller.chain(longest)
            stood = [draw.random() < chance for _ in range(now.steps)]
            kept = (*stood[: now.checked], False).index(False)
            missed = now.checked < len(stood) and kept == now.checked
            round_s = 1.0 + 0.02 * now.checked + now.steps * draft
            controller.close(now, kept, stood[now.checked] if missed else None, round_s)
            spent_s += round_s
            said += kept + 1
            unread = 0 if now.steps else unread + 1
    assert 8 * 250 / spent_s > least
