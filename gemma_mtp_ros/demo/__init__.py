# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded pair: a small Gemma 4 target with its MTP drafter that plans a robot's errands.

Importing this module costs nothing: it only says where the two Hugging Face folders are.
"""

from __future__ import annotations

from pathlib import Path

PAIR_DIR = Path(__file__).resolve().parent / "pair"
TARGET_DIR = PAIR_DIR / "target"
DRAFTER_DIR = PAIR_DIR / "drafter"

__all__ = ["DRAFTER_DIR", "PAIR_DIR", "TARGET_DIR"]
