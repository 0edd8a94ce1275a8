# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""From what a goal asks of its answer to the guide that keeps the answer to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..api import Cancel, ErrorCode, Request, RequestError
from .call_grammar import call_grammar
from .call_schema import ArgumentSchemas
from .channels import CALL_CLOSE, CALL_OPEN, CHANNEL_OPEN, QUOTE
from .grammar import CACHED, Grammar, Grammars
from .guide import Guide, Plan
from .json_schema import SchemaError, may_be_costly
from .text import Text
from .token_masks import Vocabulary

Suppress = Callable[[torch.Tensor], torch.Tensor]


class Interrupted(Exception):
    """A goal that ends while its schemas are compiled."""

    def __init__(self, end: Cancel) -> None:
        super().__init__(end.error_msg)
        self.end = end


class Structured:
    """Compiles what goals ask for.

    :param vocabulary: None: answers cannot be held to schemas (``engine.structured_output``).
    """

    def __init__(self, text: Text, vocabulary: Vocabulary | None) -> None:
        self._text = text
        self._grammars = None if vocabulary is None else Grammars(vocabulary)
        self._markers = {name: token for token, name in text.markers.items()}
        self._arguments: dict[str, ArgumentSchemas] = {}
        self._of_calls = None
        if vocabulary is not None and {QUOTE, CALL_OPEN, CALL_CLOSE} <= self._markers.keys():
            quote, close = self._markers[QUOTE], self._markers[CALL_CLOSE]
            self._of_calls = vocabulary.of_calls(quote, close)

    def arguments(self, declared: Mapping[str, Any]) -> ArgumentSchemas:
        """The schemas of tools, checked; the last ones are kept.

        :raises RequestError: as :class:`ArgumentSchemas`.
        """
        name = json.dumps(dict(declared))
        kept = self._arguments.pop(name, None)
        if kept is None:
            kept = ArgumentSchemas(declared)
        self._arguments[name] = kept
        if len(self._arguments) > CACHED:
            del self._arguments[next(iter(self._arguments))]
        return kept

    def guide(
        self,
        request: Request,
        schemas: Mapping[str, Any],
        prompt: Sequence[int],
        limit: int,
        suppress: Suppress,
        beat: Callable[[], None],
    ) -> Guide | None:
        """The guide of an answer; None: it is free.

        :param schemas: of the arguments of each tool.
        :param beat: called while schemas are compiled; may raise to give it up.
        :raises RequestError: when what is asked for cannot be enforced.
        """
        if not request.response_schema and not (schemas and self._of_calls):
            return None
        if self._grammars is None:
            raise RequestError(
                "response_schema is set, but engine.structured_output is false; leave the schema "
                "empty, or set the parameter and configure again",
                ErrorCode.SCHEMA_UNSUPPORTED,
            )
        opening, begun = "", prompt[:0]
        if request.raw_prompt is None:
            opening, begun = self._text.opened(prompt)
        thinks = request.enable_thinking or opening == CHANNEL_OPEN
        if thinks and CHANNEL_OPEN not in self._markers and request.response_schema:
            raise RequestError(
                "response_schema is set and the model thinks first, but its tokenizer has no "
                f"token {CHANNEL_OPEN} that would tell where the answer begins; leave one of them "
                "out",
                ErrorCode.SCHEMA_UNSUPPORTED,
            )
        response = nothing = None
        if request.response_schema:
            response = self._grammars.compile(request.response_schema, beat)
            nothing = self._grammars.nothing()
        plan = Plan(
            response=response,
            calls=self._calls(schemas, beat),
            nothing=nothing,
            thinking=request.enable_thinking,
            markers=self._markers,
            eos=self._grammars.vocabulary.eos,
        )
        return Guide(plan, limit, opening, begun, suppress)

    def _calls(self, schemas: Mapping[str, Any], beat: Callable[[], None]) -> Grammar | None:
        if not schemas or self._of_calls is None or self._grammars is None:
            return None
        made = partial(
            self._grammars.of_calls, vocabulary=self._of_calls, quote=self._markers[QUOTE]
        )
        costly = any(may_be_costly(json.dumps(schema), schema) for schema in schemas.values())
        try:
            return made(partial(call_grammar, schemas), costly=costly, beat=beat)
        except SchemaError as error:
            logging.getLogger(__name__).warning(
                "arguments of tool calls are only held to the schemas once they are written, as "
                f"these cannot be compiled ({error.reason})"
            )
        return made(partial(call_grammar, _names_alone(schemas)), costly=False, beat=beat)


def _names_alone(schemas: Collection[str]) -> dict[str, Any]:
    return {name: {"type": "object", "additionalProperties": True} for name in schemas}
