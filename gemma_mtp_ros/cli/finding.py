# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What ``gemma-mtp doctor`` finds, and the running of what finds it: bounded, each for itself.

Needs nothing beside Python's own modules, as what is missing is to be found.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..telemetry.files import FileTree

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class Grade(str, enum.Enum):
    """How good or bad it is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing found. ``remedy`` is empty where all is well."""

    grade: Grade
    message: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """Both in one."""
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


def ok(message: str) -> Finding:
    """All is well."""
    return Finding(Grade.OK, message)


def warning(message: str, remedy: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(Grade.WARNING, message, remedy)


def error(message: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(Grade.ERROR, message, remedy)


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is looked at: the file tree below ``root``, and the environment."""

    root: Path
    environment: Mapping[str, str]

    @property
    def tree(self) -> FileTree:
        """Its files."""
        return FileTree(self.root)


@dataclasses.dataclass(frozen=True)
class Check:
    """``look`` gives the findings. It is given up after ``limit_s``."""

    name: str
    look: Callable[[Machine], list[Finding]]
    limit_s: float = 10.0


def carry_out(check: Check, machine: Machine) -> list[Finding]:
    """The findings of one check, whatever happens in it."""
    found: list[list[Finding]] = []

    def look() -> None:
        try:
            found.append(check.look(machine))
        except Exception as failure:  # one check that fails must not keep the others from looking
            said = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
            found.append([error(f"the check itself failed ({said})", "report this as a bug")])

    thread = threading.Thread(target=look, name=f"doctor {check.name}", daemon=True)
    thread.start()
    thread.join(check.limit_s)
    if not found:
        hung = error(
            f"the check did not end within {check.limit_s:g} s",
            "a driver or a file system hangs (dmesg says which), or the machine is overloaded; "
            "free it and run the check again",
        )
        return [hung]
    return found[0]


class ProbeError(Exception):
    """A probe that gave no answer; the text says why."""


def probe(module: str, *arguments: str, limit_s: float) -> dict[str, Any]:
    """Run a module in a process of its own and return the JSON object that it prints last.

    Raises:
        ProbeError: it ended otherwise, or was not done in time.
    """
    path = [str(PACKAGE_ROOT), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd="/",  # "-m" looks for modules in the working directory first
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise ProbeError(f"no answer within {limit_s:g} s") from None
    try:
        found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        if process.returncode < 0:
            raise ProbeError(f"ended by {signal.Signals(-process.returncode).name}") from None
        last = err.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
        raise ProbeError(last[0][:300]) from None
    if not isinstance(found, dict):
        raise ProbeError(f"an answer that is none: {out[:100]}")
    return found
