# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""docs/failures.md says what the code says, and all that doctor, fetch and goals can say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_mtp_ros.api import ErrorCode
from gemma_mtp_ros.cli.doctor import CHECKS

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "gemma_mtp_ros"
PAGE = (REPOSITORY / "docs/failures.md").read_text("utf-8")
VALUE = "…"


def shown(node: ast.AST) -> str | None:
    """A string of the code with … for each value; None: it is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(shown(part) or VALUE for part in node.values)
    return None


def strings(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        text = shown(node)
        if text:
            yield text


SAID = [text for file in sorted(PACKAGE.rglob("*.py")) for text in strings(file)]


def rows() -> Iterator[list[str]]:
    """Cells of the tables, their heads aside."""
    for line in PAGE.splitlines():
        if line.startswith("| ") and not re.match(r"\| (message|code) \|", line):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def quoted() -> list[str]:
    """What the tables quote: in the first column, and of codes in the second."""
    found = []
    for cells in rows():
        column = cells[1] if re.match(r"[A-Z_]+ \d+$", cells[0]) else cells[0]
        found += re.findall(r"`([^`]+)`", column)
    return found


def core(quote: str) -> str:
    """Without the values at its ends."""
    return quote.strip(VALUE + " ")


@pytest.mark.parametrize("quote", sorted(set(quoted())))
def test_what_the_page_quotes_is_said_by_the_code(quote: str) -> None:
    assert len(core(quote)) >= 8
    assert any(core(quote) in text for text in SAID)


def test_the_test_would_see_a_sentence_that_is_gone() -> None:
    assert not any("the moon is made of cheese" in text for text in SAID)
    assert len(quoted()) > 100


def literal_messages(file: str, callers: set[str]) -> Iterator[str]:
    """First arguments, as far as they are written out, of the calls named."""
    for node in ast.walk(ast.parse((PACKAGE / file).read_text("utf-8"))):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            text = shown(node.args[0])
            if name in callers and text:
                yield text


@pytest.mark.parametrize(
    ("file", "callers"),
    [
        ("cli/hub.py", {"FetchError"}),
        ("cli/fetch.py", {"FetchError", "RequestError"}),
        ("cli/software.py", {"error", "warning"}),
        ("cli/hardware.py", {"error", "warning"}),
        ("cli/finding.py", {"error", "warning"}),
    ],
)
def test_the_page_has_all_that_fetch_and_doctor_can_say(file: str, callers: set[str]) -> None:
    said = list(literal_messages(file, callers))
    assert said
    cores = [core(quote) for quote in quoted()]
    missing = [text for text in said if not any(quote in text for quote in cores)]
    assert not [text for text in missing if len(core(text)) > 2]


def test_every_check_of_the_doctor_is_there() -> None:
    named = {cells[0].split(":")[0] for cells in rows()}
    assert {check.name for check in CHECKS} <= named


def test_every_error_code_is_there_with_its_number() -> None:
    found = {cells[0] for cells in rows() if re.match(r"[A-Z_]+ \d+$", cells[0])}
    assert found == {f"{code.name} {code.value}" for code in ErrorCode}
