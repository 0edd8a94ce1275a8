# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator could do better than let the watchdog pace: sentences, never actions. Pure.

A lower power mode beats pacing when its speed, relative to the present mode's, is above the share
of time that pacing leaves. That holds whether or not the lower mode still needs pacing: power falls
with the clock at least as much as speed does (voltage falls too), so a board that is given the same
heat runs longer in the lower mode by more than it runs slower.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from .caps import mode_key
from .reading import Reading, Throttle, plausible

LADDERS: Mapping[str, tuple[tuple[str, float | None], ...]] = {
    "Orin Nano": (("MAXN_SUPER", None), ("25W", 0.90), ("15W", 0.70), ("7W", None)),
    "AGX Orin": (("MAXN", None), ("50W", 0.64), ("30W", 0.75), ("15W", 0.67)),
    "Thor": (("MAXN", None), ("120W", 0.89), ("90W", None), ("70W", None)),
}
"""Power modes downwards by part of the board's name, each with its speed relative to the mode above
(None: not known). What decoding reaches at least, as if bound to the GPU's clock alone: Orin Nano
918 of 1020 MHz, and 15W measured with llama.cpp at 36 to 47 % fewer tokens/s than 25W; AGX Orin
828.75, 624.75 and 420.75 of 1300.5 MHz (NVIDIA, Jetson Linux Developer Guide); Thor's products take
12.6 % longer in 120W. Speeds seen in both modes outrank these."""

MEAN_OVER_S = 120.0
"""Time constant of the mean duty."""

CLEARLY = 0.05
"""A lower mode is suggested once pacing leaves this much less than its speed."""

SAMPLE_WEIGHT = 0.05
SAMPLES = 60
"""Half a minute of polls before a draft length counts as measured."""

FEWER_JOULES = 0.95
"""A shorter draft is suggested below this share of the joules per token."""


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """What is carried from one reading to the next.

    mean_duty: of the last minutes. suggested: whether a lower mode was suggested last.
    speeds: (mode, tokens/s without pauses). joules: (draft length, joules per token, samples), of
    `mode` alone.
    """

    mean_duty: float = 1.0
    suggested: bool = False
    speeds: tuple[tuple[str, float], ...] = ()
    joules: tuple[tuple[int, float, int], ...] = ()
    mode: str | None = None
    at_s: float | None = None


def advise(
    state: Advice, reading: Reading, mode: str | None, duty: float, now_s: float
) -> tuple[Advice, str]:
    """One reading, decided with `duty`, in power mode `mode`."""
    key = mode_key(mode)
    elapsed_s = 0.0 if state.at_s is None else min(max(now_s - state.at_s, 0.0), 10.0)
    if key != state.mode:
        state = dataclasses.replace(state, mean_duty=1.0, suggested=False, joules=(), mode=key)
    decodes = reading.round_s is not None
    # A board that others heat while nothing decodes loses no tokens to pacing.
    weight = -math.expm1(-elapsed_s / MEAN_OVER_S) if decodes else 0.0
    state = dataclasses.replace(
        state,
        mean_duty=state.mean_duty + weight * (duty - state.mean_duty),
        speeds=_speeds(state, reading, key, duty),
        joules=_joules(state, reading, duty),
        at_s=now_s,
    )
    lower = _lower_mode(state, reading.board, key) if decodes else ""
    state = dataclasses.replace(state, suggested=bool(lower) if decodes else state.suggested)
    return state, " ".join(part for part in (lower, _shorter_draft(state)) if part)


def relative_speed(state: Advice, board: str | None, mode: str | None) -> tuple[str, float] | None:
    """The next lower power mode and its speed relative to `mode`; None if either is unknown."""
    ladder = next((steps for part, steps in LADDERS.items() if part in (board or "")), ())
    names = [name for name, _ in ladder]
    if mode not in names[:-1]:
        return None
    name, speed = ladder[names.index(mode) + 1]
    seen = dict(state.speeds)
    if mode in seen and name in seen:
        speed = seen[name] / seen[mode]
    return None if speed is None else (name, speed)


def _lower_mode(state: Advice, board: str | None, mode: str | None) -> str:
    known = relative_speed(state, board, mode)
    if known is None:
        return ""
    name, speed = known
    if state.mean_duty >= speed - (0.0 if state.suggested else CLEARLY):
        return ""
    return (
        f"A lower power mode would be faster: pacing leaves {state.mean_duty:.0%} of the time in "
        f"{mode}, and {name} runs at {speed:.0%} of its speed or more."
    )


def _shorter_draft(state: Advice) -> str:
    measured = [(k, joules) for k, joules, samples in state.joules if samples >= SAMPLES]
    if len(measured) < 2:
        return ""
    longest, cost = max(measured)
    best, least = min(measured, key=lambda pair: pair[1])
    if best == longest or least >= FEWER_JOULES * cost:
        return ""
    return (
        f"Fewer drafts would cool this board: {best} drafted tokens cost {least:.2f} J a token, "
        f"{longest} cost {cost:.2f} J; watchdog.draft_cap can limit them."
    )


def _speeds(
    state: Advice, reading: Reading, mode: str | None, duty: float
) -> tuple[tuple[str, float], ...]:
    tokens_per_s = plausible(reading.tokens_per_s, 1e-3, 1e6)
    if mode is None or tokens_per_s is None or duty < 0.3 or reading.throttle == Throttle.YES:
        return state.speeds
    seen = dict(state.speeds)
    old = seen.get(mode)
    new = tokens_per_s / duty
    seen[mode] = new if old is None else old + SAMPLE_WEIGHT * (new - old)
    return tuple(seen.items())


def _joules(state: Advice, reading: Reading, duty: float) -> tuple[tuple[int, float, int], ...]:
    """Only without pauses and throttling: both change what a token costs."""
    tokens_per_s = plausible(reading.tokens_per_s, 1e-3, 1e6)
    power_w = plausible(reading.power_w, 0.1, 1000.0)
    drafted = plausible(reading.draft_length, 0.0, 7.0)
    if (
        tokens_per_s is None
        or power_w is None
        or drafted is None
        or duty < 0.95
        or reading.throttle == Throttle.YES
    ):
        return state.joules
    k, cost = round(drafted), power_w / tokens_per_s
    kept = {length: (joules, samples) for length, joules, samples in state.joules}
    old, samples = kept.get(k, (cost, 0))
    kept[k] = (old + SAMPLE_WEIGHT * (cost - old), samples + 1)
    return tuple((length, *values) for length, values in sorted(kept.items()))
