# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp record``: what the sensors of this board say, into a trace that replay reads."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .. import __version__
from ..api import RequestError
from ..telemetry.reader import SourceReader
from ..telemetry.reading import Reading, Throttle
from ..telemetry.sources import open_source
from ..telemetry.trace import Header, TraceWriter
from .askers import Interrupt

LOOK_S = 0.05
"""How often a wait looks for Ctrl-C."""


def run(options: argparse.Namespace) -> int:
    """Record until the time is over or Ctrl-C; return the exit status.

    Raises:
        RequestError: an option, or the file, cannot be used; says what to change.
    """
    try:
        source = open_source(options.source, options.root)
    except ValueError as error:
        raise RequestError(f"{error}".replace("telemetry.", "--")) from error
    file: Path = options.file
    if os.path.lexists(file):
        raise RequestError(f"{file} exists already; name a new file, or remove it first")
    console = Console(stderr=True, markup=False)
    reader = SourceReader(source)
    try:
        with Interrupt() as interrupt:
            recorder = Recorder(reader, file, options.period)
            recorder.record(options.seconds, lambda: interrupt.asked, console)
    except OSError as error:
        raise RequestError(
            f"{file} cannot be written ({error.strerror}); name a file in a folder that can"
        ) from error
    finally:
        reader.close(1.0)
    console.print(recorder.report(), style="dim", highlight=False, soft_wrap=True)
    return 0 if recorder.count else 1


class Recorder:
    """Reads every `period_s` and writes. A reading that does not come leaves a gap."""

    def __init__(self, reader: SourceReader, file: Path, period_s: float) -> None:
        self._reader = reader
        self._file = file
        self._period_s = period_s
        self._last: Reading | None = None
        self._failure = ""
        self._elapsed_s = 0.0
        self.count = 0
        self.missed = 0

    def record(
        self, seconds: float | None, interrupted: Callable[[], bool], console: Console
    ) -> None:
        """Record for `seconds` (None: without end), or until `interrupted`.

        Raises:
            OSError: the file cannot be written.
        """
        begun_s = time.monotonic()
        end_s = begun_s + (math.inf if seconds is None else seconds)
        first_s, turn = begun_s, 0
        with contextlib.ExitStack() as stack:
            show = stack.enter_context(_progress(console, seconds))
            writer: TraceWriter | None = None
            while not interrupted() and first_s + turn * self._period_s < end_s:
                turn += 1
                due_s = min(first_s + turn * self._period_s, end_s)
                reading = self._read(due_s, interrupted)
                if reading is not None:
                    if writer is None:
                        writer = stack.enter_context(TraceWriter(self._file, self._header(reading)))
                        if reading.temperature_c is None:
                            said = f"No temperature can be read here. {reading.note}"
                            console.print(said.rstrip(), highlight=False)
                    writer.write(reading)
                    self.count, self._last = self.count + 1, reading
                elif not interrupted():
                    self.missed += 1
                show(time.monotonic() - begun_s, self._shown())
                _sleep(due_s, interrupted)
                if time.monotonic() - due_s > self._period_s:  # the machine slept, or is overloaded
                    first_s, turn = time.monotonic(), 0
            self._elapsed_s = time.monotonic() - begun_s

    def report(self) -> str:
        """What was recorded, in a sentence or two."""
        if not self.count:
            return f"No reading came within {self._elapsed_s:.1f} s. {self._failure}".strip()
        said = f"Wrote {self.count} readings over {self._elapsed_s:.1f} s to {self._file}."
        if self.missed:
            said += f" {self.missed} did not come in time. {self._failure}".rstrip()
        if self._last is not None and self._last.note:
            said += f" {self._last.note}"
        return said

    def _read(self, until_s: float, interrupted: Callable[[], bool]) -> Reading | None:
        before = self._reader.answer
        self._reader.ask()
        while not self._reader.wait(LOOK_S):
            if interrupted() or time.monotonic() >= until_s:
                return None
        answer = self._reader.answer
        if answer is None or answer is before:
            return None
        if answer.error is not None:
            self._failure = f"The source failed: {answer.error!r}."
        return answer.reading

    def _header(self, reading: Reading) -> Header:
        return Header(
            period_s=self._period_s,
            source=reading.source,
            board=reading.board,
            recorder=f"gemma_mtp_ros {__version__}",
        )

    def _shown(self) -> str:
        reading = self._last
        if reading is None:
            return f"{self.missed} readings did not come"
        said = [f"{self.count} readings", f"source {reading.source}"]
        if reading.temperature_c is not None:
            said.append(f"{reading.hottest_zone} {reading.temperature_c:.1f} degC")
        if reading.power_w is not None:
            said.append(f"{reading.power_w:.1f} W")
        if reading.power_mode is not None:
            said.append(f"mode {reading.power_mode}")
        if reading.throttle is Throttle.YES:
            said.append(f"throttled: {reading.throttle_reason}")
        return ", ".join(said)


def _sleep(until_s: float, interrupted: Callable[[], bool]) -> None:
    while not interrupted() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, LOOK_S))


@contextlib.contextmanager
def _progress(console: Console, seconds: float | None) -> Iterator[Callable[[float, str], None]]:
    """Show how far it is on a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        yield lambda elapsed_s, text: None
        return
    columns = [SpinnerColumn(), TimeElapsedColumn()]
    columns += [] if seconds is None else [BarColumn(bar_width=20)]
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console, transient=True
    ) as bar:
        task = bar.add_task("", total=seconds)
        yield lambda elapsed_s, text: bar.update(task, description=text, completed=elapsed_s)
