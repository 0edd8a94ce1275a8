# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From the JSON Schemas of tools to a grammar of calls in Gemma 4's notation.

::

    call:name{key:<|"|>text<|"|>,list:[1,2.5,true],nested:{inner:null}}

The grammar allows all that the schemas do, and more: a keyword that it does not know leaves the
value to what the others say. What is read is validated against the schemas themselves.

Pure: the grammar is text, in llguidance's dialect of Lark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .channels import CALL_PREFIX, QUOTE

ANY_ORDER = 6
"""Properties of an object that may come in any order; more than that come in the order of their
names, in which Gemma 4's template declares them."""

MOST = 1000
"""Largest number of characters or items that the grammar counts."""

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
NUMBERS = {"whitespace_flexible": False, "lenient": True}

_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_FIXED = r"""
string: q TEXT q
TEXT: /(?s:.)*/ & ~SPELT
SPELT: /(?s:.)*<\|"\|>(?s:.)*/
integer: /-?(0|[1-9][0-9]{0,17})/
number: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?/
boolean: "true" | "false"
null: "null"
KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/
array: "[" (any ("," any)*)? "]"
object: "{" (pair ("," pair)*)? "}"
pair: KEY ":" any
any: string | number | boolean | null | array | object
"""
"""Values about which nothing is known. Digits are so few that a number is finite."""

KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")


class Impossible(ValueError):
    """A value of which no text can be written."""


def call_grammar(schemas: Mapping[str, Any], quote: str) -> str:
    """A grammar of one call, the markers around it aside.

    :param schemas: of each function's arguments, whose references have been found to exist.
    :param quote: how the grammar writes the mark around strings.
    """
    writer = _Writer(quote)
    functions = []
    for name in sorted(schemas):
        arguments = writer.arguments(schemas[name])
        functions.append(f"{_literal(name)} {arguments}")
    start = f"start: {_literal(CALL_PREFIX)} {_either(functions)}"
    return "\n".join([start, f"q: {quote}", *writer.rules]) + _FIXED


def resolve(root: Any, reference: str) -> Any:
    """What a reference within a schema (``#/...``) points at.

    :raises KeyError: when there is nothing, or it is no such reference.
    """
    if reference != "#" and not reference.startswith("#/"):
        raise KeyError(reference)
    found = root
    for part in reference.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdigit() and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise KeyError(reference)
    return found


def _literal(text: str) -> str:
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    return "/" + "".join(f"\\x{{{ord(char):x}}}" for char in text) + "/"


def _either(choices: Iterable[str]) -> str:
    found = list(dict.fromkeys(choices))
    if not found:
        raise Impossible
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"


def _count(schema: Mapping[str, Any], key: str) -> int | None:
    value = schema.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class _Writer:
    """Writes rules, and expressions that stand for values."""

    def __init__(self, quote: str) -> None:
        self.quote = quote
        self.rules: list[str] = []
        self._root: Any = None
        self._referred: dict[str, str] = {}
        self._named = 0

    def arguments(self, schema: Any) -> str:
        """The object of a function's arguments."""
        self._root = schema
        self._referred = {}
        before = len(self.rules)
        try:
            return self._value({"type": "object", **schema} if isinstance(schema, dict) else schema)
        except Impossible:
            del self.rules[before:]
            return "object"

    def _rule(self, expression: str) -> str:
        name = self._name("v")
        self.rules.append(f"{name}: {expression}")
        return name

    def _name(self, prefix: str) -> str:
        self._named += 1
        return f"{prefix}{self._named}"

    def _value(self, schema: Any) -> str:
        """An expression for the values that a schema allows, and maybe others.

        :raises Impossible: when it allows none that can be written.
        """
        if schema is False:
            raise Impossible
        if not isinstance(schema, dict):
            return "any"
        if "const" in schema:
            return self._constant(schema["const"])
        if "enum" in schema:
            return self._one_of(map(self._constant_or_none, schema["enum"]))
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        for key in ("anyOf", "oneOf"):
            if key in schema and not {"properties", "items"} & schema.keys():
                return self._one_of(map(self._value_or_none, schema[key]))
        if len(schema.get("allOf", ())) == 1:
            return self._value({**schema["allOf"][0], **_without(schema, "allOf")})
        kinds = schema.get("type") or self._kinds(schema)
        return self._one_of(
            self._of_kind_or_none(kind, schema)
            for kind in ([kinds] if isinstance(kinds, str) else kinds)
        )

    @staticmethod
    def _kinds(schema: Mapping[str, Any]) -> list[str]:
        if "properties" in schema:
            return ["object"]
        return ["array"] if "items" in schema or "prefixItems" in schema else ["any"]

    def _one_of(self, choices: Iterable[str | None]) -> str:
        return _either(choice for choice in choices if choice is not None)

    def _value_or_none(self, schema: Any) -> str | None:
        try:
            return self._value(schema)
        except Impossible:
            return None

    def _of_kind_or_none(self, kind: str, schema: Mapping[str, Any]) -> str | None:
        try:
            return self._of_kind(kind, schema)
        except Impossible:
            return None

    def _constant_or_none(self, value: Any) -> str | None:
        try:
            return self._constant(value)
        except Impossible:
            return None

    def _reference(self, reference: str) -> str:
        name = self._referred.get(reference)
        if name is None:
            name = self._referred[reference] = self._name("r")
            self.rules.append(f"{name}: {self._value(resolve(self._root, reference))}")
        return name

    def _of_kind(self, kind: str, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            return self._string(schema)
        if kind in ("integer", "number"):
            bounds = {key: schema[key] for key in BOUNDS if key in schema}
            if not bounds:
                return kind
            body = json.dumps({"type": kind, **bounds, "x-guidance": NUMBERS})
            return self._rule(f"%json {body}")
        if kind == "array":
            return self._array(schema)
        if kind == "object":
            return self._object(schema)
        return kind

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            if QUOTE in value:
                raise Impossible
            return f"q {_literal(value)} q" if value else "q q"
        if isinstance(value, list):
            return " ".join(['"["', _joined(map(self._constant, value)), '"]"'])
        if isinstance(value, dict):
            pairs = (f"{self._key(k)} {self._constant(v)}" for k, v in value.items())
            return " ".join(['"{"', _joined(pairs), '"}"'])
        return _literal(json.dumps(value))

    def _key(self, name: str) -> str:
        if _BARE_KEY.fullmatch(name):
            return _literal(f"{name}:")
        return f'{self._constant(name)} ":"'

    def _string(self, schema: Mapping[str, Any]) -> str:
        least = _count(schema, "minLength") or 0
        most = _count(schema, "maxLength")
        if most is not None and most < least:
            raise Impossible
        parts: list[str] = []
        if 0 < least <= MOST or (most is not None and most <= MOST):
            upper = "" if most is None or most > MOST else str(most)
            parts.append(f"/(?s:.){{{min(least, MOST)},{upper}}}/")
        pattern = _anchored(schema.get("pattern"))
        if pattern is not None:
            parts.append(pattern)
        if not parts:
            return "string"
        name = self._name("T")
        self.rules.append(f"{name}: {' & '.join([*parts, '~SPELT'])}")
        return f"q {name} q"

    def _array(self, schema: Mapping[str, Any]) -> str:
        first = schema.get("prefixItems") or ()
        least = min(_count(schema, "minItems") or 0, MOST)
        most = _count(schema, "maxItems")
        if most is not None and most < least:
            raise Impossible
        if most is not None and most > MOST:
            most = None
        try:
            item = self._rule(self._value(schema.get("items", True)))
        except Impossible:
            if least > len(first):
                raise
            most = min(len(first), len(first) if most is None else most)
            item = ""
        if first:
            return f'"[" {self._tuple(first, item, least, most)} "]"'
        if most == 0:
            return '"[]"'
        upper = None if most is None else most - 1
        inner = f"{item} {_times(_after_comma(item), max(least - 1, 0), upper)}"
        return f'"[" {inner} "]"' if least else f'"[" ({inner})? "]"'

    def _tuple(self, first: Iterable[Any], item: str, least: int, most: int | None) -> str:
        """Items of which the first have each a schema of its own."""
        values = [self._value_or_none(each) for each in first]
        count = next((i for i, value in enumerate(values) if value is None), len(values))
        if count < least and count < len(values):
            raise Impossible
        if most is not None:
            count = min(count, most)
        more = ""
        if item and count == len(values) and (most is None or most > count):
            upper = None if most is None else most - count
            more = _times(_after_comma(item), max(least - count, 0), upper)
        for i in reversed(range(count)):
            more = f"{'' if i == 0 else _literal(',')} {values[i]} {more}"
            if i >= least:
                more = f"({more})?"
        return more

    def _object(self, schema: Mapping[str, Any]) -> str:
        properties = schema.get("properties") or {}
        required = [name for name in schema.get("required", ()) if isinstance(name, str)]
        other = schema.get("additionalProperties", "properties" not in schema)
        pairs: dict[str, str] = {}
        for name, inner in properties.items():
            try:
                pairs[name] = f"{self._key(name)} {self._rule(self._value(inner))}"
            except Impossible:
                if name in required:
                    raise
        for name in required:
            if name not in pairs:
                if other is False:
                    raise Impossible
                pairs[name] = f"{self._key(name)} {self._rule(self._value(other))}"
        extra = None
        if other is not False:
            value = self._value_or_none(other)
            if value is not None:
                extra = self._extra(pairs, self._rule(value))
        needed = frozenset(required)
        if len(pairs) <= ANY_ORDER:
            inner = _AnyOrder(self, pairs, needed, extra).begun(frozenset(pairs))
        else:
            inner = self._in_order([(n, pairs[n]) for n in sorted(pairs)], needed, extra)
        return self._rule(f'"{{" {inner} "}}"')

    def _extra(self, pairs: Iterable[str], value: str) -> str:
        names = [name for name in pairs if _BARE_KEY.fullmatch(name)]
        key = "KEY"
        if names:
            key = self._name("K")
            self.rules.append(f"{key}: KEY & ~/({'|'.join(map(re.escape, names))})/")
        return f'{key} ":" {value}'

    def _in_order(
        self, pairs: list[tuple[str, str]], needed: frozenset[str], extra: str | None
    ) -> str:
        rest = f'("," {extra})*' if extra else ""
        begun = f"({extra} {rest})?" if extra else ""
        for name, pair in reversed(pairs):
            after = self._rule(rest) if rest.strip() else ""
            if name in needed:
                begun = f"{pair} {after}"
                rest = f'"," {pair} {after}'
            else:
                either = f"{pair} {after}"
                begun = f"({either} | {begun})" if begun.strip() else f"({either})?"
                rest = f'("," {pair})? {after}'
        return begun


class _AnyOrder:
    """Pairs in any order, each at most once: a rule for each set of those that may still come."""

    def __init__(
        self, writer: _Writer, pairs: Mapping[str, str], needed: frozenset[str], extra: str | None
    ) -> None:
        self._writer = writer
        self._pairs = pairs
        self._needed = needed
        self._extra = extra
        self._made: dict[frozenset[str], str] = {}

    def begun(self, left: frozenset[str]) -> str:
        """The pairs, where none was written."""
        return self._choice(left, "")

    def _after(self, left: frozenset[str]) -> str:
        if not left and not self._extra:
            return ""
        if left not in self._made:
            self._made[left] = self._writer._name("p")
            self._writer.rules.append(f"{self._made[left]}: {self._choice(left, _literal(','))}")
        return self._made[left]

    def _choice(self, left: frozenset[str], comma: str) -> str:
        choices = [
            f"{comma} {pair} {self._after(left - {name})}"
            for name, pair in self._pairs.items()
            if name in left
        ]
        if self._extra:
            choices.append(f"{comma} {self._extra} {self._after(left)}")
        if not choices:
            return ""
        return f"{_either(choices)}" if left & self._needed else f"({' | '.join(choices)})?"


def _joined(items: Iterable[str]) -> str:
    return ' "," '.join(items)


def _after_comma(item: str) -> str:
    return f'("," {item})'


def _times(expression: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    return f"{expression}{{{least},{'' if most is None else most}}}"


def _without(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != key}


_CLASS = re.compile(r"\[\^?(?:[^\]\\\[&~-]|-(?!-)|\\.)+\]")
_ESCAPED = frozenset("dwsDWS.+*?()[]{}|/^$-\\")


def _anchored(pattern: Any) -> str | None:
    """A pattern as a terminal, if it is simple: no anchor or choice but at its ends or in groups.

    :return: None where it is not.
    """
    if not isinstance(pattern, str):
        return None
    begins, ends = pattern.startswith("^"), pattern.endswith("$")
    core = pattern[begins : len(pattern) - ends]
    made, at, depth = "", 0, 0
    while at < len(core):
        found = _CLASS.match(core, at)
        token = found[0] if found else core[at : at + 2] if core[at] == "\\" else core[at]
        if found is None:
            if token[0] == "\\" and token[1:] not in _ESCAPED:
                return None
            if token in "^$[]" or (token == "|" and not depth):
                return None
            if token == "(" and core[at + 1 : at + 2] == "?" and core[at + 1 : at + 3] != "?:":
                return None
            depth += (token == "(") - (token == ")")
        made += token.replace("/", "\\/") if token != "\\/" else token
        at += len(token)
    if not made or depth:
        return None
    return f"/{'' if begins else '(?s:.)*'}({made}){'' if ends else '(?s:.)*'}/"
