# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""How many tokens to draft in the next round. Pure."""

from __future__ import annotations

from ..api import MAX_DRAFT


def draft_length(cap: int, tokens_left: int, context_left: int) -> int:
    """Draft length of a round.

    :param cap: the least of ``draft.max_length`` and the watchdog's cap.
    :param tokens_left: tokens that the completion may still take; a round decides one more than it
        drafts.
    :param context_left: rows that the context may still take; a round writes one more than it
        drafts.
    """
    return max(0, min(cap, MAX_DRAFT, tokens_left - 1, context_left - 1))
