# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""A source of readings that also says how the engine does, which the watchdog's policy wants."""

from __future__ import annotations

import dataclasses

from gemma_mtp_ros.ros.meter import Meter
from gemma_mtp_ros.telemetry.reading import Reading
from gemma_mtp_ros.telemetry.sources import Source


class AttendedSource:
    """`source`, with the engine's figures from `meter` put into each reading."""

    def __init__(self, source: Source, meter: Meter) -> None:
        self._source = source
        self._meter = meter

    @property
    def name(self) -> str:
        """Of the source."""
        return self._source.name

    def read(self) -> Reading:
        """A reading of the source, completed. Raises what the source raises."""
        reading = self._source.read()
        recent = self._meter.recent(reading.stamp_s)
        return dataclasses.replace(
            reading,
            round_s=recent.round_s,
            draft_length=recent.draft_length,
            tokens_per_s=recent.tokens_per_s,
        )

    def close(self) -> None:
        """Give back what the source holds."""
        self._source.close()
