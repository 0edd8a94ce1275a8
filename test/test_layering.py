# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The layers of docs/architecture.md, read from the imports of every module."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "gemma_mtp_ros"

# Modules beside the folders. What host and engine both speak is the border.
TOP_LEVEL = {
    "__init__": "border",
    "__main__": "cli",
    "__version__": "border",
    "api": "border",
    "control": "border",
    "framing": "border",
    "limits": "border",
    "models": "border",
    "terminal": "border",
    "backlog": "host",
    "calls": "host",
    "host": "host",
    "process": "host",
    "scheduling": "host",
    "supervisor": "host",
    "vigil": "host",
}
ALLOWED = {
    "border": {"border"},
    "engine": {"border"},
    "host": {"border"},
    "telemetry": set(),
    "ros": {"border", "host", "telemetry", "generated"},
    "demo": {"border", "engine"},
    "cli": {"border"},
}
# What one command of the command line needs is loaded when that command runs: cli/main.py imports
# the module of a command, and whatever is heavy, inside a function.
ALLOWED_LAZILY = {"cli": {"host", "engine", "telemetry", "ros", "demo", "generated"}}
# The embedded pair: where it lies, and how its plans are read. Neither loads anything heavy.
EXCEPTIONS = {("models", "demo"), ("ros.demo", "demo")}

ROS = {"action_msgs", "builtin_interfaces", "diagnostic_msgs", "lifecycle_msgs", "rcl_interfaces"}
ROS |= {"rclpy", "sensor_msgs", "std_msgs", "unique_identifier_msgs", "ament_index_python", "bond"}
TORCH = {"torch", "transformers"}
GENERATED = {"action", "msg", "srv"}


class Import(NamedTuple):
    module: str  # importing module, without the package's name: "engine.decode"
    target: str  # absolute name of what is imported
    lazy: bool  # inside a function


def layer(module: str) -> str:
    head = module.split(".")[0]
    if head in GENERATED:
        return "generated"
    return head if (PACKAGE / head).is_dir() else TOP_LEVEL.get(head, head)


def names(node: ast.Import | ast.ImportFrom, package: list[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = package[: len(package) - node.level + 1] if node.level else []
    base = base + (node.module.split(".") if node.module else [])
    if base == ["gemma_mtp_ros"]:  # from . import x: what counts is x
        yield from (f"gemma_mtp_ros.{alias.name}" for alias in node.names)
    else:
        yield ".".join(base)


def imports_of(module: str, tree: ast.AST, is_package: bool) -> Iterator[Import]:
    package = ["gemma_mtp_ros", *module.split(".")]
    package = package if is_package else package[:-1]
    in_function = {
        inner
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for target in names(node, package):
                yield Import(module, target, node in in_function)


def all_imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        module = ".".join(parts[:-1] if is_package else parts)
        found += imports_of(module, ast.parse(path.read_text()), is_package)
    return found


def violation(found: Import) -> str | None:
    """Why an import breaks the layers, or None."""
    source = layer(found.module)
    outside, _, inside = found.target.partition(".")
    allowed = ALLOWED.get(source)
    if allowed is None:
        return f"{found.module} belongs to no layer; add it to this test and to the architecture"
    late = found.lazy or (source == "cli" and found.module != "cli.main")
    lazily = ALLOWED_LAZILY.get(source, set()) if late else set()
    if outside == "gemma_mtp_ros":
        target = layer(inside) if inside else "border"
        within = target == source and (found.lazy or found.module != "cli.main")
        good = within or target in allowed | lazily
        good = good or (found.module, target) in EXCEPTIONS
    elif outside in ROS:
        good = source == "ros" or "ros" in lazily
    elif outside in TORCH:
        good = source == "engine" or found.module == "demo.train" or "engine" in lazily
    else:
        good = True
    return None if good else f"{found.module} imports {found.target}"


def test_imports_follow_the_layers() -> None:
    found = all_imports()
    assert len(found) > 100
    wrong = [why for why in map(violation, found) if why]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "found",
    [
        Import("host", "torch", False),
        Import("host", "gemma_mtp_ros.engine.decode", True),
        Import("telemetry.policy", "gemma_mtp_ros.api", False),
        Import("telemetry.watchdog", "rclpy.node", False),
        Import("engine.worker", "rclpy", True),
        Import("engine.decode", "gemma_mtp_ros.telemetry.policy", False),
        Import("ros.node", "gemma_mtp_ros.engine.decode", False),
        Import("ros.node", "torch", True),
        Import("demo.corpus", "torch", False),
        Import("cli.main", "torch", False),
        Import("cli.main", "gemma_mtp_ros.ros.client", False),
        Import("cli.main", "gemma_mtp_ros.cli.ask", False),
        Import("api", "gemma_mtp_ros.host", False),
        Import("novelty", "json", False),
    ],
)
def test_each_kind_of_breach_is_seen(found: Import) -> None:
    assert violation(found)


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from ..api import X\nfrom . import y\nfrom .. import host\nimport a.b")
    seen = [found.target for found in imports_of("engine.decode", tree, is_package=False)]
    assert seen == ["gemma_mtp_ros.api", "gemma_mtp_ros.engine", "gemma_mtp_ros.host", "a.b"]


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("gemma_mtp_ros.api", {"torch", "transformers", "rclpy"}),
        ("gemma_mtp_ros.host", {"torch", "transformers", "rclpy"}),
        ("gemma_mtp_ros.telemetry.watchdog", {"torch", "transformers", "rclpy", "pydantic"}),
        ("gemma_mtp_ros.engine.worker", {"rclpy"}),
        ("gemma_mtp_ros.cli.main", {"torch", "transformers", "rclpy", "pydantic", "rich"}),
        ("gemma_mtp_ros.cli.doctor", {"torch", "transformers", "rclpy", "pydantic", "rich"}),
    ],
)
def test_importing_loads_no_more_than_it_may(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    path = f"{PACKAGE.parent}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert unwanted & set(done.stdout.split()) == set()
