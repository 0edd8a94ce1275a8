# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of models, for the node and the command line alike."""

from __future__ import annotations

from . import demo

DEMO = "demo"
"""The name of the embedded pair."""

NO_DRAFTER = "none"
"""A drafter of this name is none at all."""

RELEASED = ("E2B", "E4B", "12B", "26B-A4B", "31B")
"""Sizes of the released pairs."""


def released_pair(size: str) -> tuple[str, str] | None:
    """The repositories of target and drafter of a released size, in any case; None: no such."""
    found = next((known for known in RELEASED if known.lower() == size.lower()), None)
    if found is None:
        return None
    return f"google/gemma-4-{found}-it", f"google/gemma-4-{found}-it-assistant"


def drafter_of(target: str) -> str | None:
    """The repository of a released target's drafter; None: this is no released target."""
    pairs = [pair for pair in map(released_pair, RELEASED) if pair is not None]
    return next((drafter for name, drafter in pairs if name.lower() == target.lower()), None)


def split_revision(name: str) -> tuple[str, str | None]:
    """``owner/name@revision`` as repository and branch, tag or commit; None: not given."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def resolve_pair(model: str, drafter: str, kind: str = "mtp") -> tuple[str, str]:
    """Return the names of target and drafter for the engine; an empty drafter there is none.

    :data:`DEMO` becomes the folders of the embedded pair, as a draft model its target's. An empty
    `drafter` is the embedded one with the embedded target and drafts of the `kind` mtp, and none
    else; :data:`NO_DRAFTER` is none with all. Any other name stays as it is; the engine checks
    folders and pairing.
    """
    if model == DEMO and not drafter and kind == "mtp":
        drafter = DEMO
    if drafter == NO_DRAFTER:
        drafter = ""
    embedded = demo.TARGET_DIR if kind == "draft_model" else demo.DRAFTER_DIR
    return (
        str(demo.TARGET_DIR) if model == DEMO else model,
        str(embedded) if drafter == DEMO else drafter,
    )
