# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The control block: memory that host and engine share, so that a round costs no message.

The host writes the control record (draft cap, pause, halt), the engine its heartbeat. The record
is kept twice. A write goes to the older of the two slots, with a sequence number and a CRC over all
of it; a read takes the slot with the higher number among those whose CRC holds. So a read is not
torn on a CPU that reorders stores (Arm does), and never waits for a writer that was stopped half
way.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import struct
import threading
import zlib
from typing import Any, NamedTuple

from .api import MAX_DRAFT

REASON_BYTES = 400
MODE_BYTES = 32
SIZE = mmap.PAGESIZE

_RECORD = struct.Struct(f"<Qdddddiii?{REASON_BYTES}s{MODE_BYTES}s")
_CRC = struct.Struct("<I")
_SLOTS = (0, 512)
_BEATS = struct.Struct("<Q")
_BEATS_AT = 1024
_STAGE = struct.Struct("<I")
_STAGE_AT = 1088
_READ_ATTEMPTS = 1000

assert _RECORD.size + _CRC.size <= _SLOTS[1]


class Stage(enum.IntEnum):
    """What the engine was doing at its latest heartbeat."""

    STARTING = 0
    LOADING = 1
    IDLE = 2
    PREFILL = 3
    DECODING = 4
    PAUSED = 5


class Control(NamedTuple):
    """What the engine reads once a round."""

    draft_cap: int = MAX_DRAFT
    """Most tokens to draft, by the watchdog."""
    pause_s: float = 0.0
    """Pause before a prefill chunk or round."""
    halt: bool = False
    """End the running request with THERMAL_LIMIT."""
    halt_reason: str = ""
    """Sentence for that request; at most :data:`REASON_BYTES` bytes, cut if longer."""
    stamp_s: float = math.inf
    """CLOCK_MONOTONIC time of the watchdog's decision; infinity: no watchdog, never stale."""
    draft_max_length: int = MAX_DRAFT
    """Most tokens to draft, by the parameter ``draft.max_length``."""
    stale_after_s: float = 2.0
    stale_draft_cap: int = 0
    """A decision older than this (s) is not trusted: this many tokens are drafted at most."""
    max_duty_cycle: float = 1.0
    """Largest share of the time in which rounds run."""
    power_mode: str = ""
    """The board's power mode, by which the engine remembers its costs; empty: unknown. At most
    :data:`MODE_BYTES` bytes, cut if longer."""
    longest_pause_s: float = math.inf
    """Longest pause that ``max_duty_cycle`` costs after a chunk or round; the rest is let off."""

    def draft_limit(self, now_s: float) -> int:
        """Most tokens to draft in a round that begins at ``now_s`` (CLOCK_MONOTONIC)."""
        fresh = now_s - self.stamp_s <= self.stale_after_s
        cap = self.draft_cap if fresh else self.stale_draft_cap
        return max(0, min(self.draft_max_length, cap, MAX_DRAFT))


def _cut(text: str, size: int) -> bytes:
    """A text's bytes, cut between characters."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()


def _text(packed: bytes) -> str:
    return packed.rstrip(b"\0").decode("utf-8", "replace")


def _pack(sequence: int, control: Control) -> bytes:
    body = _RECORD.pack(
        sequence,
        control.pause_s,
        control.stamp_s,
        control.stale_after_s,
        control.max_duty_cycle,
        control.longest_pause_s,
        control.draft_cap,
        control.draft_max_length,
        control.stale_draft_cap,
        control.halt,
        _cut(control.halt_reason, REASON_BYTES),
        _cut(control.power_mode, MODE_BYTES),
    )
    return body + _CRC.pack(zlib.crc32(body))


def _unpack(slot: bytes) -> tuple[int, Control] | None:
    """Return number and record of a slot; None while it is being written, or never was."""
    body, (crc,) = slot[: _RECORD.size], _CRC.unpack_from(slot, _RECORD.size)
    if zlib.crc32(body) != crc:
        return None
    sequence, pause, stamp, stale_after, duty, longest_pause, *rest = _RECORD.unpack(body)
    cap, longest, stale_cap, halt, reason, mode = rest
    return sequence, Control(
        draft_cap=cap,
        pause_s=pause,
        halt=halt,
        halt_reason=_text(reason),
        stamp_s=stamp,
        draft_max_length=longest,
        stale_after_s=stale_after,
        stale_draft_cap=stale_cap,
        max_duty_cycle=duty,
        power_mode=_text(mode),
        longest_pause_s=longest_pause,
    )


class ControlBlock:
    """One mapping of the block. The host writes the record, the engine beats; both read.

    Writing from two threads needs a lock of the caller's.
    """

    def __init__(self, fd: int) -> None:
        """Map the block behind ``fd`` (which stays the caller's to close)."""
        self._map = mmap.mmap(fd, SIZE)
        self._sequence = 0
        self._beats = 0
        self._latest = Control()

    @classmethod
    def create(cls, control: Control) -> tuple[ControlBlock, int]:
        """Make a block that holds ``control``; return it and the descriptor to hand to the engine.

        It is a memfd: it has no name in any file system, and ends with its last user.
        """
        fd = os.memfd_create("gemma_mtp_control", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, SIZE)
            block = cls(fd)
            block.write(control)
        except BaseException:
            os.close(fd)
            raise
        return block, fd

    def write(self, control: Control) -> None:
        """Publish a record."""
        self._sequence += 1
        data = _pack(self._sequence, control)
        at = _SLOTS[self._sequence % 2]
        self._map[at : at + len(data)] = data

    def read(self) -> Control:
        """Return the latest record; one that a stalled writer never finished is not seen."""
        length = _RECORD.size + _CRC.size
        for _ in range(_READ_ATTEMPTS):
            found = [_unpack(self._map[at : at + length]) for at in _SLOTS]
            whole = [record for record in found if record is not None]
            if whole:
                self._latest = max(whole, key=lambda record: record[0])[1]
                break
        return self._latest

    def beat(self, stage: Stage) -> None:
        """Show that the engine is alive, and what it is doing."""
        self._beats += 1
        _STAGE.pack_into(self._map, _STAGE_AT, stage)
        _BEATS.pack_into(self._map, _BEATS_AT, self._beats)

    def heartbeat(self) -> int:
        """Number of beats so far."""
        return int(_BEATS.unpack_from(self._map, _BEATS_AT)[0])

    def stage(self) -> Stage:
        """What the engine was doing at its latest beat."""
        return Stage(_STAGE.unpack_from(self._map, _STAGE_AT)[0])

    def close(self) -> None:
        """Unmap the block; idempotent."""
        self._map.close()


class ControlDesk:
    """The control record as the host has it, and the block of the engine that reads it, if any."""

    def __init__(self, control: Control) -> None:
        self._lock = threading.Lock()
        self._control = control
        self._block: ControlBlock | None = None

    @property
    def control(self) -> Control:
        """The record as last written."""
        return self._control

    def update(self, **changes: Any) -> None:
        """Change fields of the record."""
        with self._lock:
            self._control = self._control._replace(**changes)
            if self._block is not None:
                self._block.write(self._control)

    def attach(self, block: ControlBlock | None) -> None:
        """Write to ``block`` from now on; None: to none."""
        with self._lock:
            self._block = block
            if block is not None:
                block.write(self._control)
