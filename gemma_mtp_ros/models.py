# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of models, for the node and the command line alike."""

from __future__ import annotations

from . import demo

DEMO = "demo"
"""The name of the embedded pair."""


def resolve_pair(model: str, drafter: str) -> tuple[str, str]:
    """Return target and drafter with :data:`DEMO` replaced by the embedded folders.

    The embedded target takes the embedded drafter where no other is named. All else stays as it
    is; the engine checks folders and pairing.
    """
    if model == DEMO and not drafter:
        drafter = DEMO
    return (
        str(demo.TARGET_DIR) if model == DEMO else model,
        str(demo.DRAFTER_DIR) if drafter == DEMO else drafter,
    )
