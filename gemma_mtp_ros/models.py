# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of models, for the node and the command line alike."""

from __future__ import annotations

from . import demo

DEMO = "demo"
"""The name of the embedded pair."""

NO_DRAFTER = "none"
"""A drafter of this name is none at all."""


def resolve_pair(model: str, drafter: str) -> tuple[str, str]:
    """Return the names of target and drafter for the engine; an empty drafter there is none.

    :data:`DEMO` becomes the folders of the embedded pair. An empty `drafter` is the embedded one
    with the embedded target, and none with any other; :data:`NO_DRAFTER` is none with all. Any
    other name stays as it is; the engine checks folders and pairing.
    """
    if model == DEMO and not drafter:
        drafter = DEMO
    if drafter == NO_DRAFTER:
        drafter = ""
    return (
        str(demo.TARGET_DIR) if model == DEMO else model,
        str(demo.DRAFTER_DIR) if drafter == DEMO else drafter,
    )
