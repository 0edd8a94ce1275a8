# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Bounds that the command line states before it can load anything else."""

MAX_DRAFT = 7
"""Most tokens drafted in one round; a target pass has at most ``MAX_DRAFT + 1`` rows."""

DRAFT_KINDS = ("mtp", "draft_model", "prompt_lookup", "none")
"""Where drafts may come from: see ``api.DraftKind``."""
