# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Reading the plan out of an answer, and comparing it with the one that was wanted.

Plain Python, for the recipe, the tests and the benchmarks alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

Plan = Sequence[dict[str, Any]]


class PlanCheck(NamedTuple):
    """What an answer is worth.

    valid_json: the answer ends in one JSON object ``{"plan": [...]}`` whose steps are objects
        that each name an action. exact: and these steps are the expected ones, in order.
    """

    valid_json: bool
    exact: bool


def extract_plan(text: str) -> list[dict[str, Any]] | None:
    """Return the steps of the plan that ends `text`, or None if there is no well-formed one.

    The JSON object starts at the first ``{``; only white space may follow it.
    """
    start = text.find("{")
    if start < 0:
        return None
    try:
        document = json.loads(text[start:])
    except ValueError:
        return None
    steps = document.get("plan") if isinstance(document, dict) else None
    if not isinstance(steps, list):
        return None
    if not all(isinstance(step, dict) and isinstance(step.get("action"), str) for step in steps):
        return None
    return steps


def plan_matches(text: str, expected_plan: Plan) -> PlanCheck:
    """Compare the plan in the answer `text` with `expected_plan`: same steps, order and values.

    The order of the keys within a step does not count.
    """
    steps = extract_plan(text)
    return PlanCheck(valid_json=steps is not None, exact=steps == list(expected_plan))
