# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The user's own draft caps, by level and power mode. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from .levels import LEVEL_NAMES, Level

NO_CAP = 7
"""The largest draft length there is, so a cap of 7 caps nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class CapRule:
    """At `level`, and in power mode `power_mode` if one is named, draft at most `cap` tokens."""

    level: Level
    power_mode: str | None
    cap: int


def parse_draft_cap(entries: Iterable[str]) -> tuple[CapRule, ...]:
    """Rules from entries such as `HOT=2` or `HOT@15W=1` (in power mode 15W).

    Blank entries are skipped: a ROS parameter file writes an empty string array as `[""]`.

    Raises:
        ValueError: an entry of another form; names it, the bound and an example.
    """
    return tuple(_cap_rule(entry) for entry in entries if str(entry).strip())


def draft_cap_for(rules: Iterable[CapRule], level: Level, power_mode: str | None) -> int:
    """The smallest cap of the rules for this level and power mode; 7 if none matches.

    Mode names match as `mode_key` makes them equal. A rule for a mode does not match while no mode
    is known.
    """
    caps = [
        rule.cap
        for rule in rules
        if rule.level == level
        and (rule.power_mode is None or mode_key(rule.power_mode) == mode_key(power_mode))
    ]
    return min(caps, default=NO_CAP)


def mode_key(name: str | None) -> str | None:
    """The name without regard to case and to the prefix MODE_.

    AGX Orin says MODE_15W where Orin Nano says 15W.
    """
    return None if name is None else name.strip().upper().removeprefix("MODE_")


def _cap_rule(entry: str) -> CapRule:
    left, _, cap = (part.strip() for part in str(entry).partition("="))
    name, at, mode = (part.strip() for part in left.partition("@"))
    if not name or not cap or bool(at) != bool(mode) or "=" in cap or "@" in mode:
        problem = "is not of the form LEVEL=CAP or LEVEL@MODE=CAP"
    elif name.upper() not in LEVEL_NAMES:
        problem = f"names no level; the levels are {', '.join(LEVEL_NAMES)}"
    elif re.fullmatch("[0-7]", cap) is None:
        problem = f"has a cap that is no integer from 0 to {NO_CAP}"
    else:
        return CapRule(Level[name.upper()], mode or None, int(cap))
    shown = repr(entry[:60] + "..." if isinstance(entry, str) and len(entry) > 60 else entry)
    raise ValueError(
        f"watchdog.draft_cap entry {shown} {problem}; "
        "write for example HOT=2, or HOT@15W=1 for one power mode."
    )
