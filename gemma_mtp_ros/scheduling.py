# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What a new goal does to those before it: the rule of ``busy_policy`` and ``priority``. Pure.

The engine serves one goal at a time. A goal that was told to end (canceled, preempted, late) is as
good as gone: within a round, or a chunk of its prefill, its place is free.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class BusyPolicy(enum.Enum):
    """What becomes of a goal that comes while another one runs."""

    QUEUE = "queue"
    """It waits, among equal priorities in the order of arrival; one of higher priority than the
    running one ends that."""
    REFUSE = "refuse"
    """It ends at once; no goal ever waits, and none is ended for another."""
    PREEMPT = "preempt"
    """It ends all goals of no higher priority than its own, the running one and those that wait."""


class Before(NamedTuple):
    """Who is there when a goal comes."""

    running: int | None
    """Priority of the goal that the engine holds; ``None``: none, or one that was told to end."""
    waiting: Sequence[int]
    """Priorities of those that wait, the next one first; they never rise."""
    ready: bool
    """Whether a loaded engine is there; while one is coming up all goals wait."""


class Admission(NamedTuple):
    """What to do with a new goal."""

    refusal: str = ""
    """Why it ends with QUEUE_FULL; empty: it waits for its turn, or for nothing."""
    end_running: bool = False
    """Whether the running goal ends PREEMPTED."""
    end_waiting: tuple[int, ...] = ()
    """Places in ``waiting`` whose goals end PREEMPTED."""


def admit(policy: BusyPolicy, queue_size: int, priority: int, before: Before) -> Admission:
    """Decide on a new goal of ``priority``.

    Whatever is admitted, no goal is left to wait for a running one of lower priority. In a full
    queue a goal takes the place of the last one, if that has a lower priority.
    """
    running, waiting, ready = before
    if policy is BusyPolicy.REFUSE:
        return Admission(_refusal(before))
    preempt = policy is BusyPolicy.PREEMPT
    end_running = running is not None and (priority > running or (preempt and priority == running))
    end_waiting = tuple(i for i, each in enumerate(waiting) if preempt and each <= priority)
    left = len(waiting) - len(end_waiting)
    place_free = ready and (running is None or end_running)
    if left < queue_size + place_free:
        return Admission("", end_running, end_waiting)
    if left and waiting[left - 1] < priority:
        return Admission("", end_running, (*end_waiting, left - 1))
    if left:
        goals = "goal" if left == 1 else "goals"
        why = f"{left} {goals} of this priority ({priority}) or a higher one wait"
    else:
        why = "a goal runs" if ready else "the engine is coming up"
    return Admission(
        f"{why} and queue_size is {queue_size}; send the goal again later or raise queue_size"
    )


def _refusal(before: Before) -> str:
    """Why a goal is refused that must not wait; empty: it need not."""
    if before.ready and before.running is None and not before.waiting:
        return ""
    why = "another goal is served" if before.ready else "the engine is coming up"
    return (
        f"{why} and busy_policy is refuse; send the goal again later or set busy_policy to queue "
        "or preempt"
    )


def preempted(policy: BusyPolicy, priority: int, by: int) -> str:
    """The sentence for a goal of ``priority`` that ends for a newer one of priority ``by``."""
    if by > priority:
        return (
            f"a goal of priority {by} took the place of this one of priority {priority}; send it "
            "again if it is still wanted"
        )
    return (
        f"a newer goal took the place of this one (busy_policy is {policy.value}); send it again "
        "if it is still wanted"
    )
