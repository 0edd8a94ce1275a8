# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The analyzers of examples/nav2/diagnostics.yaml against what the node publishes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from driver import REPOSITORY, WAIT_S, Driver

DOCUMENT = yaml.safe_load((REPOSITORY / "examples/nav2/diagnostics.yaml").read_text())
ANALYZERS: dict[str, Any] = {
    name: value
    for name, value in DOCUMENT["analyzers"]["ros__parameters"].items()
    if isinstance(value, dict)
}


def matches(analyzer: dict[str, Any], name: str) -> bool:
    """GenericAnalyzer::match: equal to an expected name, or begins with or contains a string."""
    begins = [*analyzer.get("startswith", ()), *analyzer.get("find_and_remove_prefix", ())]
    return (
        name in analyzer.get("expected", ())
        or any(name.startswith(prefix) for prefix in begins)
        or any(part in name for part in analyzer.get("contains", ()))
    )


@pytest.mark.usefixtures("active")
def test_every_published_status_has_one_analyzer(driver: Driver) -> None:
    driver.wait_until(lambda: bool(driver.diagnostics), WAIT_S, "a message on /diagnostics")
    published = {status.name for status in driver.diagnostics[-1].status}
    assert published
    for name in published:
        assert [key for key, analyzer in ANALYZERS.items() if matches(analyzer, name)], name
    expected = {name for analyzer in ANALYZERS.values() for name in analyzer["expected"]}
    assert expected == published  # an expected name that nobody publishes is an error for ever
    assert not matches(ANALYZERS["language_model"], "other_node: engine")
