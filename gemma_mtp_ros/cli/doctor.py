# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp doctor``: does this machine have what the node needs?

Runs where anything may be missing, so it imports nothing but Python's own modules and what of this
package needs no more; what may crash or hang is tried in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import __version__
from . import hardware, software
from .finding import Check, Finding, Grade, Machine, carry_out

CHECKS = (
    Check("board", hardware.board),
    Check("python", software.python),
    Check("packages", software.packages),
    Check("ros", software.ros, software.PROBE_S + 5),
    Check("torch", software.torch, software.PROBE_S + 5),
    Check("transformers", software.transformers, software.PROBE_S + 5),
    Check("kernels", software.kernels, software.PROBE_S + 5),
    Check("devices", hardware.devices),
    Check("sensors", hardware.sensors, hardware.READING_S + 10),
    Check("power mode", hardware.power_mode, hardware.READING_S + 10),
    Check("memory", hardware.memory),
    Check("swap", hardware.swap),
    Check("disk", hardware.disk),
    Check("self-test", software.self_test, software.SELF_TEST_S + 5),
)
MARKS = {Grade.OK: "32", Grade.WARNING: "33", Grade.ERROR: "1;31"}
"""Colours of a terminal (SGR)."""


def run(options: argparse.Namespace) -> int:
    """Look, print, return the exit status: 1 if there is an error."""
    machine = Machine(Path(options.root), os.environ)
    if not machine.root.is_dir():
        print(f"gemma-mtp: --root {options.root} is no folder; name one", file=sys.stderr)
        return 2
    unknown = set(options.only) - {check.name for check in CHECKS}
    if unknown:
        known = ", ".join(check.name for check in CHECKS)
        print(
            f"gemma-mtp: --only {unknown.pop()} is no check; name one of {known}", file=sys.stderr
        )
        return 2
    found = []
    for name, finding in examine(machine, options.only or [check.name for check in CHECKS]):
        found.append((name, finding))
        if not options.json:
            print(line(name, finding, sys.stdout.isatty()), flush=True)
    if options.json:
        print(json.dumps(as_json(found), ensure_ascii=False, indent=1))
    else:
        print(summary([finding for _, finding in found]))
    return int(any(finding.grade is Grade.ERROR for _, finding in found))


def examine(machine: Machine, only: Sequence[str]) -> Iterator[tuple[str, Finding]]:
    """The findings of the checks named, as they come, with the name of their check."""
    for check in (check for check in CHECKS if check.name in only):
        for finding in carry_out(check, machine):
            yield check.name, finding


def line(name: str, finding: Finding, colours: bool) -> str:
    """A finding for people."""
    grade = f"{finding.grade.value:<8}"
    if colours:
        grade = f"\x1b[{MARKS[finding.grade]}m{grade}\x1b[0m"
    return f"{grade} {name + ':':<14} {finding.sentence}"


def summary(findings: list[Finding]) -> str:
    """How many there are of which grade."""
    errors, warnings = (
        sum(finding.grade is grade for finding in findings)
        for grade in (Grade.ERROR, Grade.WARNING)
    )
    if not errors and not warnings:
        return "all is well"
    return f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"


def as_json(found: list[tuple[str, Finding]]) -> dict[str, object]:
    """What --json prints."""
    return {
        "version": __version__,
        "ok": all(finding.grade is not Grade.ERROR for _, finding in found),
        "findings": [
            {
                "check": name,
                "grade": finding.grade.value,
                "message": finding.message,
                "remedy": finding.remedy,
            }
            for name, finding in found
        ],
    }
