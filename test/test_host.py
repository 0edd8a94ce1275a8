# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Host and engine together: real processes, a real (tiny, random) pair, real signals."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_tools import (
    LETTERS,
    PATIENCE_S,
    Life,
    Told,
    children,
    descriptors,
    endless_pair,
    request,
    running,
    shared_memory,
    submit,
)

from gemma_mtp_ros.api import (
    MAX_DRAFT,
    EngineConfig,
    ErrorCode,
    Finish,
    FinishReason,
    GemmaMtpError,
    Message,
    Piece,
    Request,
    SamplingParams,
    Started,
)
from gemma_mtp_ros.host import EngineHost, HostState

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
    served.set_live(draft_max_length=MAX_DRAFT, stale_after_s=1e9, stale_draft_cap=0, queue_size=4)
    served.set_control(draft_cap=MAX_DRAFT, pause_s=0.0, halt=False, reason="")
    yield served
    served.cancel_all(FinishReason.CANCELED, ErrorCode.CANCELED, "test is over")
    pause(served, 0.0)
    assert submit(served, "end", tokens=1).finish().finish_reason is FinishReason.LENGTH


def test_an_answer(host: EngineHost) -> None:
    told = submit(host, "a", tokens=40)
    finish = told.finish()
    assert finish.finish_reason is FinishReason.LENGTH
    assert (finish.error_code, finish.error_msg, finish.seed) == (ErrorCode.NONE, "", 7)
    assert len(finish.text) == 40
    assert set(finish.text) <= set(LETTERS)
    stats = finish.stats
    assert stats.completion_tokens == 40
    assert told.started().prompt_tokens == stats.prompt_tokens > 0
    assert 0 < stats.queue_s < stats.ttft_s < stats.total_s
    told.assert_well_formed()
    again = submit(host, "a", tokens=40)
    assert again.finish().text == finish.text


def test_what_is_known_of_the_engine(host: EngineHost, config: EngineConfig) -> None:
    info = host.info
    assert info is not None
    assert info.model
    assert info.context == config.max_context
    assert host.pid in children()
    assert (host.memory_mib or 0.0) > 50.0
    assert (host.state, host.restarts, host.running_id, host.queue_depth) == (
        HostState.READY,
        0,
        None,
        0,
    )


def test_goals_are_served_in_order(host: EngineHost) -> None:
    order: list[str] = []
    told = []
    for name in "abcde":
        sink = Told()
        told.append(sink)

        def both(event: object, sink: Told = sink) -> None:
            if isinstance(event, Finish):
                order.append(event.request_id)
            sink(event)

        host.submit(request(name, tokens=5), both)
    for each in told:
        assert each.finish().finish_reason is FinishReason.LENGTH
        each.assert_well_formed()
    assert order == list("abcde")


def test_a_full_queue(host: EngineHost) -> None:
    host.set_live(queue_size=2)
    first = submit(host, "a")
    first.piece()
    waiting = [submit(host, name) for name in "bc"]
    refused = submit(host, "d").finish()
    assert (refused.finish_reason, refused.error_code) == (
        FinishReason.ERROR,
        ErrorCode.QUEUE_FULL,
    )
    assert (host.running_id, host.queue_depth) == ("a", 2)
    assert [each.queued(loading=False).position for each in waiting] == [1, 2]


def test_cancel_while_queued(host: EngineHost) -> None:
    submit(host, "a").piece()
    told = submit(host, "b")
    told.queued(loading=False)
    assert host.cancel("b")
    assert not host.cancel("b")
    finish = told.finish()
    assert (finish.finish_reason, finish.error_code, finish.text) == (
        FinishReason.CANCELED,
        ErrorCode.CANCELED,
        "",
    )
    assert host.running_id == "a"


def test_cancel_in_prefill_ends_a_pause_too(host: EngineHost) -> None:
    pause(host, LONG_S)
    told = submit(host, "a", prompt="Go " * 500)  # the first chunk runs, then the pause
    assert told.started().prompt_tokens > 1000
    assert host.cancel("a")
    finish = told.finish()
    assert (finish.finish_reason, finish.error_code) == (
        FinishReason.CANCELED,
        ErrorCode.CANCELED,
    )
    assert (finish.text, finish.stats.completion_tokens) == ("", 0)


def test_cancel_in_decoding_gives_the_text_so_far(host: EngineHost) -> None:
    told = submit(host, "a")
    told.piece(3)
    pause(host, LONG_S)
    assert host.cancel("a", FinishReason.PREEMPTED, ErrorCode.PREEMPTED, "make room")
    finish = told.finish()
    assert (finish.finish_reason, finish.error_code, finish.error_msg) == (
        FinishReason.PREEMPTED,
        ErrorCode.PREEMPTED,
        "make room",
    )
    assert finish.text.startswith(told.piece().text)
    assert len(finish.text) == finish.stats.completion_tokens >= 3
    told.assert_well_formed()


def test_cancel_of_what_is_not_there(host: EngineHost) -> None:
    assert not host.cancel("nobody")
    submit(host, "a", tokens=1).finish()
    assert not host.cancel("a")


def test_cancel_all(host: EngineHost) -> None:
    told = [submit(host, name) for name in "abc"]
    told[0].piece()
    assert host.cancel_all(FinishReason.ERROR, ErrorCode.NOT_ACTIVE, "deactivated") == 3
    assert [each.finish().error_msg for each in told] == ["deactivated"] * 3
    assert told[0].finish().text


def test_a_deadline_ends_the_running_goal_and_the_one_behind_it(host: EngineHost) -> None:
    pause(host, 0.01)  # 3000 tokens would take half a minute
    deadline_s = time.monotonic() + 1.0
    told = [submit(host, name, deadline_s=deadline_s) for name in "ab"]
    first, second = (each.finish() for each in told)
    for finish in (first, second):
        assert (finish.finish_reason, finish.error_code) == (
            FinishReason.TIMEOUT,
            ErrorCode.TIMEOUT,
        )
    assert first.text
    assert "in the queue" in second.error_msg


def test_halt_ends_the_running_goal_with_the_reason(host: EngineHost) -> None:
    told = submit(host, "a")
    told.piece()
    host.set_control(draft_cap=0, pause_s=LONG_S, halt=True, reason="tj at 99 °C")
    finish = told.finish()
    assert (finish.finish_reason, finish.error_code, finish.error_msg) == (
        FinishReason.THERMAL,
        ErrorCode.THERMAL_LIMIT,
        "tj at 99 °C",
    )
    assert finish.text


def longest_draft(host: EngineHost) -> int:
    drafted = submit(host, "k", tokens=30).finish().stats.drafted_at
    return sum(1 for count in drafted if count)


def test_the_control_record_bounds_the_next_rounds(host: EngineHost) -> None:
    assert longest_draft(host) == MAX_DRAFT
    host.set_control(draft_cap=2, pause_s=0.0, halt=False, reason="HOT")
    assert longest_draft(host) == 2
    host.set_live(draft_max_length=1)
    assert longest_draft(host) == 1
    host.set_live(draft_max_length=5)
    host.set_control(draft_cap=MAX_DRAFT, pause_s=0.0, halt=False, reason="")
    assert longest_draft(host) == 5


def test_a_watchdog_that_fell_silent_is_not_trusted(host: EngineHost) -> None:
    host.set_live(stale_after_s=0.0)
    assert longest_draft(host) == 0
    host.set_live(stale_draft_cap=3)
    assert longest_draft(host) == 3


def test_a_cap_reaches_a_goal_that_runs(host: EngineHost) -> None:
    told = submit(host, "a")
    told.until(lambda event: getattr(event, "draft_length", 0) == MAX_DRAFT)
    host.set_control(draft_cap=1, pause_s=0.0, halt=False, reason="HOT")
    told.until(lambda event: getattr(event, "draft_length", 0) == 1)


def test_pauses_are_counted(host: EngineHost) -> None:
    pause(host, 0.05)
    assert submit(host, "a", tokens=5).finish().stats.paused_s > 0.05
    pause(host, 0.0)
    host.set_live(max_duty_cycle=0.5)
    assert submit(host, "b", tokens=20).finish().stats.paused_s > 0.0
    host.set_live(max_duty_cycle=1.0)


def test_a_prompt_larger_than_the_socket_takes(host: EngineHost) -> None:
    told = submit(host, "a", prompt="x" * 1_000_000)
    finish = told.finish()
    assert finish.error_code is ErrorCode.PROMPT_TOO_LONG
    assert submit(host, "b", tokens=3).finish().finish_reason is FinishReason.LENGTH


def test_tokens_are_counted_while_a_goal_runs(host: EngineHost, config: EngineConfig) -> None:
    pause(host, LONG_S)
    told = submit(host, "a")
    told.piece()
    counted = host.count_tokens((), "hello", PATIENCE_S).result(PATIENCE_S)
    assert (counted.success, counted.tokens, counted.max_context) == (True, 5, config.max_context)
    chat = host.count_tokens((Message(role="user", content="hello"),), None, PATIENCE_S)
    assert chat.result(PATIENCE_S).tokens > 5
    assert host.running_id == "a"


def test_a_prompt_that_cannot_be_counted_gives_a_sentence(host: EngineHost) -> None:
    counted = host.count_tokens((), None, PATIENCE_S).result(PATIENCE_S)
    assert not counted.success
    assert counted.message


def test_warming_goes_before_those_that_wait(host: EngineHost) -> None:
    warmed = host.warm("You are a robot.")
    told = submit(host, "a", tokens=3)
    assert warmed.result(PATIENCE_S).success
    assert told.finish().finish_reason is FinishReason.LENGTH


def test_nothing_of_one_goal_reaches_the_next(host: EngineHost) -> None:
    plain = submit(host, "a", tokens=30).finish()
    other = Request(
        id="b",
        raw_prompt="Something else",
        sampling=SamplingParams(
            max_new_tokens=9,
            temperature=1.5,
            seed=3,
            stop=(plain.text[5:7],),
            repetition_penalty=1.8,
            presence_penalty=1.0,
            frequency_penalty=1.0,
            top_k=3,
        ),
    )
    told = Told()
    host.submit(other, told)
    told.finish()
    again = submit(host, "c", tokens=30).finish()
    assert (again.text, again.seed) == (plain.text, plain.seed)


def test_sigint_does_not_end_the_engine(host: EngineHost) -> None:
    told = submit(host, "a", tokens=200)
    told.piece()
    assert host.pid is not None
    os.kill(host.pid, signal.SIGINT)
    assert told.finish().finish_reason is FinishReason.LENGTH
    assert host.restarts == 0


def test_sigkill_in_mid_answer(config: EngineConfig) -> None:
    with running(config) as host:
        expected = submit(host, "a", tokens=10).finish()
        first = submit(host, "b")
        second = submit(host, "c", tokens=10)
        first.piece(3)
        old = Life(host.pid or 0)
        killed_s = time.monotonic()
        os.kill(old.pid, signal.SIGKILL)
        finish = first.finish()
        assert time.monotonic() - killed_s < 1.0
        assert (finish.finish_reason, finish.error_code) == (
            FinishReason.ERROR,
            ErrorCode.ENGINE_LOST,
        )
        assert "was killed by SIGKILL" in finish.error_msg
        assert len(finish.text) == finish.stats.completion_tokens >= 3
        assert finish.text[:10] == expected.text[: len(finish.text)]
        second.queued(loading=True)
        assert second.finish().text == expected.text
        assert host.pid != old.pid
        assert host.restarts == 1
        assert old.pid not in children()
        first.assert_well_formed()
        second.assert_well_formed()


def test_sigstop_is_noticed(config: EngineConfig) -> None:
    with running(config.model_copy(update={"stall_timeout_s": 3.0})) as host:
        pause(host, 0.01)
        told = submit(host, "a")
        told.piece(2)
        old = Life(host.pid or 0)
        os.kill(old.pid, signal.SIGSTOP)
        finish = told.finish()
        assert finish.error_code is ErrorCode.ENGINE_LOST
        assert "showed no sign of life" in finish.error_msg
        assert finish.text
        old.wait_end()
        pause(host, 0.0)
        assert submit(host, "b", tokens=3).finish().finish_reason is FinishReason.LENGTH
        idle = Life(host.pid or 0)
        os.kill(idle.pid, signal.SIGSTOP)  # an idle engine beats, too
        idle.wait_end()


def test_stop_with_goals_running_and_queued(config: EngineConfig) -> None:
    host = EngineHost(config)
    host.start(PATIENCE_S)
    told = [submit(host, name) for name in "abc"]
    told[0].piece(2)
    old = Life(host.pid or 0)
    host.stop()
    old.wait_end(0.0)
    for each in told:
        each.assert_well_formed()
        assert each.finish().error_code is ErrorCode.NOT_ACTIVE
    # Ended by the engine itself, so the bill is whole.
    assert told[0].finish().text
    assert told[0].finish().stats.rounds > 0
    assert submit(host, "d").finish().error_code is ErrorCode.NOT_ACTIVE


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "/nowhere"}, "/nowhere"),
        ({"cpu_affinity": (0, 4000)}, r"\[.*4000\].*name some of \[.*0"),
    ],
)
def test_a_start_that_cannot_succeed_says_why_and_leaves_nothing(
    config: EngineConfig, change: dict[str, object], sentence: str
) -> None:
    before, open_before = children(), descriptors()
    host = EngineHost(config.model_copy(update=change))
    with pytest.raises(GemmaMtpError, match=sentence) as caught:
        host.start(PATIENCE_S)
    assert caught.value.code is ErrorCode.BACKEND_UNAVAILABLE
    assert children() == before
    assert descriptors() == open_before


@pytest.mark.slow
def test_a_relative_model_path_is_taken_from_where_the_host_is(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Path(config.model)
    monkeypatch.chdir(target.parent)
    (target.parent / "json.py").write_text("raise AssertionError('not a module of the engine')")
    with running(config.model_copy(update={"model": "target", "drafter": ""})) as host:
        assert submit(host, "a", tokens=3).finish().finish_reason is FinishReason.LENGTH


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_accumulates_over_many_lives(config: EngineConfig) -> None:
    shared, others, counts = shared_memory(), children(), []
    host = EngineHost(config)
    for _ in range(5):
        host.start(PATIENCE_S)
        assert submit(host, "a", tokens=5).finish().finish_reason is FinishReason.LENGTH
        host.stop()
        counts.append(len(descriptors()))
        assert children() == others
    assert len(set(counts)) == 1
    assert shared_memory() == shared


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_each_request_ends_once_whatever_happens(config: EngineConfig, seed: int) -> None:
    """Submit, cancel, time out, halt, count, kill and stop at random."""
    chance = random.Random(seed)
    others = children()
    host = EngineHost(
        config.model_copy(update={"max_restarts": 1000, "stall_timeout_s": 2.0}), queue_size=6
    )
    host.start(PATIENCE_S)
    told: dict[str, Told] = {}
    calls = []
    signals = [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]
    deeds = ["submit"] * 60 + ["cancel"] * 12 + ["control"] * 8 + ["count"] * 4
    deeds += ["cancel all"] * 2 + ["kill"] * len(signals) + ["restart"]
    chance.shuffle(deeds)
    for deed in deeds:
        if deed == "submit":
            name = f"r{len(told)}"
            told[name] = submit(
                host,
                name,
                prompt="Go" * chance.choice([1, 1, 1, 50, 200_000]),
                tokens=chance.choice([1, 5, 50, 500]),
                deadline_s=time.monotonic() + chance.random() if chance.random() < 0.1 else None,
                priority=chance.randrange(3),
            )
            patience = chance.choice([(Finish,), (Finish,), (Finish, Piece), (Finish, Started), ()])
            if patience:
                told[name].until(lambda event, kinds=patience: isinstance(event, kinds))
        elif deed == "cancel" and told:
            host.cancel(chance.choice(list(told)[-3:]))
        elif deed == "control":
            halt = chance.random() < 0.2
            host.set_control(draft_cap=chance.randrange(8), pause_s=0.0, halt=halt, reason="")
        elif deed == "count":
            calls.append(host.count_tokens((), "count me", 5.0))
        elif deed == "cancel all":
            host.cancel_all(FinishReason.ERROR, ErrorCode.NOT_ACTIVE, "all")
        elif deed == "kill":
            name = f"k{len(told)}"
            told[name] = submit(host, name, priority=255)
            told[name].until(lambda event: isinstance(event, (Finish, Piece)))
            if (pid := host.pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signals.pop())
        elif deed == "restart":
            host.stop(chance.choice([0.0, 0.5, 2.0]))
            host.start(PATIENCE_S)
    host.stop()
    assert host.state is HostState.STOPPED
    for each in told.values():
        each.assert_well_formed()
    assert all(call.done() for call in calls)
    assert children() == others
    ends = {each.finish().error_code for each in told.values()}
    assert {ErrorCode.NONE, ErrorCode.ENGINE_LOST, ErrorCode.PROMPT_TOO_LONG} <= ends
