# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Energy from readings of power."""

from __future__ import annotations

import pytest

from gemma_mtp_ros.telemetry.energy import HOLD_S, Energy


def fed(*powers: tuple[float, float | None]) -> Energy:
    energy = Energy()
    for at_s, power_w in powers:
        energy.add(at_s, power_w)
    return energy


def test_a_reading_stands_until_the_next() -> None:
    energy = fed((0.0, 10.0), (1.0, 20.0), (2.0, 5.0))
    assert energy.between(0.5, 2.5) == pytest.approx(0.5 * 10 + 20 + 0.5 * 5)
    assert energy.between(1.25, 1.5) == pytest.approx(5.0)


def test_a_span_of_no_length_takes_nothing() -> None:
    assert fed((0.0, 10.0)).between(1.0, 1.0) == 0.0


def test_a_mean_stands_back_to_the_reading_before() -> None:
    energy = Energy()
    for at_s, power_w in ((9.5, 10.0), (10.0, 10.0), (10.5, 60.0), (11.0, 10.0)):
        energy.add(at_s, power_w, is_mean=True)
    assert energy.between(10.0, 10.5) == pytest.approx(30.0)
    assert energy.between(10.25, 11.0) == pytest.approx(15.0 + 5.0)


def test_a_slow_watchdog_holds_its_readings_for_longer() -> None:
    energy = fed((0.0, 10.0))
    energy.hold_s = 90.0
    assert energy.between(0.0, 60.0) == pytest.approx(600.0)


@pytest.mark.parametrize(
    "powers",
    [
        (),
        ((0.6, 10.0),),  # begins too late
        ((0.0, 10.0), (0.7, None), (0.9, 10.0)),  # unknown within
        ((-HOLD_S, 10.0),),  # too old
    ],
)
def test_what_is_not_known_throughout_is_unknown(powers: tuple[tuple[float, float], ...]) -> None:
    assert fed(*powers).between(0.5, 1.0) is None


def test_a_reading_that_stands_still_does_not_count_on() -> None:
    energy = fed((0.0, 10.0), (0.0, 99.0), (0.0, 99.0))
    assert energy.between(0.0, 1.0) == pytest.approx(10.0)
