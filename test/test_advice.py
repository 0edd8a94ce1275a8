# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What the watchdog suggests, and when it keeps quiet."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gemma_mtp_ros.telemetry.advice import LADDERS, Advice, advise, relative_speed
from gemma_mtp_ros.telemetry.caps import mode_key
from gemma_mtp_ros.telemetry.reading import Reading, Throttle

NANO = Reading(
    0.0, 0.0, board="NVIDIA Jetson Orin Nano Developer Kit", power_mode="MAXN_SUPER", round_s=0.05
)


def after(
    seconds: float, duty: float, state: Advice | None = None, reading: Reading = NANO, **more: Any
) -> tuple[Advice, str]:
    """The state and the words after polls at 2 Hz with one duty."""
    state = state or Advice()
    reading = dataclasses.replace(reading, **more)
    begin_s = state.at_s or 0.0
    text = ""
    for index in range(round(seconds * 2)):
        now_s = begin_s + (index + 1) / 2
        state, text = advise(state, reading, reading.power_mode, duty, now_s)
    return state, text


def test_pacing_for_minutes_suggests_the_next_lower_mode() -> None:
    assert after(20, 0.5)[1] == ""
    state, text = after(600, 0.5)
    assert text == (
        "A lower power mode would be faster: pacing leaves 50% of the time in MAXN_SUPER, and 25W "
        "runs at 90% of its speed or more."
    )
    assert after(600, 1.0, state)[1] == ""


def test_a_board_that_others_heat_while_nothing_decodes_suggests_nothing() -> None:
    state, text = after(600, 0.5, round_s=None)
    assert (text, state.mean_duty) == ("", 1.0)


def test_light_pacing_suggests_nothing() -> None:
    assert after(3600, 0.87)[1] == ""


def test_a_suggestion_stays_until_pacing_is_clearly_better() -> None:
    state, _ = after(3600, 0.84)
    assert state.suggested
    assert after(3600, 0.88, state)[1] != ""
    assert after(3600, 0.92, state)[1] == ""


def test_a_mode_change_begins_anew() -> None:
    state, _ = after(600, 0.5)
    state, text = after(5, 0.5, state, power_mode="25W")
    assert text == ""
    assert "15W runs at 70%" in after(600, 0.5, state, power_mode="25W")[1]


@pytest.mark.parametrize(
    ("board", "mode"),
    [
        (None, "MAXN_SUPER"),
        ("NVIDIA Jetson Orin Nano Developer Kit", None),
        ("NVIDIA Jetson Orin Nano Developer Kit", "7W"),
        ("NVIDIA Jetson Orin Nano Developer Kit", "MY_MODE"),
        ("NVIDIA Jetson AGX Thor Developer Kit", "120W"),
        ("A laptop", "MAXN"),
    ],
)
def test_an_unknown_board_mode_or_speed_gives_no_suggestion(
    board: str | None, mode: str | None
) -> None:
    assert after(600, 0.2, board=board, power_mode=mode)[1] == ""


def test_agx_orin_says_mode_before_its_names() -> None:
    text = after(600, 0.4, board="NVIDIA Jetson AGX Orin Developer Kit", power_mode="MODE_50W")[1]
    assert "pacing leaves 40%" in text
    assert "30W" in text


def test_speeds_seen_outrank_the_published_ones() -> None:
    state, _ = after(60, 1.0, power_mode="25W", tokens_per_s=19.6)
    state, _ = after(60, 0.8, state, tokens_per_s=16.0)
    name, speed = relative_speed(state, NANO.board, "MAXN_SUPER") or ("", 0.0)
    assert name == "25W"
    assert speed == pytest.approx(0.98)
    assert "98%" in after(600, 0.9, state, tokens_per_s=18.0)[1]


def test_a_shorter_draft_is_suggested_where_the_rails_show_it() -> None:
    state, _ = after(40, 1.0, power_w=20.0, tokens_per_s=40.0, draft_length=6.0)
    state, text = after(40, 1.0, state, power_w=16.0, tokens_per_s=38.0, draft_length=2.2)
    assert text == (
        "Fewer drafts would cool this board: 2 drafted tokens cost 0.42 J a token, 6 cost 0.50 J; "
        "watchdog.draft_cap can limit them."
    )


@pytest.mark.parametrize(
    "more",
    [
        {"power_w": 20.0, "tokens_per_s": 39.0},  # hardly a difference
        {"power_w": None, "tokens_per_s": 80.0},
        {"power_w": 20.0, "tokens_per_s": float("nan")},
        {"power_w": 16.0, "tokens_per_s": 80.0, "throttle": Throttle.YES},
    ],
)
def test_no_shorter_draft_without_clear_figures(more: dict[str, Any]) -> None:
    state, _ = after(40, 1.0, power_w=20.0, tokens_per_s=38.0, draft_length=6.0)
    assert after(40, 1.0, state, draft_length=2.0, **more)[1] == ""


def test_paced_polls_say_nothing_of_joules() -> None:
    state, _ = after(40, 0.5, power_w=20.0, tokens_per_s=40.0, draft_length=6.0)
    assert state.joules == ()


def test_the_ladders_fall() -> None:
    for ladder in LADDERS.values():
        assert ladder[0][1] is None
        assert all(speed is None or 0 < speed < 1 for _, speed in ladder)
        assert all(mode_key(name) == name for name, _ in ladder)
