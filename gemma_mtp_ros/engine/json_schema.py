# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of a JSON Schema before a grammar is made of it.

llguidance compiles Draft 2020-12 and refuses the keywords that it does not enforce; here is what
it would take and not hold, and bounds on size and depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..api import ErrorCode, RequestError

MAX_SCHEMA_BYTES = 64 * 1024
MAX_DEPTH = 64
"""Brackets within brackets of the schema's own text."""

SINGLE = (
    "items additionalItems additionalProperties contains else if not propertyNames then "
    "unevaluatedItems unevaluatedProperties"
).split()
LISTS = "allOf anyOf items oneOf prefixItems".split()
NAMED = "$defs definitions dependentSchemas patternProperties properties".split()
"""Keywords that hold a schema, a list of schemas, and schemas by name."""

COSTLY = frozenset("allOf multipleOf oneOf pattern patternProperties".split())
"""Keywords whose automata can grow as a product, or with a number in the schema."""

CHEAP_BYTES = 16 * 1024


class SchemaError(RequestError):
    """A schema that cannot be enforced."""

    code = ErrorCode.SCHEMA_UNSUPPORTED

    def __init__(self, reason: str) -> None:
        self.reason = reason.rstrip(". ")
        super().__init__(
            f"the response schema cannot be enforced ({self.reason}); remove or rewrite that part"
        )


def _depth(text: str) -> int:
    """Brackets within brackets, those in strings aside."""
    depth = deepest = 0
    quoted = escaped = False
    for char in text:
        if quoted:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                quoted = False
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]}":
            depth -= 1
    return deepest


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema, itself first; what is data (``enum``, ``const``) is not."""
    pending = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield node
        pending += [node[key] for key in SINGLE if key in node]
        for key in LISTS:
            if isinstance(node.get(key), list):
                pending += node[key]
        for key in NAMED:
            if isinstance(node.get(key), dict):
                pending += node[key].values()


def _refuse_unenforced(node: dict[str, Any]) -> None:
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(key), bool):
            raise SchemaError(f"{key} is a bound, not {str(node[key]).lower()} as in Draft 4")
    required = node.get("required")
    names = len(required) if isinstance(required, list) else 0
    free = node.get("additionalProperties", True) is not False or "patternProperties" in node
    least = node.get("minProperties")
    if free and isinstance(least, int) and least > names + 1:
        raise SchemaError(
            f"minProperties {least} asks for more than one property that is not required, and "
            "names outside properties may repeat"
        )


def parse(text: str) -> dict[str, Any]:
    """A schema from its JSON.

    :raises SchemaError: when it is no JSON, too large, too deep, or asks for what would not be
        held.
    """
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_SCHEMA_BYTES:
        raise SchemaError(f"it has {size} bytes, more than {MAX_SCHEMA_BYTES}")
    deepest = _depth(text)
    if deepest > MAX_DEPTH:
        raise SchemaError(f"it is {deepest} levels deep, more than {MAX_DEPTH}")
    try:
        schema = json.loads(text, parse_constant=_no_number)
    except ValueError as error:
        raise SchemaError(f"it is not JSON: {error}") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise SchemaError(f"a schema is an object, not {json.dumps(schema)[:40]}")
    for node in nodes(schema):
        _refuse_unenforced(node)
    if "x-guidance" in schema:
        raise SchemaError("x-guidance is not for a goal to set")
    return schema


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def may_be_costly(text: str, schema: dict[str, Any]) -> bool:
    """Whether to compile a schema in a process that can be stopped before it is done here."""
    return len(text) > CHEAP_BYTES or any(COSTLY & node.keys() for node in nodes(schema))
