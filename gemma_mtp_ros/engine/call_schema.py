# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of tools: checked when they are declared, and held against what was called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from llguidance import LLMatcher, LLTokenizer
from referencing import Registry

from ..api import ErrorCode, RequestError
from .call_grammar import resolve
from .grammar_state import reason_of
from .grammar_trial import LIMITS
from .json_schema import MAX_SCHEMA_BYTES, nodes


def normal(schema: Any) -> Any:
    """A schema in JSON Schema's own words.

    Tools are also declared as OpenAPI has it, types in capitals and ``nullable``.
    """
    if isinstance(schema, list):
        return [normal(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: value if key in ("enum", "const", "default", "examples") else normal(value)
        for key, value in schema.items()
    }
    kind = found.get("type")
    if isinstance(kind, str):
        found["type"] = kind.lower()
    elif isinstance(kind, list):
        found["type"] = [each.lower() if isinstance(each, str) else each for each in kind]
    if found.get("nullable") is True and isinstance(kind, str):
        found["type"] = [found["type"], "null"]
        if isinstance(found.get("enum"), list) and None not in found["enum"]:
            found["enum"] = [*found["enum"], None]
    return found


class ArgumentSchemas:
    """The schemas of the arguments of a goal's tools.

    :param declared: by the name of the function.
    :raises RequestError: naming the function and what is wrong with its schema; also for too much.
    """

    def __init__(self, declared: Mapping[str, Any]) -> None:
        size = sum(len(json.dumps(schema)) for schema in declared.values())
        if size > MAX_SCHEMA_BYTES:
            raise RequestError(
                f"the parameters of all tools have {size} characters, more than "
                f"{MAX_SCHEMA_BYTES}; declare fewer or simpler ones",
                ErrorCode.SCHEMA_UNSUPPORTED,
            )
        self.schemas = {name: normal(schema) for name, schema in declared.items()}
        self._validators = {name: _validator(name, schema) for name, schema in self.schemas.items()}

    def violation(self, name: str, arguments: Any) -> str:
        """What is wrong with the arguments of a call; empty: nothing.

        :param arguments: parsed.
        """
        try:
            error = best_match(self._validators[name].iter_errors(arguments))
        except RecursionError:
            return "their schema refers to itself without end"
        if error is None:
            return ""
        where = error.json_path.removeprefix("$").lstrip(".")
        return f"{where}: {_short(error.message)}" if where else _short(error.message)


def _validator(name: str, schema: Any) -> Validator:
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        where = "".join(f".{part}" for part in error.absolute_path)
        raise RequestError(
            f"the parameters of tool {name!r} are no JSON Schema "
            f"(parameters{where}: {_short(error.message)}); correct them"
        ) from error
    for node in nodes(schema):
        reason = _unsupported(schema, node)
        if reason:
            raise RequestError(
                f"the parameters of tool {name!r} cannot be held to their schema ({reason}); "
                "rewrite that part",
                ErrorCode.SCHEMA_UNSUPPORTED,
            )
    # With a registry of its own it does not look for anything over the network.
    made: Validator = extend(kind, {"pattern": _pattern})(schema, registry=Registry())
    return made


def _unsupported(root: Any, node: dict[str, Any]) -> str:
    """Why a part of a schema is not taken; empty: it is."""
    for key in ("$ref", "$dynamicRef", "$recursiveRef"):
        try:
            resolve(root, str(node.get(key, "#")))
        except KeyError:
            return f"{key} {node[key]!r} is no part of it; write #/ and the path within it"
    if "patternProperties" in node:
        return "patternProperties is not supported"
    pattern = node.get("pattern")
    wrong = "" if pattern is None else _matcher(pattern).get_error()
    return f"pattern {pattern!r}: {reason_of(wrong)}" if wrong else ""


def _matcher(pattern: str) -> LLMatcher:
    """A matcher of JSON strings that hold a pattern.

    It takes one step a byte, where Python's own may take for ever.
    """
    body = json.dumps({"type": "string", "pattern": pattern})
    return LLMatcher(LLTokenizer("byte"), f"start: %json {body}", log_level=0, limits=LIMITS)


def _pattern(
    validator: Validator, pattern: str, value: Any, schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    matcher = _matcher(pattern)
    written = list(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    if matcher.try_consume_tokens(written) < len(written) or not matcher.is_accepting():
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _short(message: str) -> str:
    message = " ".join(message.split())
    return message if len(message) <= 200 else f"{message[:197]}..."
