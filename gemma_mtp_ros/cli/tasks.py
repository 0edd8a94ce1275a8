# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of tasks that ``gemma-mtp bench --drafters`` asks, and what was claimed of them."""

from __future__ import annotations

import json
from pathlib import Path

ERRANDS = "robot errands"
"""What the embedded pair was trained on; asked of it alone."""

CLAIMED = {
    "code": (4.0, 5.5),
    "technical question": (3.8, 5.0),
    "creative": (3.2, 4.3),
    "reasoning": (2.8, 3.8),
    "templated": (5.0, 7.0),
    "instruction": (3.8, 5.0),
}
"""Tokens per target pass that a lecture of 2026 claims for MTP drafters, from and to; of the other
kinds of tasks it says nothing. docs/drafters.md sets claims and measurements side by side."""


def tasks() -> dict[str, list[str]]:
    """Prompts by kind of task; the same document stands in those that ask about one."""
    raw = json.loads(Path(__file__).with_name("tasks.json").read_text(encoding="utf-8"))
    document = raw.pop("DOCUMENT")
    return {
        kind: [text.replace("DOCUMENT", document) for text in texts] for kind, texts in raw.items()
    }
