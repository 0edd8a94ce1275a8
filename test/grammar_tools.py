# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Random JSON Schemas, and decoding under a grammar with and without drafts."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from gemma_mtp_ros.api import MAX_DRAFT
from gemma_mtp_ros.engine.decode import Engine
from gemma_mtp_ros.engine.grammar import Grammar
from gemma_mtp_ros.engine.grammar_state import GrammarState
from gemma_mtp_ros.engine.ops import read_back
from gemma_mtp_ros.engine.sampling import Rules, choose
from gemma_mtp_ros.engine.token_masks import Vocabulary, allow

PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^(left|right)+$", "^a*b$", "^[a-z]{1,4}_?$", "x"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email", "hostname"]

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-999, 999), texts)


@st.composite
def ranges(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    low, high = sorted(draw(st.tuples(st.integers(-3000, 3000), st.integers(-3000, 3000))))
    schema: dict[str, Any] = {"type": kind, "minimum": low, "maximum": high}
    if kind == "integer" and high - low > 40 and draw(st.booleans()):
        schema["multipleOf"] = draw(st.integers(2, 12))
    elif high - low > 2 and draw(st.booleans()):
        schema["exclusiveMaximum"] = schema.pop("maximum")
    return schema


@st.composite
def strings(draw: st.DrawFn) -> dict[str, Any]:
    least = draw(st.integers(0, 4))
    return {"type": "string", "minLength": least, "maxLength": least + draw(st.integers(0, 5))}


leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}]),
    ranges("integer"),
    ranges("number"),
    strings(),
    st.sampled_from(PATTERNS).map(lambda p: {"type": "string", "pattern": p}),
    st.sampled_from(FORMATS).map(lambda f: {"type": "string", "format": f}),
    scalars.map(lambda value: {"const": value}),
    st.lists(scalars, min_size=1, max_size=4).map(lambda values: {"enum": values}),
)


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    if draw(st.booleans()):
        first = draw(st.lists(inner, min_size=1, max_size=3))
        return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}
    least = draw(st.integers(0, 2))
    most = least + draw(st.integers(0, 2))
    return {"type": "array", "items": draw(inner), "minItems": least, "maxItems": most}


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(texts, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    other = draw(st.one_of(st.just(False), st.just(False), leaves))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": other,
    }


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    either = st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    return st.one_of(arrays(inner), objects(inner), objects(inner), either)


@st.composite
def linked(draw: st.DrawFn) -> dict[str, Any]:
    """A list of unlimited length, by reference to itself."""
    link = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
    node = {
        "type": "object",
        "properties": {"value": draw(leaves), "next": link},
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


schemas = st.one_of(st.recursive(leaves, _nested, max_leaves=6), linked())
"""JSON Schemas whose values have an end, or may have one."""


@dataclass
class Answer:
    """What came of decoding under a grammar."""

    tokens: list[int] = field(default_factory=list)
    complete: bool = False
    passes: int = 0
    """Target passes after the prefill."""


def vocabulary_of(engine: Engine) -> Vocabulary:
    generation = engine.model.generation
    return Vocabulary(engine.text, engine.target.spec.vocab, generation.eos)


def _prefill(engine: Engine, prompt: list[int]) -> torch.Tensor:
    engine.target.cache.reset()
    result = engine.target.prefill(torch.tensor(prompt), True)
    assert result is not None
    return result[1]


@torch.inference_mode()
def decode_plainly(
    engine: Engine, prompt: list[int], grammar: Grammar, rules: Rules, limit: int
) -> Answer:
    """Masked decoding without drafts: a pass for each token but the first."""
    cache, state, answer = engine.target.cache, grammar.start(limit), Answer()
    logits = _prefill(engine, prompt)
    while True:
        choice = choose(allow(logits, state.mask()), rules, len(answer.tokens))
        chosen = state.settle((), read_back(choice))
        state.accept(chosen)
        if state.ended:
            break
        answer.tokens += chosen
        if len(answer.tokens) == limit:
            break
        _, logits = engine.target.decode(torch.tensor(chosen), cache.length)
        cache.commit(cache.length + 1)
        answer.passes += 1
    answer.complete = state.complete
    return answer


@torch.inference_mode()
def decode_drafted(
    engine: Engine,
    prompt: list[int],
    grammar: Grammar,
    rules: Rules,
    limit: int,
    known: list[int],
    seed: int = 0,
) -> Answer:
    """Masked decoding with drafts that are forced, right, allowed or not allowed, at random.

    :param known: the answer, from which right drafts are taken.
    """
    draws = random.Random(seed)
    cache, state, answer = engine.target.cache, grammar.start(limit), Answer()
    choice = choose(allow(_prefill(engine, prompt), state.mask()), rules, 0)
    chosen = state.settle((), read_back(choice))
    state.accept(chosen)
    while not state.finished:
        answer.tokens += chosen
        if len(answer.tokens) == limit:
            break
        place = len(answer.tokens)
        most = draws.randint(0, min(MAX_DRAFT, limit - place - 1))
        drafts = _drafts(draws, state, known[place:], most, engine.target.spec.vocab)
        _, logits = engine.target.decode(torch.tensor(chosen[-1:] + drafts), cache.length)
        choices = choose(allow(logits, state.masks(drafts)), rules, place)
        chosen = state.settle(drafts, read_back(choices))
        state.accept(chosen)
        cache.commit(cache.length + len(chosen))
        answer.passes += 1
    else:
        answer.tokens += [t for t in chosen if t not in grammar.vocabulary.eos]
    answer.complete = state.complete
    return answer


def _drafts(
    draws: random.Random, state: GrammarState, known: list[int], most: int, vocab: int
) -> list[int]:
    drafts = state.forced(draws.randint(0, most))
    while len(drafts) < most:
        kind = draws.random()
        if kind < 0.6 and known[: len(drafts)] == drafts and len(known) > len(drafts):
            drafts.append(known[len(drafts)])
        elif (
            kind < 0.95
            and state.admitted(drafts) == len(drafts)
            and not (set(drafts) & state.vocabulary.eos)
        ):
            drafts.append(draws.choice(state.mask(drafts)[0].nonzero()[:, 0].tolist()))
        else:
            drafts.append(draws.randrange(vocab))
    return drafts
