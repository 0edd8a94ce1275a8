# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The host against engine processes that misbehave, each a real process with a script."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_tools import (
    PATIENCE_S,
    Life,
    Told,
    children,
    descriptors,
    request,
    running,
    shared_memory,
    submit,
)

from gemma_mtp_ros import process
from gemma_mtp_ros.api import (
    EngineConfig,
    EngineLostError,
    ErrorCode,
    Finish,
    FinishReason,
    GemmaMtpError,
)
from gemma_mtp_ros.host import EngineHost, Event, HostState

Script = Callable[[str], None]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    """Choose what the next engine processes do."""
    monkeypatch.setattr(process, "WORKER", "scripted_worker")
    monkeypatch.setenv("GEMMA_MTP_TEST_MARKER", str(tmp_path / "loaded"))
    return lambda name: monkeypatch.setenv("GEMMA_MTP_TEST_SCRIPT", name)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """After each test: no child, no zombie, no descriptor, no file in /dev/shm, no thread."""
    before = shared_memory()
    children_before, open_before = children(), descriptors()
    yield
    assert children() == children_before
    assert descriptors() == open_before
    assert shared_memory() == before
    assert not [t for t in threading.enumerate() if t.name == "gemma_mtp_engine_host"]


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(model="scripted", **fields)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no_frame", "a frame of 4294967295 bytes"),
        ("no_json", "Invalid JSON"),
        ("wrong_id", "answered for request 'another'"),
        ("hangs_up", "closed its connection"),
        ("raises", "ended with exit status 1; its last line was 'ArithmeticError: the sum is"),
        ("aborts", "was killed by SIGABRT"),
    ],
)
def test_a_broken_engine_is_replaced_and_its_goal_ends_with_its_text(
    script: Script, name: str, sentence: str
) -> None:
    script("holds")
    with running(config()) as host:
        host.stop()
        script(name)
        host.start(PATIENCE_S)
        old = Life(host.pid or 0)
        first = submit(host, "a")
        script("holds")
        second = submit(host, "b")
        finish = first.finish()
        assert (finish.finish_reason, finish.error_code) == (
            FinishReason.ERROR,
            ErrorCode.ENGINE_LOST,
        )
        assert sentence in finish.error_msg
        assert "a new one is being started" in finish.error_msg
        assert finish.text == "Hello"
        assert (finish.stats.prompt_tokens, finish.stats.completion_tokens) == (3, 1)
        second.queued(loading=True)
        second.piece()
        assert host.pid != old.pid
        assert host.restarts == 1
        old.wait_end()
        assert host.cancel("b")
        assert second.finish().finish_reason is FinishReason.CANCELED
        first.assert_well_formed()
        second.assert_well_formed()


def test_what_a_dead_engine_said_last_is_heard(script: Script) -> None:
    script("last_words")
    with running(config(max_restarts=0)) as host:
        told = submit(host, "a")
        finish = told.finish()
        assert len(told.pieces()) == 201
        assert finish.text.endswith(" 199" + "x" * 5000)
        told.assert_well_formed()


def test_an_engine_that_stops_beating_is_killed(script: Script) -> None:
    script("silent")
    with running(config(stall_timeout_s=1.0)) as host:
        old = Life(host.pid or 0)
        told = submit(host, "a")
        told.piece()
        script("holds")
        finish = told.finish()
        assert finish.error_code is ErrorCode.ENGINE_LOST
        assert "showed no sign of life" in finish.error_msg
        assert "engine.stall_timeout_s is 1" in finish.error_msg
        assert "decoding" in finish.error_msg
        old.wait_end()
        again = submit(host, "b")
        again.piece()


@pytest.mark.parametrize("name", ["stubborn", "silent"])
@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_goal_that_the_engine_does_not_end_ends_with_its_own_reason(
    script: Script, name: str, how: str
) -> None:
    script(name)
    with running(config(stall_timeout_s=2.0)) as host:
        old = Life(host.pid or 0)
        deadline_s = time.monotonic() + 0.2 if how == "deadline" else None
        told = submit(host, "a", deadline_s=deadline_s)
        told.piece()
        script("holds")
        if how == "cancel":
            assert host.cancel("a")
        finish = told.finish()
        assert finish.error_code is (ErrorCode.CANCELED if how == "cancel" else ErrorCode.TIMEOUT)
        assert finish.text == "Hello"
        assert host.restarts == 0
        assert not host.cancel("a")
        again = submit(host, "b")
        again.piece()  # by a new engine, since the old one never ended "a"
        old.wait_end()


def test_a_load_without_a_sign_of_life_is_given_up(script: Script) -> None:
    script("silent_load")
    host = EngineHost(config(load_timeout_s=0.4))
    with pytest.raises(EngineLostError, match=r"engine\.load_timeout_s is 0\.4"):
        host.start()
    assert host.state is HostState.STOPPED
    assert host.pid is None


def test_a_load_that_is_refused_says_why(script: Script) -> None:
    script("refuses")
    lines = Told()
    host = EngineHost(config(), on_log=lines)
    told = Told()
    with pytest.raises(GemmaMtpError, match=r"^it does not fit$") as caught:
        host.start()
    assert caught.value.code is ErrorCode.OUT_OF_MEMORY
    assert (logging.WARNING, "trying hard") in lines.all
    host.submit(request("a"), told)
    assert told.finish().error_code is ErrorCode.BACKEND_UNAVAILABLE
    script("holds")
    host.start(PATIENCE_S)
    again = submit(host, "a")
    again.piece()
    host.stop()


def test_a_load_that_takes_too_long_is_ended(script: Script) -> None:
    script("stops_in_load")
    host = EngineHost(config())
    with pytest.raises(GemmaMtpError, match=r"not loaded within 0\.3 s"):
        host.start(timeout_s=0.3)
    assert host.state is HostState.STOPPED


def test_stop_aborts_a_load(script: Script) -> None:
    script("stops_in_load")
    states = Told()
    host = EngineHost(config(), on_state=states)
    waiting = Told()
    caught: list[GemmaMtpError] = []

    def start() -> None:
        try:
            host.start()
        except GemmaMtpError as error:
            caught.append(error)

    starters = [threading.Thread(target=start) for _ in range(3)]
    for thread in starters:
        thread.start()
    states.until(lambda event: event[0] is HostState.LOADING)
    host.submit(request("a"), waiting)
    waiting.queued(loading=True)
    host.stop()
    for thread in starters:
        thread.join(PATIENCE_S)
    assert [error.code for error in caught] == [ErrorCode.NOT_ACTIVE] * 3
    assert waiting.finish().error_code is ErrorCode.NOT_ACTIVE
    assert [event[0] for event in states.all] == [HostState.LOADING, HostState.STOPPED]


def test_too_many_losses_end_in_failed_and_start_restores(script: Script) -> None:
    script("loads_once")
    states = Told()
    host = EngineHost(config(max_restarts=2), on_state=states)
    host.start(PATIENCE_S)
    first, second = submit(host, "a"), submit(host, "b")
    first.piece()
    os.kill(host.pid or 0, signal.SIGKILL)
    assert first.finish().error_code is ErrorCode.ENGINE_LOST
    assert second.finish().error_code is ErrorCode.BACKEND_UNAVAILABLE
    assert "more than 2 losses (engine.max_restarts)" in second.finish().error_msg
    _, sentence = states.until(lambda event: event[0] is HostState.FAILED)
    assert "it does not fit" in sentence
    assert [event[0] for event in states.all] == [
        HostState.LOADING,
        HostState.READY,
        HostState.LOADING,
        HostState.LOADING,
        HostState.FAILED,
    ]
    assert host.pid is None
    refused = submit(host, "c")
    assert refused.finish().error_code is ErrorCode.BACKEND_UNAVAILABLE
    assert not host.count_tokens((), "x", 1.0).result().success
    script("holds")
    host.start(PATIENCE_S)
    submit(host, "d").piece()
    host.stop()
    host.stop()
    assert states.all[-1][0] is HostState.STOPPED


def test_a_failed_host_can_be_stopped(script: Script) -> None:
    script("raises")
    states = Told()
    host = EngineHost(config(max_restarts=0), on_state=states)
    host.start(PATIENCE_S)
    assert submit(host, "a").finish().error_code is ErrorCode.ENGINE_LOST
    states.until(lambda event: event[0] is HostState.FAILED)
    host.stop()
    assert host.state is HostState.STOPPED
    assert submit(host, "b").finish().error_code is ErrorCode.NOT_ACTIVE


def test_the_callback_of_a_failure_may_start_the_host_again(script: Script) -> None:
    script("raises")
    states = Told()

    def on_state(state: HostState, sentence: str) -> None:
        if state is HostState.FAILED:
            script("holds")
            host.start(PATIENCE_S)
        states(state)

    host = EngineHost(config(max_restarts=0), on_state=on_state)
    host.start(PATIENCE_S)
    submit(host, "a").finish()
    states.until(lambda state: state is HostState.FAILED)
    submit(host, "b").piece()
    host.stop()


def test_stop_kills_an_engine_that_clings(script: Script) -> None:
    script("clings")
    with running(config()) as host:
        old = Life(host.pid or 0)
        told = submit(host, "a")
        host.stop(timeout_s=0.2)
        old.wait_end(0.0)
        assert told.finish().error_code is ErrorCode.NOT_ACTIVE


def test_stop_ends_each_request_once(script: Script) -> None:
    script("holds")
    with running(config()) as host:
        told = [submit(host, str(i)) for i in range(5)]
        told[0].piece()
        stoppers = [threading.Thread(target=host.stop) for _ in range(3)]
        for thread in stoppers:
            thread.start()
        for thread in stoppers:
            thread.join(PATIENCE_S)
        for each in told:
            each.assert_well_formed()
            assert each.finish().error_code is ErrorCode.NOT_ACTIVE
        assert told[0].finish().text == "Hello"


def test_stop_in_a_sink_only_asks(script: Script) -> None:
    script("holds")
    states = Told()
    host = EngineHost(config(), on_state=states)
    host.start(PATIENCE_S)
    told = Told()

    def sink(event: Event) -> None:
        told(event)
        host.stop()

    host.submit(request("a"), sink)
    assert told.finish().error_code is ErrorCode.NOT_ACTIVE
    states.until(lambda event: event[0] is HostState.STOPPED)
    host.stop()


def test_the_engine_outlives_the_thread_that_started_the_host(script: Script) -> None:
    script("holds")
    host = EngineHost(config())
    starter = threading.Thread(target=host.start)
    starter.start()
    starter.join(PATIENCE_S)
    told = submit(host, "a")
    told.piece()
    host.cancel("a")
    assert told.finish().finish_reason is FinishReason.CANCELED
    assert host.restarts == 0
    host.stop()


def test_starting_a_running_host_changes_nothing(script: Script) -> None:
    script("holds")
    with running(config()) as host:
        pid, info = host.pid, host.info
        assert host.start() == info
        assert host.pid == pid


def test_output_of_the_process_becomes_log_lines(script: Script) -> None:
    script("chatters")
    lines = Told()
    with running(config(), on_log=lines) as host:
        submit(host, "a").piece()
        lines.until(lambda event: event[1].endswith("yyy"))
    texts = [text for _, text in lines.all]
    assert texts[:20002] == [f"line {i}" for i in range(20000)] + ["50 %", "100 %"]
    assert "".join(texts[20002:]) == "y" * 50000


def test_a_stopped_engine_never_blocks_the_host(script: Script) -> None:
    script("holds")
    with running(config(stall_timeout_s=2.0)) as host:
        pid = host.pid or 0
        os.kill(pid, signal.SIGSTOP)
        big = "x" * 3_000_000  # far more than the socket takes
        first, second = submit(host, "a", prompt=big), submit(host, "b", prompt=big)
        assert host.cancel("b")
        assert second.finish().finish_reason is FinishReason.CANCELED
        first.piece()  # the old engine had not begun it
        assert host.pid != pid
        assert host.cancel("a")
        assert first.finish().text == "Hello"


def test_large_messages_reach_the_engine(script: Script) -> None:
    script("holds")
    with running(config()) as host:
        told = submit(host, "a", prompt="\0é" * 600_000)
        told.piece()
        assert host.cancel("a")
        told.finish()


def test_calls_are_answered_whatever_happens(script: Script) -> None:
    script("notes")
    lines = Told()
    with running(config(), on_log=lines) as host:
        late = host.count_tokens((), "x", 0.1).result(PATIENCE_S)
        assert (late.success, late.message[:28]) == (False, "the engine did not answer in")
        bad = host.count_tokens((), "\ud800", 1.0).result(PATIENCE_S)
        assert "Unicode" in bad.message
        calls = [host.count_tokens((), "x", 60.0) for _ in range(17)]
        assert "ask again later" in calls[16].result(PATIENCE_S).message
        warm = host.warm("x")
        assert "ask again later" in warm.result(PATIENCE_S).message
        lines.until(lambda event: event[1] == "count_tokens", 17)
        os.kill(host.pid or 0, signal.SIGKILL)
        for call in calls[:16]:
            assert "was killed by SIGKILL" in call.result(PATIENCE_S).message
        last = host.warm("x")
        lines.until(lambda event: event[1] == "warm")
        host.stop()
        assert not last.result(PATIENCE_S).success
    assert "stopped" in host.warm("x").result(PATIENCE_S).message
    assert "start it first" in EngineHost(config()).warm("x").result(PATIENCE_S).message


def test_warming_goes_before_those_that_wait(script: Script) -> None:
    script("notes")
    lines = Told()
    with running(config(), on_log=lines) as host:
        warming = host.warm("x")
        lines.until(lambda event: event[1] == "warm")
        told = submit(host, "a")
        told.queued(loading=False)
        assert host.running_id is None
        assert host.cancel("a")
        assert told.finish().finish_reason is FinishReason.CANCELED
        assert not warming.done()


def test_a_callback_that_fails_does_not_harm_the_host(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    script("holds")

    def broken(*arguments: object) -> None:
        raise LookupError("mine")

    with running(config(), on_log=broken, on_state=broken, on_progress=broken) as host:
        host.submit(request("a"), broken)
        told = submit(host, "b")
        assert host.cancel("a")
        told.piece()
    assert "mine" in caplog.text
    assert isinstance(told.all[-1], Finish)


def test_a_missing_interpreter_is_a_failed_start(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script("holds")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(EngineLostError, match="cannot be started"):
        EngineHost(config()).start()


def test_descriptors_stay_flat_over_many_lives(script: Script) -> None:
    script("holds")
    host = EngineHost(config())
    counts = []
    for _ in range(20):
        host.start(PATIENCE_S)
        told = submit(host, "a")
        told.piece()
        host.cancel("a")
        told.finish()
        host.stop()
        counts.append(len(descriptors()))
    assert len(set(counts)) == 1
