# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Each request gets exactly one Finish, as its last event, under any interleaving."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gemma_mtp_ros.api import (
    Cancel,
    ErrorCode,
    Finish,
    FinishReason,
    Piece,
    Queued,
    Request,
    Started,
    to_engine,
)
from gemma_mtp_ros.backlog import Backlog, Event, UnexpectedAnswer
from gemma_mtp_ros.framing import FrameReader

CANCEL = (FinishReason.CANCELED, ErrorCode.CANCELED, "canceled")


def open_backlog(queue_size: int = 4, ready: bool = True) -> Backlog:
    backlog = Backlog(queue_size, lambda: None)
    backlog.open()
    backlog.set_ready(ready)
    return backlog


def piece(request_id: str, text: str, tokens: int) -> Piece:
    return Piece(
        request_id=request_id,
        text=text,
        token_ids=(1,),
        completion_tokens=tokens,
        tokens_per_second=10.0,
        draft_length=0,
    )


def finish(request_id: str) -> Finish:
    return Finish(request_id=request_id, finish_reason=FinishReason.STOP)


def sent_id(frame: bytes | None) -> str:
    assert frame is not None
    (body,) = FrameReader().feed(frame)
    return to_engine.validate_json(body).request.id  # type: ignore[union-attr]


def ended(events: list[Event]) -> Finish:
    last = events[-1]
    assert isinstance(last, Finish)
    return last


def test_requests_are_served_in_order_and_higher_priority_first() -> None:
    backlog = open_backlog(queue_size=9)
    for name, priority in [("a", 0), ("b", 1), ("c", 0), ("d", 9), ("e", 1)]:
        backlog.submit(Request(id=name, priority=priority), lambda event: None)
    order = []
    while frame := backlog.next():
        order.append(sent_id(frame))
        backlog.finish(finish(order[-1]))
    assert order == ["d", "b", "e", "a", "c"]


def test_the_running_one_does_not_count_as_waiting() -> None:
    backlog = open_backlog(queue_size=2)
    told: dict[str, list[Event]] = {name: [] for name in "abcd"}
    for name in "abcd":
        backlog.submit(Request(id=name), told[name].append)
    assert ended(told["d"]).error_code is ErrorCode.QUEUE_FULL
    assert "queue_size is 2" in ended(told["d"]).error_msg
    assert backlog.depth == 3
    backlog.next()
    assert (backlog.running_id, backlog.depth) == ("a", 2)


def test_while_loading_only_the_queue_itself_is_there() -> None:
    backlog = open_backlog(queue_size=1, ready=False)
    told: list[Event] = []
    backlog.submit(Request(id="a"), lambda event: None)
    backlog.submit(Request(id="b"), told.append)
    assert ended(told).error_code is ErrorCode.QUEUE_FULL
    assert backlog.next() is None


def test_without_a_queue_one_request_runs() -> None:
    backlog = open_backlog(queue_size=0)
    told: list[Event] = []
    backlog.submit(Request(id="a"), lambda event: None)
    backlog.submit(Request(id="b"), told.append)
    assert ended(told).error_code is ErrorCode.QUEUE_FULL
    assert sent_id(backlog.next()) == "a"


def test_positions_are_told_once_and_again_when_they_change() -> None:
    backlog = open_backlog(ready=False)
    told: dict[str, list[Event]] = {"a": [], "b": []}
    for name in "ab":
        backlog.submit(Request(id=name), told[name].append)

    def announced(name: str) -> list[tuple[int, bool]]:
        backlog.announce()
        backlog.deliver()
        return [(e.position, e.loading) for e in told[name] if isinstance(e, Queued)]

    assert announced("b") == announced("b") == [(1, True)]
    backlog.set_ready(True)
    backlog.next()
    assert announced("a") == [(0, True)]
    assert announced("b") == [(1, True), (1, False)]
    backlog.started(Started(request_id="a", prompt_tokens=1))
    backlog.lost(ErrorCode.ENGINE_LOST, "gone")
    assert announced("b") == [(1, True), (1, False), (0, True)]


def test_a_lost_engine_ends_the_running_request_with_what_it_said() -> None:
    backlog = open_backlog()
    told: list[Event] = []
    backlog.submit(Request(id="a"), told.append)
    backlog.submit(Request(id="b"), lambda event: None)
    backlog.next()
    backlog.started(Started(request_id="a", prompt_tokens=5, cached_tokens=2, seed=42))
    backlog.piece(piece("a", "Hel", 1))
    backlog.piece(piece("a", "lo", 4))
    backlog.lost(ErrorCode.ENGINE_LOST, "gone")
    backlog.deliver()
    last = ended(told)
    assert (last.finish_reason, last.error_code) == (FinishReason.ERROR, ErrorCode.ENGINE_LOST)
    assert (last.text, last.error_msg, last.seed) == ("Hello", "gone", 42)
    stats = last.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.completion_tokens) == (5, 2, 4)
    assert 0 < stats.ttft_s <= stats.total_s
    assert backlog.next() is None
    backlog.set_ready(True)
    assert sent_id(backlog.next()) == "b"


def test_a_request_that_a_lost_engine_had_not_begun_is_sent_once_more() -> None:
    backlog = open_backlog()
    told: list[Event] = []
    backlog.submit(Request(id="a"), told.append)
    backlog.submit(Request(id="b"), lambda event: None)
    for _ in range(2):
        assert sent_id(backlog.next()) == "a"
        backlog.lost(ErrorCode.ENGINE_LOST, "gone")
        backlog.set_ready(True)
    assert sent_id(backlog.next()) == "b"
    backlog.deliver()
    assert ended(told).error_code is ErrorCode.ENGINE_LOST


def test_a_request_told_to_end_ends_so_when_the_engine_is_lost() -> None:
    backlog = open_backlog()
    told: list[Event] = []
    backlog.submit(Request(id="a"), told.append)
    backlog.next()
    backlog.cancel("a", *CANCEL)
    backlog.lost(ErrorCode.ENGINE_LOST, "gone")
    backlog.deliver()
    assert ended(told).finish_reason is FinishReason.CANCELED


def test_an_abandoned_request_ends_with_its_reason_and_the_engine_stays_busy() -> None:
    backlog = open_backlog()
    told: list[Event] = []
    backlog.submit(Request(id="a"), told.append)
    backlog.submit(Request(id="b"), lambda event: None)
    backlog.next()
    backlog.started(Started(request_id="a", prompt_tokens=5))
    backlog.piece(piece("a", "Hel", 1))
    backlog.cancel("a", *CANCEL)
    backlog.abandon()
    backlog.deliver()
    assert (ended(told).finish_reason, ended(told).text) == (FinishReason.CANCELED, "Hel")
    assert backlog.next() is None
    assert backlog.running_id == backlog.overdue(0.0) == "a"
    backlog.piece(piece("a", "lo", 2))
    backlog.finish(finish("a"))
    backlog.deliver()
    assert ended(told).text == "Hel"
    assert sent_id(backlog.next()) == "b"


def test_a_deadline_in_the_queue() -> None:
    backlog = open_backlog(ready=False)
    told: list[Event] = []
    now = time.monotonic()
    backlog.submit(Request(id="a", deadline_s=now + 5.0, submitted_s=now), told.append)
    backlog.submit(Request(id="b"), lambda event: None)
    assert backlog.next_deadline() == now + 5.0
    backlog.expire(now + 4.9)
    backlog.deliver()
    assert told == []
    backlog.expire(now + 5.0)
    backlog.deliver()
    assert (ended(told).finish_reason, ended(told).error_code) == (
        FinishReason.TIMEOUT,
        ErrorCode.TIMEOUT,
    )
    assert backlog.next_deadline() == float("inf")
    assert backlog.depth == 1


def test_the_first_reason_to_end_stands_and_is_sent_once() -> None:
    backlog = open_backlog()
    backlog.submit(Request(id="a"), lambda event: None)
    backlog.next()
    assert backlog.overdue(0.0) is None
    assert backlog.cancel("a", *CANCEL)
    assert backlog.cancel("a", FinishReason.PREEMPTED, ErrorCode.PREEMPTED, "later")
    assert backlog.overdue(0.0) == "a"
    assert backlog.next_cancel() == Cancel(request_id="a", error_msg="canceled")
    assert backlog.next_cancel() is None
    backlog.finish(finish("a"))
    assert not backlog.cancel("a", *CANCEL)
    assert backlog.overdue(0.0) is None


def test_a_running_request_past_its_deadline_is_overdue() -> None:
    backlog = open_backlog()
    backlog.submit(Request(id="a", deadline_s=50.0), lambda event: None)
    backlog.next()
    assert backlog.overdue(49.9) is None
    assert backlog.overdue(50.0) == "a"


@pytest.mark.parametrize("running", [None, "b"])
def test_an_answer_for_a_request_that_the_engine_does_not_hold(running: str | None) -> None:
    backlog = open_backlog()
    if running:
        backlog.submit(Request(id=running), lambda event: None)
        backlog.next()
    for tell in (
        lambda: backlog.finish(finish("a")),
        lambda: backlog.piece(piece("a", "", 1)),
        lambda: backlog.started(Started(request_id="a", prompt_tokens=1)),
    ):
        with pytest.raises(UnexpectedAnswer, match="'a'"):
            tell()


def test_refusals_say_what_to_do() -> None:
    told: list[Event] = []
    backlog = Backlog(4, lambda: None)
    backlog.submit(Request(id="a"), told.append)
    assert ended(told).error_code is ErrorCode.NOT_ACTIVE
    backlog.open()
    backlog.submit(Request(id="a"), lambda event: None)
    backlog.submit(Request(id="a"), told.append)
    assert ended(told).error_code is ErrorCode.INVALID_GOAL
    backlog.submit(Request(id="s", raw_prompt="\ud800"), told.append)
    assert ended(told).error_code is ErrorCode.INVALID_GOAL
    backlog.close(ErrorCode.BACKEND_UNAVAILABLE, "broken")
    backlog.submit(Request(id="c"), told.append)
    assert ended(told).error_code is ErrorCode.BACKEND_UNAVAILABLE
    assert all(isinstance(event, Finish) and event.error_msg for event in told)


def test_closing_ends_those_that_wait_and_asks_the_running_one_to_end() -> None:
    backlog = open_backlog()
    told: dict[str, list[Event]] = {"a": [], "b": []}
    for name in "ab":
        backlog.submit(Request(id=name), told[name].append)
    backlog.next()
    backlog.close(ErrorCode.NOT_ACTIVE, "stopped")
    backlog.deliver()
    assert told["a"] == []
    assert ended(told["b"]).error_code is ErrorCode.NOT_ACTIVE
    cancel = backlog.next_cancel()
    assert cancel is not None
    assert (cancel.finish_reason, cancel.error_code) == (FinishReason.ERROR, ErrorCode.NOT_ACTIVE)


def test_a_sink_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    backlog = open_backlog()
    told: list[Event] = []

    def broken(event: Event) -> None:
        raise ValueError("mine")

    backlog.submit(Request(id="a"), broken)
    backlog.submit(Request(id="b"), told.append)
    backlog.cancel_all(*CANCEL)
    backlog.deliver()
    assert ended(told).error_code is ErrorCode.CANCELED
    assert "mine" in caplog.text


class Interleavings(RuleBasedStateMachine):
    """Client, engine, clock and supervisor do what they may, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = open_backlog(queue_size=3)
        self.ready = True
        self.now_s = 0.0
        self.told: dict[str, list[Event]] = {}
        self.holds: str | None = None

    @rule(priority=st.integers(0, 2), patience=st.none() | st.integers(0, 5))
    def submit(self, priority: int, patience: int | None) -> None:
        name = f"r{len(self.told)}"
        events = self.told[name] = []
        deadline = None if patience is None else self.now_s + patience
        self.backlog.submit(Request(id=name, priority=priority, deadline_s=deadline), events.append)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = f"r{data.draw(st.integers(0, max(0, len(self.told) - 1)))}"
        self.backlog.deliver()
        over = name not in self.told or any(isinstance(e, Finish) for e in self.told[name])
        assert self.backlog.cancel(name, *CANCEL) is not over

    @rule()
    def cancel_all(self) -> None:
        self.backlog.cancel_all(*CANCEL)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds
        self.backlog.expire(self.now_s)

    @rule()
    def dispatch(self) -> None:
        frame = self.backlog.next()
        if frame is not None:
            assert self.ready
            assert self.holds is None
            self.holds = sent_id(frame)
            self.begun = False

    @precondition(lambda self: self.holds and not self.begun)
    @rule()
    def begin(self) -> None:
        assert self.holds is not None
        self.begun = True
        self.backlog.started(Started(request_id=self.holds, prompt_tokens=1))

    @rule()
    def abandon(self) -> None:
        if self.backlog.overdue(self.now_s):
            self.backlog.abandon()

    @precondition(lambda self: self.holds and self.begun)
    @rule()
    def answer(self) -> None:
        assert self.holds is not None
        self.backlog.piece(piece(self.holds, "x", 1))

    @precondition(lambda self: self.holds)
    @rule()
    def end(self) -> None:
        assert self.holds is not None
        self.backlog.finish(finish(self.holds))
        self.holds = None

    @rule()
    def lose(self) -> None:
        self.backlog.lost(ErrorCode.ENGINE_LOST, "gone")
        self.ready, self.holds = False, None

    @rule()
    def load(self) -> None:
        self.ready = True
        self.backlog.set_ready(True)

    @rule()
    def tell(self) -> None:
        self.backlog.announce()
        self.backlog.deliver()

    @rule(again=st.booleans())
    def close(self, again: bool) -> None:
        self.backlog.close(ErrorCode.NOT_ACTIVE, "stopped")
        if again:
            self.backlog.open()

    @invariant()
    def one_finish_and_it_is_last(self) -> None:
        for events in self.told.values():
            finishes = [i for i, event in enumerate(events) if isinstance(event, Finish)]
            assert finishes in ([], [len(events) - 1])
            kinds = [type(event) for event in events]
            if Started in kinds:
                assert Queued not in kinds[kinds.index(Started) :]

    @invariant()
    def the_queue_is_bounded(self) -> None:
        assert self.backlog.depth <= 4 + 1  # one that a lost engine had not begun

    def teardown(self) -> None:
        self.backlog.close(ErrorCode.NOT_ACTIVE, "stopped")
        self.backlog.lost(ErrorCode.NOT_ACTIVE, "stopped")
        self.backlog.deliver()
        assert self.backlog.running_id is None
        assert all(isinstance(events[-1], Finish) for events in self.told.values())
        self.one_finish_and_it_is_last()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_threads_that_submit_and_cancel_against_an_engine_that_ends_and_dies() -> None:
    changed = threading.Event()
    backlog = Backlog(3, changed.set)
    backlog.open()
    backlog.set_ready(True)
    told: dict[str, list[Event]] = {}

    def client(number: int) -> None:
        chance = random.Random(number)
        for i in range(300):
            name = f"{number}-{i}"
            told[name] = []
            backlog.submit(Request(id=name), told[name].append)
            if chance.random() < 0.5:
                backlog.cancel(name, *CANCEL)
            if chance.random() < 0.05:
                backlog.cancel_all(*CANCEL)

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
