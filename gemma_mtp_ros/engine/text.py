# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Between text and tokens: chat template, streaming detokeniser, stop strings."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from ..api import CheckpointError, Message, RequestError
from .channels import CALL_OPEN, CHANNEL_OPEN, MARKERS, QUOTE, RESPONSE_OPEN, find_markers, overlap
from .chat import (
    CONTROL,
    NO_TOOLS,
    Tools,
    forced_text,
    refuse_control_tokens,
    speech_before_calls,
    template_turns,
    with_responses,
)

MARKER_TAIL = 512
"""Tokens at the end of a prompt in which a spelled-out marker is looked for."""


def byte_tokens(vocabulary: Mapping[str, int], tokenizer: str) -> dict[int, bytes]:
    """Tokens that stand for one byte (``<0x41>``), where the tokenizer's JSON decodes them so."""
    decoder = json.loads(tokenizer).get("decoder") or {}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part]
    if "ByteFallback" not in kinds:
        return {}
    found = ((re.fullmatch("<0x([0-9A-F]{2})>", token), i) for token, i in vocabulary.items())
    return {i: bytes.fromhex(match[1]) for match, i in found if match}


class Abilities(NamedTuple):
    """What a chat template can show the model, found by rendering it."""

    tools: bool
    thinking: bool
    tool_role: bool
    """Whether a tool's answer is a message; False: it belongs into the turn that called."""


class Text:
    """The tokenizer and chat template of a checkpoint.

    :raises CheckpointError: when the folder has no usable tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (folder / "tokenizer.json").is_file():
            raise CheckpointError(
                f"model folder {folder} has no tokenizer.json; download the checkpoint again"
            )
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.backend = self.tokenizer.backend_tokenizer
        except Exception as error:
            raise CheckpointError(
                f"the tokenizer of {folder} cannot be read ({' '.join(str(error).split())[:300]}); "
                "download the checkpoint again"
            ) from error
        # Only a warning for readers of a log, which would take it for one about the goal at hand.
        self.tokenizer.model_max_length = 1 << 60
        vocabulary: dict[str, int] = self.tokenizer.get_vocab()
        self.size = max(vocabulary.values(), default=-1) + 1
        self.longest_token = max((len(token.encode()) for token in vocabulary), default=1)
        """Bytes of the longest token: so many bytes of text take one token at least."""
        self.byte_tokens = byte_tokens(vocabulary, self.backend.to_str())
        self.has_template = bool(self.tokenizer.chat_template)
        self.markers = {vocabulary[marker]: marker for marker in MARKERS if marker in vocabulary}
        """Tokens that structure an answer."""
        self.control = {token: vocabulary[token] for token in CONTROL if token in vocabulary}
        """Tokens that structure a conversation."""
        self.turn_end = self.control.get("<turn|>")
        self.spells_markers = not self.markers and CHANNEL_OPEN in str(self.tokenizer.chat_template)
        """Whether the model writes markers letter by letter, for want of tokens."""

    def encode(
        self,
        messages: Sequence[Message],
        raw_prompt: str | None,
        *,
        tools: Tools = NO_TOOLS,
        thinking: bool = False,
    ) -> list[int]:
        """Token ids of a conversation through the chat template, or of a raw prompt.

        :raises RequestError: for an empty prompt, a missing template, one that refuses or that
            cannot show what is asked for.
        """
        if raw_prompt is not None:
            if tools.declarations or thinking:
                raise RequestError(
                    "raw_prompt is set beside tools or enable_thinking, which need the chat "
                    "template; leave raw_prompt false, or write them into the prompt"
                )
            try:
                ids = self.tokenizer.encode(raw_prompt, add_special_tokens=True)
            except (TypeError, ValueError) as error:
                raise RequestError(f"the prompt is no valid text ({error}); send UTF-8") from error
        else:
            ids = self._apply_template(messages, tools, thinking)
        if not ids:
            raise RequestError("the prompt is empty; send at least one character")
        return list(ids)

    def _apply_template(
        self, messages: Sequence[Message], tools: Tools, thinking: bool
    ) -> list[int]:
        if not messages or not any(m.content.strip() for m in messages):
            raise RequestError("the prompt is empty; send a prompt or messages with content")
        if not self.has_template:
            raise RequestError(
                f"model {self.folder} has no chat template; send the goal with raw_prompt true, "
                "or add chat_template.jinja to the folder"
            )
        refuse_control_tokens(messages, tools.declarations, self.control)
        turns = template_turns(messages)
        if tools.declarations and not self.abilities.tools:
            raise RequestError(
                f"the chat template of {self.folder} cannot declare tools; leave tools empty or "
                "take a model that was trained to call them"
            )
        if thinking and not self.abilities.thinking:
            raise RequestError(
                f"the chat template of {self.folder} knows no thinking; leave enable_thinking false"
            )
        if any("tool_calls" in turn for turn in turns):
            tool_role = self.abilities.tool_role
            turns = speech_before_calls(turns) if tool_role else with_responses(turns)
        try:
            rendered = self.render(turns, tools, thinking)
            # Through the template's tokenizer and without special tokens: it has its own <bos>.
            ids = self.tokenizer.encode(rendered, add_special_tokens=False)
        except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            remedy = "their roles and order"
            if tools.declarations:  # which templates take to be of the usual shape
                remedy += ", and that each array in the tools' parameters has items"
            raise RequestError(
                f"the chat template of {self.folder} refuses these messages ({error}); "
                f"check {remedy}"
            ) from error
        if tools.forced is not None:
            marker, _ = self.opening(ids)
            ids += self.tokenizer.encode(
                forced_text(tools.forced, marker), add_special_tokens=False
            )
        return list(ids)

    def render(self, turns: Sequence[dict[str, Any]], tools: Tools, thinking: bool) -> str:
        """Text of a conversation up to where the model writes.

        :raises TemplateError: when the template refuses.
        """
        rendered: str = self.tokenizer.apply_chat_template(
            list(turns),
            tools=tools.declarations or None,
            enable_thinking=thinking,
            add_generation_prompt=True,
            tokenize=False,
        )
        return rendered

    @cached_property
    def abilities(self) -> Abilities:
        """What the template shows of a probing conversation."""
        name = "probe"
        declaration: dict[str, Any] = {
            "type": "function",
            "function": {"name": name, "description": name, "parameters": {"type": "object"}},
        }
        ask: dict[str, Any] = {"role": "user", "content": "Go."}
        call = {"id": "1", "type": "function", "function": {"name": name, "arguments": {}}}
        turns: list[dict[str, Any]] = [
            ask,
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "tool_call_id": "1", "content": "Done."},
        ]

        def shown(turns: list[dict[str, Any]], tools: Tools = NO_TOOLS, think: bool = False) -> str:
            try:
                return self.render(turns, tools, think)
            except (TemplateError, TypeError, ValueError):
                return ""

        plain = shown([ask])
        in_the_turn = RESPONSE_OPEN in shown(with_responses(turns))
        return Abilities(
            tools=name in shown([ask], Tools([declaration], frozenset([name]), None)),
            thinking=plain != shown([ask], think=True),
            tool_role=RESPONSE_OPEN in shown(turns) or not in_the_turn,
        )

    def opening(self, ids: Sequence[int]) -> tuple[str, str]:
        """The marker that a prompt leaves open, and the text after it; empty: none.

        After a tool's answer, Gemma 4's template opens the thinking channel itself.
        """
        if self.spells_markers:
            tail = self.backend.decode(list(ids[-MARKER_TAIL:]), skip_special_tokens=False)
            found = find_markers(tail)
            marker, after = (found[-1][0], tail[found[-1].end() :]) if found else ("", "")
        else:
            marker, tokens = self.opened(ids)
            after = self.backend.decode(tokens, skip_special_tokens=False)
        return (marker, after) if marker in (CHANNEL_OPEN, CALL_OPEN) else ("", "")

    def opened(self, ids: Sequence[int]) -> tuple[str, list[int]]:
        """The marker that a prompt leaves open, where it is a token, and the tokens after it."""
        structure = {self.control[token]: token for token in self.control if token != QUOTE}
        last = next((i for i in reversed(range(len(ids))) if ids[i] in structure), None)
        if last is None or structure[ids[last]] not in (CHANNEL_OPEN, CALL_OPEN):
            return "", []
        return structure[ids[last]], list(ids[last + 1 :])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without special tokens, as :class:`Detokenizer` tells it."""
        detokenizer = Detokenizer(self)
        return "".join(map(detokenizer.push, ids)) + detokenizer.flush()


class Detokenizer:
    """Turns tokens into text as they come, in whole characters.

    Bytes that belong to no character become U+FFFD and take nothing else with them. The
    tokenizer's own decoder renders a whole run of byte tokens anew when a later byte spoils it,
    so what it showed before would have to be taken back: runs of bytes are decoded here.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.stream = DecodeStream(skip_special_tokens=True)
        self.utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.ids: list[int] = []
        self.sent = 0

    def push(self, token: int) -> str:
        """Text that this token completes; empty while a character is unfinished."""
        byte = self.text.byte_tokens.get(token)
        if byte is not None:
            return self.utf8.decode(byte)
        before = self._end_run()
        self.ids.append(token)
        piece: str = self.stream.step(self.text.backend, token) or ""
        self.sent += len(piece)
        return before + piece

    def flush(self) -> str:
        """What is left at the end: an unfinished character, as U+FFFD."""
        whole = self.text.backend.decode(self.ids, skip_special_tokens=True) if self.ids else ""
        return whole[self.sent :] + self._end_run()

    def _end_run(self) -> str:
        left = self.utf8.decode(b"", True)
        self.utf8.reset()
        return left


class StopScanner:
    """Cuts text at the first stop string, wherever piece borders fall.

    Text that may be the beginning of a stop string is held back until it is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = tuple(stops)
        self.held = ""
        self.hit = False

    def push(self, piece: str) -> str:
        """Text that may be shown; sets ``hit`` when a stop string is complete."""
        if not self.stops or self.hit:
            return "" if self.hit else piece
        text = self.held + piece
        found = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit = True
            self.held = ""
            return text[: min(found)]
        keep = max(overlap(text, stop) for stop in self.stops)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Held text, when the generation ends without the stop string."""
        held, self.held = self.held, ""
        return held
