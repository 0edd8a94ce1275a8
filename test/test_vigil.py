# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""When an engine counts as lost, and how often it is replaced."""

from __future__ import annotations

import select

import pytest

from gemma_mtp_ros.vigil import Bell, PatientClock, Restarts, Vigil, backoff_s


def test_time_in_which_nobody_looked_hardly_counts() -> None:
    clock = PatientClock(max_step_s=1.0)
    assert clock.look(100.0) == 0.0
    assert clock.look(100.5) == 0.5
    assert clock.look(3700.0) == 1.5
    assert clock.look(3700.25) == 1.75


def watch(vigil: Vigil, start_s: float, looks: list[tuple[int, str | None]]) -> list[str | None]:
    """Look once every 0.5 s."""
    return [vigil.look(start_s + 0.5 * (i + 1), *look) for i, look in enumerate(looks)]


def loaded_vigil() -> Vigil:
    vigil = Vigil(load_timeout_s=60.0, stall_timeout_s=2.0)
    vigil.began(0.0)
    vigil.loaded()
    return vigil


def test_a_beating_engine_is_well() -> None:
    assert watch(loaded_vigil(), 0.0, [(i // 4, None) for i in range(100)]) == [None] * 100


def test_a_silent_engine_is_lost_after_the_timeout() -> None:
    found = watch(loaded_vigil(), 0.0, [(0, None)] * 5)
    assert found[:4] == [None] * 4
    assert found[4] == "showed no sign of life for 2.5 s (engine.stall_timeout_s is 2)"


def test_loading_has_a_timeout_of_its_own() -> None:
    vigil = Vigil(load_timeout_s=4.0, stall_timeout_s=2.0)
    vigil.began(0.0)
    found = watch(vigil, 0.0, [(0, None)] * 9)
    assert found[:8] == [None] * 8
    assert "engine.load_timeout_s is 4" in (found[8] or "")


def test_the_end_of_a_load_counts_as_a_sign_of_life() -> None:
    vigil = Vigil(load_timeout_s=60.0, stall_timeout_s=2.0)
    vigil.began(0.0)
    assert watch(vigil, 0.0, [(0, None)] * 20) == [None] * 20
    vigil.loaded()
    assert watch(vigil, 10.0, [(0, None)] * 4) == [None] * 4


def test_a_starved_host_raises_no_false_alarm() -> None:
    vigil = loaded_vigil()
    assert vigil.look(0.5, 0, None) is None
    assert vigil.look(1000.0, 0, None) is None


def test_an_engine_that_beats_but_does_not_end_its_goal_is_lost() -> None:
    found = watch(loaded_vigil(), 0.0, [(i, "a") for i in range(6)])
    assert found[:5] == [None] * 5
    assert "did not end a goal 2 s after it had to" in (found[5] or "")


def test_the_host_ends_an_overdue_goal_itself_after_a_grace() -> None:
    vigil = loaded_vigil()
    due = []
    for i in range(4):
        vigil.look(0.5 * (i + 1), i, "a")
        due.append(vigil.end_due)
    assert due == [False, False, True, True]
    vigil.look(2.5, 5, None)
    assert not vigil.end_due


def test_each_goal_has_the_whole_time_to_end() -> None:
    looks = [(i, "a") for i in range(5)] + [(i, "b") for i in range(5, 10)]
    assert watch(loaded_vigil(), 0.0, looks) == [None] * 10


@pytest.mark.parametrize(
    ("restarts", "wait_s"), [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (4, 2.0), (9, 5.0)]
)
def test_backoff(restarts: int, wait_s: float) -> None:
    assert backoff_s(restarts) == wait_s


def test_one_loss_too_many_within_the_window_gives_up() -> None:
    restarts = Restarts(limit=2, window_s=10.0)
    assert [restarts.lost(t) for t in (0.0, 5.0)] == [0.0, 0.5]
    assert restarts.lost(10.0) is None


def test_old_losses_are_forgiven() -> None:
    restarts = Restarts(limit=1, window_s=10.0)
    assert [restarts.lost(t) for t in (0.0, 10.5, 21.0)] == [0.0] * 3


def test_no_restart_allowed() -> None:
    assert Restarts(limit=0, window_s=10.0).lost(0.0) is None


def test_the_bell_wakes_once_and_is_harmless_when_closed() -> None:
    bell = Bell()
    poller = select.poll()
    poller.register(bell.fd, select.POLLIN)
    assert poller.poll(0) == []
    bell.ring()
    bell.ring()
    assert poller.poll(0) == [(bell.fd, select.POLLIN)]
    bell.silence()
    bell.silence()
    assert poller.poll(0) == []
    bell.close()
    bell.ring()
