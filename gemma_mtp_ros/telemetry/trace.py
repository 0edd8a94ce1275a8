# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The file of a recorded trace: JSON lines, a header and then a reading a line; .gz is compressed.

Times in seconds, units as in `Reading`. What is unknown, or as it is by default, is left out.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .reading import (
    HYSTERESIS_RANGE_C,
    TEMPERATURE_RANGE_C,
    TRIP_RANGE_C,
    Reading,
    Throttle,
    Trips,
    plausible,
)

VERSION = 1
LINE_LIMIT = 1 << 20
"""Bytes of a line; no board has as many zones."""

RECORD_AGAIN = "record the trace again with gemma-mtp record"


class TraceError(ValueError):
    """A trace that cannot be replayed: file, line and remedy in one sentence."""


def _number(low: float, high: float) -> BeforeValidator:
    """A number within the bounds; anything else is unknown, as it is from a live sensor."""

    def check(value: object) -> float | None:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        try:
            return plausible(float(value), low, high)
        except OverflowError:
            return None

    return BeforeValidator(check)


def _otherwise(fallback: Callable[[], Any], *kinds: type) -> BeforeValidator:
    return BeforeValidator(lambda value: value if type(value) in kinds else fallback())


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None


def _throttle(value: object) -> Throttle:
    if isinstance(value, Throttle):
        return value
    known = Throttle.__members__
    return known.get(value, Throttle.UNKNOWN) if isinstance(value, str) else Throttle.UNKNOWN


Celsius = Annotated[float | None, _number(*TEMPERATURE_RANGE_C)]
Trip = Annotated[float | None, _number(*TRIP_RANGE_C)]
Margin = Annotated[float | None, _number(-250.0, 250.0)]
Watt = Annotated[float | None, _number(0.0, 5000.0)]
Clock = Annotated[float | None, _number(0.0, 1e5)]
Rate = Annotated[float | None, _number(0.0, 1e9)]
Stamp = Annotated[float, Field(ge=-1e11, le=1e11)]
Name = Annotated[str | None, _otherwise(lambda: None, str)]
Text = Annotated[str, _otherwise(str, str)]


class TripLine(BaseModel):
    """Trip points of a zone."""

    model_config = ConfigDict(frozen=True)

    throttle_c: Trip = None
    critical_c: Trip = None
    hysteresis_c: Annotated[float | None, _number(*HYSTERESIS_RANGE_C)] = None


Zones = Annotated[dict[str, Celsius], _otherwise(dict, dict)]
Rails = Annotated[dict[str, Watt], _otherwise(dict, dict)]
TripLines = Annotated[
    dict[str, Annotated[TripLine, _otherwise(TripLine, dict, TripLine)]], _otherwise(dict, dict)
]


class Line(BaseModel):
    """A reading. Its stamps must be numbers; of the rest, what makes no sense is unknown."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stamp_s: Stamp
    wall_s: Stamp
    source: Text = "none"
    note: Text = ""
    board: Name = None
    zones: Zones = Field(default_factory=dict)
    trips: TripLines = Field(default_factory=dict)
    hottest_zone: Name = None
    temperature_c: Celsius = None
    margin_zone: Name = None
    margin_c: Margin = None
    critical_margin_c: Margin = None
    rails: Rails = Field(default_factory=dict)
    power_w: Watt = None
    power_is_mean: Annotated[bool, _otherwise(bool, bool)] = False
    gpu_clock_mhz: Clock = None
    gpu_max_clock_mhz: Clock = None
    gpu_load: Annotated[float | None, _number(0.0, 1.0)] = None
    memory_clock_mhz: Clock = None
    throttle: Annotated[Throttle, BeforeValidator(_throttle)] = Throttle.UNKNOWN
    throttle_reason: Text = ""
    over_current_events: Annotated[int | None, BeforeValidator(_count)] = None
    over_current_per_s: Rate = None
    power_mode: Name = None
    round_s: Rate = None
    draft_length: Rate = None
    tokens_per_s: Rate = None

    @classmethod
    def of(cls, reading: Reading) -> Line:
        """The line of a reading."""
        fields: dict[str, Any] = {field: getattr(reading, field) for field in cls.model_fields}
        fields["zones"], fields["rails"] = dict(reading.zones), dict(reading.rails)
        fields["trips"] = {
            zone: TripLine(**dataclasses.asdict(trips)) for zone, trips in reading.trips.items()
        }
        return cls(**fields)

    def reading(self) -> Reading:
        """The reading of the line."""
        fields = {field: getattr(self, field) for field in type(self).model_fields}
        trips = {zone: Trips(**line.model_dump()) for zone, line in self.trips.items()}
        return Reading(**{**fields, "trips": trips})

    def encoded(self) -> bytes:
        """As it stands in the file, without the line break."""
        values = self.model_dump(exclude_defaults=True)
        if "throttle" in values:
            values["throttle"] = self.throttle.name
        return _as_json(values)


class Header(BaseModel):
    """First line. `period_s`: between readings. `recorder`: program and version."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal["gemma_mtp_ros trace"] = "gemma_mtp_ros trace"
    version: int = VERSION
    period_s: Annotated[float, Field(ge=1e-3, le=86400.0)]
    source: Text = "none"
    board: Name = None
    recorder: Text = ""


class TraceWriter:
    """Writes a trace; each line is handed to the system at once, so that a crash loses one at most.

    Raises:
        FileExistsError: there is a file of this name. OSError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by close()
        self._packed: gzip.GzipFile | None = None
        if Path(path).suffix == ".gz":
            self._packed = gzip.GzipFile(filename="", fileobj=self._file, mode="wb", mtime=0)
        self._write(_as_json(header.model_dump()))

    def write(self, reading: Reading) -> None:
        """Append a reading.

        Raises:
            OSError: it cannot be written.
        """
        self._write(Line.of(reading).encoded())

    def close(self) -> None:
        """Complete the file."""
        try:
            if self._packed is not None:
                self._packed.close()
        finally:
            self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        if self._packed is not None:
            self._packed.write(line + b"\n")
            self._packed.flush()
            return
        rest = memoryview(line + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]


@dataclasses.dataclass(frozen=True)
class Summary:
    """A trace that was read through. cut: lines skipped at its end, 0 or 1."""

    header: Header
    count: int
    duration_s: float
    cut: int


def check(path: str | os.PathLike[str]) -> Summary:
    """Read a whole trace through.

    A last line that breaks off, as after a crash of the recorder, is skipped and counted.

    Raises:
        TraceError: it cannot be replayed.
    """
    reader = TraceReader(path)
    count, first_s, last_s = 0, 0.0, 0.0
    for reading in reader:
        if count == 0:
            first_s = reading.stamp_s
        count, last_s = count + 1, reading.stamp_s
    if not count:
        raise TraceError(f"{os.fspath(path)} holds no reading; {RECORD_AGAIN}.")
    return Summary(reader.header, count, last_s - first_s, reader.cut)


class TraceReader:
    """The readings of a trace, in order, one at a time in memory.

    Raises:
        TraceError: at once if file or header are none that can be replayed; while iterating, at a
            damaged line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.cut = 0
        self._path = os.fspath(path)
        self._lines = _lines(self._path)
        number, line, _ = next(self._lines, (1, b"", True))
        self.header = _header(self._path, number, line)

    def __iter__(self) -> Iterator[Reading]:
        before_s = -math.inf
        for number, line, whole in self._lines:
            try:
                reading = Line.model_validate_json(line).reading()
            except ValidationError as error:
                if not whole:
                    self.cut = 1
                    return
                raise _damaged(self._path, number, _why(error)) from error
            if reading.stamp_s < before_s:
                raise _damaged(self._path, number, "its stamp_s is before that of the line before")
            before_s = reading.stamp_s
            yield reading

    def close(self) -> None:
        """Close the file before the end."""
        self._lines.close()


def _as_json(values: dict[str, Any]) -> bytes:
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _header(path: str, number: int, line: bytes) -> Header:
    try:
        header = Header.model_validate_json(line)
    except ValidationError as error:
        raise TraceError(
            f"{path} line {number} is not the header of a trace ({_why(error)}); name a file that "
            "gemma-mtp record wrote."
        ) from error
    if header.version != VERSION:
        raise TraceError(
            f"{path} is a trace of version {header.version}, and this release reads version "
            f"{VERSION} alone; {RECORD_AGAIN}, or take the release that wrote it."
        )
    return header


def _lines(path: str) -> Generator[tuple[int, bytes, bool], None, None]:
    """(number from 1, line, whether it is whole) of the lines that are not blank."""
    number, rest = 0, b""
    try:
        if not Path(path).is_file():
            raise TraceError(
                f"{path} is no file; name one that gemma-mtp record wrote (telemetry.trace)."
            )
        with open(path, "rb") as plain, _unpacked(path, plain) as file:
            while chunk := _chunk(file):
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    number += 1
                    if line.strip():
                        yield number, line, True
                if len(rest) > LINE_LIMIT:
                    raise _damaged(path, number + 1, f"it is longer than {LINE_LIMIT} bytes")
    except (OSError, ValueError, zlib.error) as error:
        if isinstance(error, TraceError):
            raise
        said = getattr(error, "strerror", None) or str(error)
        raise TraceError(
            f"{path} cannot be read after line {number} ({said}); {RECORD_AGAIN}."
        ) from error
    if rest.strip():
        yield number + 1, rest, False


def _unpacked(path: str, file: IO[bytes]) -> Any:
    return gzip.GzipFile(fileobj=file, mode="rb") if Path(path).suffix == ".gz" else file


def _chunk(file: Any) -> bytes:
    try:
        chunk: bytes = file.read1(1 << 16)
        return chunk
    except EOFError:  # a compressed file that was not completed ends here
        return b""


def _damaged(path: str, number: int, why: str) -> TraceError:
    return TraceError(
        f"{path} line {number} is damaged ({why}); remove that line, or {RECORD_AGAIN}."
    )


def _why(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
