# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Who is served, who waits and who ends for another: the rule, the backlog, the real engine."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from host_tools import PATIENCE_S, Told, endless_pair, request, running, submit
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from test_backlog import CANCEL, ended, finish, open_backlog, piece, sent_id

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    EngineConfig,
    ErrorCode,
    Finish,
    FinishReason,
    Piece,
    Queued,
    Request,
    Started,
)
from gemma_mtp_ros.backlog import Backlog, Event
from gemma_mtp_ros.host import EngineHost, HostState
from gemma_mtp_ros.scheduling import Admission, Before, BusyPolicy, admit, preempted

QUEUE, REFUSE, PREEMPT = BusyPolicy
ADMITTED = Admission()
PREEMPTED = (FinishReason.PREEMPTED, ErrorCode.PREEMPTED)


# The rule.


@pytest.mark.parametrize(
    ("policy", "size", "priority", "before", "admission"),
    [
        # Nobody is there.
        (QUEUE, 0, 0, Before(None, [], True), ADMITTED),
        (REFUSE, 0, 0, Before(None, [], True), ADMITTED),
        (PREEMPT, 0, 0, Before(None, [], True), ADMITTED),
        # One runs.
        (QUEUE, 1, 0, Before(0, [], True), ADMITTED),
        (QUEUE, 1, 5, Before(5, [5], True), "1 goal of this priority (5) or a higher one wait"),
        (QUEUE, 0, 0, Before(0, [], True), "a goal runs and queue_size is 0"),
        (QUEUE, 0, 1, Before(0, [], True), Admission(end_running=True)),
        (QUEUE, 2, 9, Before(3, [3, 1], True), Admission(end_running=True)),
        (REFUSE, 9, 255, Before(0, [], True), "another goal is served and busy_policy is refuse"),
        (PREEMPT, 0, 0, Before(0, [], True), Admission(end_running=True)),
        (PREEMPT, 0, 0, Before(1, [], True), "a goal runs and queue_size is 0"),
        (PREEMPT, 1, 0, Before(1, [], True), ADMITTED),
        # Some wait: preempt ends them, queue only the last one, where there is no place left.
        (QUEUE, 3, 2, Before(4, [2, 2, 1], True), Admission(end_waiting=(2,))),
        (QUEUE, 3, 1, Before(4, [2, 2, 1], True), "3 goals of this priority (1)"),
        (QUEUE, 3, 5, Before(4, [2, 2, 1], True), Admission(end_running=True)),
        (PREEMPT, 3, 2, Before(4, [3, 2, 1], True), Admission(end_waiting=(1, 2))),
        (PREEMPT, 3, 4, Before(4, [3, 2], True), Admission(end_running=True, end_waiting=(0, 1))),
        (PREEMPT, 1, 2, Before(4, [3, 1], True), "1 goal of this priority (2) or a higher one"),
        # One that was told to end is as good as gone.
        (QUEUE, 0, 0, Before(None, [7], True), "1 goal of this priority (0)"),
        (QUEUE, 0, 8, Before(None, [7], True), Admission(end_waiting=(0,))),
        (REFUSE, 4, 0, Before(None, [0], True), "another goal is served"),
        # The engine is coming up.
        (QUEUE, 1, 0, Before(None, [], False), ADMITTED),
        (QUEUE, 0, 9, Before(None, [], False), "the engine is coming up and queue_size is 0"),
        (REFUSE, 4, 0, Before(None, [], False), "the engine is coming up and busy_policy"),
        (PREEMPT, 4, 1, Before(None, [2, 1, 0], False), Admission(end_waiting=(1, 2))),
        (PREEMPT, 0, 1, Before(None, [], False), "the engine is coming up and queue_size is 0"),
    ],
)
def test_the_rule(policy, size, priority, before, admission):
    if isinstance(admission, str):
        refusal = admit(policy, size, priority, before).refusal
        assert refusal.startswith(admission)
        assert "send the goal again later" in refusal
    else:
        assert admit(policy, size, priority, before) == admission


@given(
    st.sampled_from(BusyPolicy),
    st.integers(0, 4),
    st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.lists(st.integers(0, 3), max_size=6),
    st.booleans(),
)
def test_what_holds_for_every_decision(policy, size, priority, running, waiting, ready):
    waiting = sorted(waiting, reverse=True)
    before = Before(running if ready else None, waiting, ready)
    refusal, end_running, end_waiting = admit(policy, size, priority, before)
    ended = [waiting[i] for i in end_waiting] + [running] * end_running
    highest = priority if policy is PREEMPT else priority - 1
    assert all(each is not None and each <= highest for each in ended)
    assert not (ended and (refusal or policy is REFUSE))
    if not refusal:
        stays = before.running is not None and not end_running
        assert not (stays and before.running < priority)
        left = [each for i, each in enumerate(waiting) if i not in end_waiting]
        assert len(left) <= max(size, len(waiting) - 1)
        if policy is PREEMPT:
            assert all(each > priority for each in left)


def test_what_a_preempted_goal_is_told():
    assert preempted(QUEUE, 2, 7).startswith("a goal of priority 7 took the place of this one of p")
    assert "busy_policy is preempt" in preempted(PREEMPT, 7, 7)


# The backlog.


def filled(*priorities: int, policy: BusyPolicy, size: int = 4, ready: bool = True):
    """A backlog with one request for each priority ("0", "1", ...), the first of which began."""
    backlog = Backlog(size, lambda: None, policy)
    backlog.open()
    backlog.set_ready(ready)
    told: dict[str, list[Event]] = {}
    for number, priority in enumerate(priorities):
        put(backlog, told, str(number), priority)
        if number == 0 and ready:
            assert sent_id(backlog.next()) == "0"
            backlog.started(Started(request_id="0", prompt_tokens=3, seed=9))
            backlog.piece(piece("0", "Hel", 1))
    return backlog, told


def put(backlog: Backlog, told: dict[str, list[Event]], name: str, priority: int = 0) -> None:
    told[name] = []
    backlog.submit(Request(id=name, priority=priority), told[name].append)
    backlog.deliver()


def ends(told: dict[str, list[Event]]) -> dict[str, FinishReason]:
    """Of those that have ended, why."""
    return {
        name: events[-1].finish_reason
        for name, events in told.items()
        if events and isinstance(events[-1], Finish)
    }


def test_a_higher_priority_waits_until_the_engine_has_ended_the_running_one():
    backlog, told = filled(0, 0, policy=QUEUE)
    put(backlog, told, "new", 1)
    cancel = backlog.next_cancel()
    assert cancel is not None
    assert (cancel.request_id, cancel.finish_reason, cancel.error_code) == ("0", *PREEMPTED)
    assert "priority 1" in cancel.error_msg
    assert backlog.next() is None
    assert backlog.next_cancel() is None
    backlog.piece(piece("0", "lo", 2))
    assert ends(told) == {}
    backlog.finish(finish("0"))
    assert sent_id(backlog.next()) == "new"
    backlog.finish(finish("new"))
    assert sent_id(backlog.next()) == "1"


def test_an_equal_priority_waits_or_preempts_by_the_policy():
    backlog, told = filled(3, policy=QUEUE)
    put(backlog, told, "equal", 3)
    assert backlog.next_cancel() is None
    backlog, told = filled(3, policy=PREEMPT)
    put(backlog, told, "lower", 2)
    assert backlog.next_cancel() is None
    assert ends(told) == {}
    put(backlog, told, "equal", 3)
    assert backlog.next_cancel().finish_reason is FinishReason.PREEMPTED
    backlog.deliver()
    assert ends(told) == {"lower": FinishReason.PREEMPTED}


def test_refused_goals_are_told_why_and_disturb_nobody():
    backlog, told = filled(0, policy=REFUSE, size=4)
    put(backlog, told, "late", 255)
    assert ended(told["late"]).error_code is ErrorCode.QUEUE_FULL
    assert "busy_policy is refuse" in ended(told["late"]).error_msg
    assert backlog.next_cancel() is None
    backlog.finish(finish("0"))
    put(backlog, told, "next")
    assert sent_id(backlog.next()) == "next"


def test_refuse_takes_one_goal_behind_one_that_is_ending():
    """Cancel, then send the next: that must not depend on who is faster."""
    backlog, told = filled(0, policy=REFUSE, size=0)
    backlog.cancel("0", *CANCEL)
    put(backlog, told, "next")
    put(backlog, told, "one too many")
    assert ends(told) == {"one too many": FinishReason.ERROR}
    backlog.finish(finish("0"))
    assert sent_id(backlog.next()) == "next"


def test_a_policy_that_changes_holds_for_new_goals():
    backlog, told = filled(0, 0, policy=QUEUE)
    backlog.set_policy(REFUSE)
    put(backlog, told, "refused")
    assert ends(told) == {"refused": FinishReason.ERROR}
    backlog.set_policy(PREEMPT)
    put(backlog, told, "new")
    assert ends(told) == {"refused": FinishReason.ERROR, "1": FinishReason.PREEMPTED}
    backlog.finish(finish("0"))
    assert sent_id(backlog.next()) == "new"


def test_in_a_full_queue_a_goal_takes_the_place_of_a_lower_one():
    backlog, told = filled(5, 3, 1, 1, policy=QUEUE, size=3)
    put(backlog, told, "late", 1)
    assert ended(told["late"]).error_code is ErrorCode.QUEUE_FULL
    put(backlog, told, "new", 3)
    assert ends(told) == {"late": FinishReason.ERROR, "3": FinishReason.PREEMPTED}
    assert (ended(told["3"]).error_code, ended(told["3"]).text) == (ErrorCode.PREEMPTED, "")
    assert backlog.next_cancel() is None
    order = []
    backlog.finish(finish("0"))
    while frame := backlog.next():
        order.append(sent_id(frame))
        backlog.finish(finish(order[-1]))
    assert order == ["1", "new", "2"]


def test_a_goal_that_is_being_canceled_keeps_its_reason():
    for policy in (QUEUE, PREEMPT):
        backlog, told = filled(0, policy=policy)
        backlog.cancel("0", *CANCEL)
        put(backlog, told, "new", 9)
        assert backlog.next_cancel().finish_reason is FinishReason.CANCELED
        assert backlog.next_cancel() is None
        assert backlog.next() is None
        backlog.lost(ErrorCode.ENGINE_LOST, "gone")
        backlog.deliver()
        assert ends(told) == {"0": FinishReason.CANCELED}
        backlog.set_ready(True)
        assert sent_id(backlog.next()) == "new"


def test_a_cancel_after_the_preemption_changes_nothing():
    backlog, told = filled(0, policy=PREEMPT)
    put(backlog, told, "new")
    assert backlog.cancel("0", *CANCEL)
    assert backlog.next_cancel().finish_reason is FinishReason.PREEMPTED
    backlog.abandon()
    backlog.deliver()
    last = ended(told["0"])
    assert (last.finish_reason, last.error_code, last.text) == (*PREEMPTED, "Hel")
    assert last.seed == 9
    assert last.stats.completion_tokens == 1
    assert backlog.next() is None  # the engine has yet to end it
    backlog.finish(finish("0"))
    assert sent_id(backlog.next()) == "new"


def test_while_the_engine_comes_up_the_newest_of_each_priority_is_left_to_preempt():
    backlog, told = filled(1, 0, 0, 1, policy=PREEMPT, ready=False)
    assert ends(told) == dict.fromkeys("012", FinishReason.PREEMPTED)
    put(backlog, told, "low", 0)
    backlog.set_ready(True)
    assert sent_id(backlog.next()) == "3"


def test_a_goal_that_a_lost_engine_had_not_begun_gives_way_too():
    backlog, told = filled(0, policy=PREEMPT, ready=False)
    backlog.set_ready(True)
    backlog.next()
    backlog.lost(ErrorCode.ENGINE_LOST, "gone")  # it is sent again
    backlog.deliver()
    assert ends(told) == {}
    put(backlog, told, "new")
    assert ends(told) == {"0": FinishReason.PREEMPTED}
    backlog.set_ready(True)
    assert sent_id(backlog.next()) == "new"


def test_a_goal_that_was_sent_and_not_begun_is_preempted_as_well():
    backlog, told = filled(0, policy=QUEUE, ready=False)
    backlog.set_ready(True)
    backlog.next()
    put(backlog, told, "new", 1)
    backlog.lost(ErrorCode.ENGINE_LOST, "gone")
    backlog.deliver()
    assert ends(told) == {"0": FinishReason.PREEMPTED}


@pytest.mark.parametrize("rising", [False, True], ids=["equal", "rising"])
def test_a_storm_of_preempting_goals_leaves_the_last_one(rising):
    """None of the many waits, and the engine is told to end each goal once."""
    backlog, told = filled(0, policy=PREEMPT, size=0)
    cancels = []
    for number in range(1, 101):
        put(backlog, told, f"{number}", number if rising else 0)
        assert backlog.depth == 1
        cancel = backlog.next_cancel()
        if cancel is not None:
            cancels.append(cancel.request_id)
        if number % 7 == 0:
            backlog.finish(finish(str(cancels[-1])))
            assert sent_id(backlog.next()) == str(number)
    assert backlog.next_cancel() is None
    running = backlog.running_id
    backlog.finish(finish(str(running)))
    assert sent_id(backlog.next()) == "100"
    backlog.finish(finish("100"))
    backlog.deliver()
    assert len(cancels) == len(set(cancels)) == 15
    reasons = ends(told)
    assert len(reasons) == 101
    assert backlog.depth == 0


def test_a_storm_of_rising_priorities_is_served_from_the_top():
    backlog, told = filled(0, policy=QUEUE, size=3)
    for priority in range(1, 10):
        put(backlog, told, f"p{priority}", priority)
    served = []
    backlog.finish(finish("0"))
    while frame := backlog.next():
        served.append(sent_id(frame))
        backlog.finish(finish(served[-1]))
    assert served == ["p9", "p8", "p7", "p6"]  # one place became free, three wait
    assert [name for name, reason in ends(told).items() if reason is FinishReason.PREEMPTED] == [
        f"p{priority}" for priority in range(1, 6)
    ]


class Model:
    """What the state machine knows of one request."""

    def __init__(self, number: int, priority: int) -> None:
        self.number = number
        self.priority = priority
        self.events: list[Event] = []

    @property
    def finish(self) -> Finish | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finish) else None


class Schedules(RuleBasedStateMachine):
    """Goals of all priorities under changing policies, against an engine that ends and dies."""

    @initialize(policy=st.sampled_from(BusyPolicy), size=st.integers(0, 3), ready=st.booleans())
    def begin(self, policy: BusyPolicy, size: int, ready: bool) -> None:
        self.backlog = Backlog(size, lambda: None, policy)
        self.backlog.open()
        self.backlog.set_ready(ready)
        self.ready, self.policy, self.size = ready, policy, size
        self.requests: list[Model] = []
        self.holds: Model | None = None
        self.ending = False
        self.resent = 0

    def living(self) -> list[Model]:
        self.backlog.deliver()
        return [each for each in self.requests if each.finish is None]

    def waiting(self) -> list[Model]:
        held = self.holds
        return [each for each in self.living() if each is not held]

    @rule(priority=st.integers(0, 3))
    def submit(self, priority: int) -> None:
        before, held, was_ending = self.waiting(), self.holds, self.ending
        new = Model(len(self.requests), priority)
        self.requests.append(new)
        self.backlog.submit(Request(id=str(new.number), priority=priority), new.events.append)
        self.backlog.deliver()
        cancel = self.backlog.next_cancel()
        if cancel is not None:
            assert held is not None
            assert not was_ending
            assert (cancel.request_id, cancel.finish_reason, cancel.error_code) == (
                str(held.number),
                *PREEMPTED,
            )
            self.ending = True
        displaced = [each for each in before if each.finish is not None]
        if cancel is not None and held is not None:
            displaced.append(held)
        if new.finish is not None:
            assert new.finish.error_code is ErrorCode.QUEUE_FULL
            assert not displaced
            return
        highest = priority if self.policy is PREEMPT else priority - 1
        assert all(each.priority <= highest for each in displaced)
        for each in displaced:
            if each is not held:
                assert each.finish is not None
                assert each.finish.finish_reason is FinishReason.PREEMPTED
        assert not (displaced and self.policy is REFUSE)
        if self.policy is PREEMPT:
            assert all(each.priority > priority for each in self.waiting() if each is not new)
        if self.policy is QUEUE:
            assert len([each for each in displaced if each is not held]) <= 1

    @rule(policy=st.sampled_from(BusyPolicy), size=st.integers(0, 3))
    def configure(self, policy: BusyPolicy, size: int) -> None:
        self.policy, self.size = policy, size
        self.backlog.set_policy(policy)
        self.backlog.resize(size)

    @rule()
    def dispatch(self) -> None:
        waiting = self.waiting()
        frame = self.backlog.next()
        if frame is None:
            assert not self.ready or self.holds is not None or not waiting
            return
        assert self.ready
        assert self.holds is None
        self.holds = self.requests[int(sent_id(frame))]
        self.ending = self.begun = False
        assert self.holds is min(waiting, key=lambda each: (-each.priority, each.number))

    @precondition(lambda self: self.holds and not self.begun)
    @rule()
    def started(self) -> None:
        self.begun = True
        self.backlog.started(Started(request_id=str(self.holds.number), prompt_tokens=1))

    @precondition(lambda self: self.holds and self.begun)
    @rule()
    def answer(self) -> None:
        self.backlog.piece(piece(str(self.holds.number), "x", 1))

    @precondition(lambda self: self.holds)
    @rule()
    def end(self) -> None:
        self.backlog.finish(finish(str(self.holds.number)))
        self.holds = None

    @precondition(lambda self: self.holds and not self.ending)
    @rule()
    def cancel(self) -> None:
        assert self.backlog.cancel(str(self.holds.number), *CANCEL)
        assert self.backlog.next_cancel().finish_reason is FinishReason.CANCELED
        self.ending = True

    @precondition(lambda self: self.holds and self.ending)
    @rule()
    def abandon(self) -> None:
        self.backlog.abandon()

    @rule()
    def lose(self) -> None:
        self.backlog.lost(ErrorCode.ENGINE_LOST, "gone")
        self.backlog.deliver()
        if self.holds is not None and self.holds.finish is None:
            assert not self.begun
            assert not self.ending
            self.resent += 1
        self.ready, self.holds = False, None

    @rule()
    def load(self) -> None:
        self.ready = True
        self.backlog.set_ready(True)

    @invariant()
    def nobody_waits_for_a_lower_priority(self) -> None:
        held = self.holds
        if held is not None and not self.ending:
            assert all(each.priority <= held.priority for each in self.waiting())

    @invariant()
    def one_finish_and_it_is_last(self) -> None:
        for each in self.requests:
            finishes = [i for i, event in enumerate(each.events) if isinstance(event, Finish)]
            assert finishes in ([], [len(each.events) - 1])
            kinds = [type(event) for event in each.events]
            if Started in kinds:
                assert Queued not in kinds[kinds.index(Started) :]

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert self.backlog.depth <= 3 + 1 + min(self.resent, 1)

    def teardown(self) -> None:
        if not hasattr(self, "backlog"):
            return
        self.backlog.close(ErrorCode.NOT_ACTIVE, "stopped")
        self.backlog.lost(ErrorCode.NOT_ACTIVE, "stopped")
        self.backlog.deliver()
        assert all(each.finish is not None for each in self.requests)
        self.one_finish_and_it_is_last()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


def test_threads_that_preempt_each_other_while_the_engine_ends_and_dies():
    changed = threading.Event()
    backlog = Backlog(2, changed.set, PREEMPT)
    backlog.open()
    backlog.set_ready(True)
    told: dict[str, list[Event]] = {}

    def client(number: int) -> None:
        chance = random.Random(number)
        for i in range(300):
            name = f"{number}-{i}"
            told[name] = []
            backlog.submit(Request(id=name, priority=chance.randrange(4)), told[name].append)
            if chance.random() < 0.1:
                backlog.set_policy(chance.choice(list(BusyPolicy)))

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in clients:
        thread.start()
    chance = random.Random(99)
    while any(thread.is_alive() for thread in clients) or backlog.depth:
        changed.wait(0.01)
        changed.clear()
        frame = backlog.next()
        if frame is not None:
            name = sent_id(frame)
            backlog.piece(piece(name, "x", 1))
            backlog.next_cancel()
            if chance.random() < 0.2:
                backlog.lost(ErrorCode.ENGINE_LOST, "gone")
                backlog.set_ready(True)
            else:
                backlog.finish(finish(name))
        backlog.announce()
        backlog.deliver()
    backlog.deliver()
    assert len(told) == 1200
    for events in told.values():
        assert [isinstance(event, Finish) for event in events].count(True) == 1
        assert isinstance(events[-1], Finish)


def test_deadlines_count_from_acceptance_wherever_the_goal_is():
    """Queued, while the engine comes up, and sent: the same moment ends it."""
    for ready in (True, False):
        backlog = open_backlog(ready=ready)
        told: list[Event] = []
        now = time.monotonic()
        backlog.submit(Request(id="a", deadline_s=now + 5.0, submitted_s=now), told.append)
        backlog.expire(now + 4.9)
        backlog.deliver()
        assert told == []
        backlog.expire(now + 5.1)
        backlog.deliver()
        assert ended(told).finish_reason is FinishReason.TIMEOUT
        assert ("coming up" in ended(told).error_msg) is not ready
    backlog = open_backlog()
    backlog.submit(Request(id="a", deadline_s=50.0), lambda event: None)
    backlog.next()
    assert backlog.overdue(49.9) is None
    assert backlog.overdue(50.0) == "a"


# The real engine.

LONG_S = 1000.0
"""A pause that no test waits for."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    target, drafter = endless_pair(tmp_path_factory.mktemp("pair"))
    return EngineConfig(
        model=str(target),
        drafter=str(drafter),
        reproducible=False,
        threads=1,
        prefill_chunk=8,
        max_context=4096,
    )


@pytest.fixture(scope="module")
def served(config: EngineConfig) -> Iterator[EngineHost]:
    with running(config) as host:
        yield host


def pause(host: EngineHost, pause_s: float) -> None:
    host.set_control(draft_cap=MAX_DRAFT, pause_s=pause_s, halt=False, reason="")


@pytest.fixture
def host(served: EngineHost) -> Iterator[EngineHost]:
    """The shared host, undisturbed by the test before."""
    served.set_live(stale_after_s=1e9, queue_size=4, busy_policy=QUEUE)
    pause(served, 0.0)
    yield served
    served.set_live(busy_policy=QUEUE)
    pause(served, 0.0)
    served.cancel_all(FinishReason.CANCELED, ErrorCode.CANCELED, "test is over")
    assert submit(served, "end", tokens=1).finish().finish_reason is FinishReason.LENGTH


def rest(host: EngineHost) -> None:
    """Return once the engine rests between two rounds, and all that it said before was told."""
    pause(host, LONG_S)
    for _ in range(2):
        assert host.count_tokens((), "x", PATIENCE_S).result(PATIENCE_S).success


@pytest.mark.parametrize(("policy", "priority"), [(QUEUE, 1), (PREEMPT, 0)])
def test_a_decoding_goal_ends_within_a_round_with_its_text(host, policy, priority):
    """The engine rests between two rounds: none begins once the new goal is there."""
    host.set_live(busy_policy=policy)
    first = submit(host, "first")
    first.piece(3)
    rest(host)
    written = sum(len(each.token_ids) for each in first.pieces())
    new = submit(host, "new", tokens=3, priority=priority)
    end = first.finish()
    assert (end.finish_reason, end.error_code) == PREEMPTED
    assert "took the place of this one" in end.error_msg
    assert end.text == "".join(each.text for each in first.pieces())
    assert end.stats.completion_tokens == len(end.text) == written > 0
    first.assert_well_formed()
    pause(host, 0.0)
    assert new.finish().finish_reason is FinishReason.LENGTH


def test_a_goal_in_prefill_ends_within_a_chunk(host):
    host.set_live(busy_policy=PREEMPT)
    pause(host, LONG_S)
    first = submit(host, "first", prompt="Go " * 500)
    first.started()
    new = submit(host, "new", tokens=3)
    end = first.finish()
    assert (end.finish_reason, end.error_code, end.text) == (*PREEMPTED, "")
    assert end.stats.completion_tokens == 0
    pause(host, 0.0)
    assert new.finish().finish_reason is FinishReason.LENGTH


def test_the_new_goal_begins_after_the_old_one_ended(host):
    host.set_live(busy_policy=PREEMPT)
    order: list[str] = []
    lock = threading.Lock()

    def sink(event: Event) -> None:
        with lock:
            order.append(f"{event.request_id} {type(event).__name__}")

    first = Told()
    host.submit(request("first"), lambda event: (sink(event), first(event)))
    first.piece()
    second = Told()
    host.submit(request("second", tokens=3), lambda event: (sink(event), second(event)))
    second.finish()
    assert order.index("first Finish") < order.index("second Started")


def test_refuse_with_a_real_engine(host):
    host.set_live(busy_policy=REFUSE)
    first = submit(host, "first")
    first.piece()
    late = submit(host, "late", priority=9).finish()
    assert (late.finish_reason, late.error_code) == (FinishReason.ERROR, ErrorCode.QUEUE_FULL)
    assert "busy_policy is refuse" in late.error_msg
    host.cancel("first")
    assert submit(host, "next", tokens=3).finish().finish_reason is FinishReason.LENGTH
    assert first.finish().finish_reason is FinishReason.CANCELED


@pytest.mark.parametrize("rising", [False, True], ids=["equal", "rising"])
def test_a_storm_with_a_real_engine(host, rising):
    host.set_live(busy_policy=PREEMPT)
    last = 39
    told = [
        submit(host, f"s{n}", tokens=5 if n == last else 3000, priority=n if rising else 0)
        for n in range(last + 1)
    ]
    ends = [each.finish() for each in told]
    assert ends[-1].finish_reason is FinishReason.LENGTH
    assert {end.finish_reason for end in ends[:-1]} == {FinishReason.PREEMPTED}
    for each, end in zip(told, ends, strict=True):
        each.assert_well_formed()
        sent = sum(len(event.token_ids) for event in each.all if isinstance(event, Piece))
        assert sent == end.stats.completion_tokens


def test_a_preempted_prompt_gives_the_same_answer_when_it_is_sent_again(host):
    host.set_live(busy_policy=PREEMPT)
    whole = submit(host, "whole", tokens=60).finish()
    first = submit(host, "first", tokens=60)
    first.piece()
    pause(host, LONG_S)
    other = submit(host, "other", prompt="Something else", tokens=5)
    part = first.finish()
    pause(host, 0.0)
    other.finish()
    again = submit(host, "again", tokens=60).finish()
    assert whole.text.startswith(part.text)
    assert again.text == whole.text


@pytest.mark.parametrize("where", ["queued", "prefill", "decoding"])
def test_a_timeout_counts_from_acceptance(host, where):
    """Also where the goal waits, or its prompt is read: the engine rests, and time passes."""
    pause(host, LONG_S)
    if where == "queued":
        submit(host, "before").piece()
    submitted_s = time.monotonic()
    prompt = "Go " * 500 if where == "prefill" else "Go"
    fields = {"deadline_s": submitted_s + 0.5, "submitted_s": submitted_s}
    told = submit(host, "late", prompt=prompt, **fields)
    end = told.finish()
    assert (end.finish_reason, end.error_code) == (FinishReason.TIMEOUT, ErrorCode.TIMEOUT)
    assert end.stats.total_s >= 0.5
    assert bool(end.text) == (where == "decoding")
    assert ("queue" in end.error_msg) == (where == "queued")


@contextlib.contextmanager
def coming_up(config: EngineConfig, **options: Any) -> Iterator[EngineHost]:
    """A host whose engine has begun to load."""
    states = Told()
    host = EngineHost(config, on_state=states, **options)
    loading = threading.Thread(target=host.start)
    loading.start()
    try:
        states.until(lambda told: told[0] is HostState.LOADING)
        yield host
    finally:
        loading.join()
        host.stop()


def test_a_timeout_passes_while_the_engine_loads(config):
    with coming_up(config) as host:
        late = submit(host, "late", deadline_s=time.monotonic() + 0.05)
        end = late.finish()
        assert host.state is HostState.LOADING
    assert (end.finish_reason, end.error_code) == (FinishReason.TIMEOUT, ErrorCode.TIMEOUT)
    assert "while the engine was coming up" in end.error_msg
    late.queued(loading=True)


def test_preempting_while_the_engine_loads(config):
    with coming_up(config, busy_policy=PREEMPT) as host:
        told = [submit(host, f"l{number}", tokens=3) for number in range(10)]
        assert {each.finish().finish_reason for each in told[:-1]} == {FinishReason.PREEMPTED}
        assert told[-1].finish().finish_reason is FinishReason.LENGTH


def test_refusing_while_the_engine_loads(config):
    with coming_up(config, busy_policy=REFUSE) as host:
        end = submit(host, "early").finish()
        assert end.error_code is ErrorCode.QUEUE_FULL
        assert "the engine is coming up and busy_policy is refuse" in end.error_msg
