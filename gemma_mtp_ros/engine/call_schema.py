# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas of tools: checked when they are declared, and held against what was called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from ..api import ErrorCode, RequestError
from .call_grammar import resolve
from .json_schema import nodes


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
    :raises RequestError: naming the function and what is wrong with its schema.
    """

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self.schemas = {name: normal(schema) for name, schema in declared.items()}
        self._validators = {name: _validator(name, schema) for name, schema in self.schemas.items()}

    def violation(self, name: str, arguments: Any) -> str:
        """What is wrong with the arguments of a call; empty: nothing.

        :param arguments: parsed.
        """
        error = best_match(self._validators[name].iter_errors(arguments))
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
    for reference in _references(schema):
        try:
            resolve(schema, reference)
        except KeyError:
            raise RequestError(
                f"the parameters of tool {name!r} refer to {reference!r}, which is no part of "
                "them; write #/ and the path within them",
                ErrorCode.SCHEMA_UNSUPPORTED,
            ) from None
    # With a registry of its own it does not look for anything over the network.
    made: Validator = kind(schema, registry=Registry())
    return made


def _references(schema: Any) -> Iterator[str]:
    for node in nodes(schema):
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            if key in node:
                yield str(node[key])


def _short(message: str) -> str:
    message = " ".join(message.split())
    return message if len(message) <= 200 else f"{message[:197]}..."
