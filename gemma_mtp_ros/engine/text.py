# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Between text and tokens: chat template, streaming detokeniser, stop strings."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from ..api import CheckpointError, Message, RequestError


def byte_tokens(vocabulary: Mapping[str, int], tokenizer: str) -> dict[int, bytes]:
    """Tokens that stand for one byte (``<0x41>``), where the tokenizer's JSON decodes them so."""
    decoder = json.loads(tokenizer).get("decoder") or {}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part]
    if "ByteFallback" not in kinds:
        return {}
    found = ((re.fullmatch("<0x([0-9A-F]{2})>", token), i) for token, i in vocabulary.items())
    return {i: bytes.fromhex(match[1]) for match, i in found if match}


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

    def encode(self, messages: Sequence[Message], raw_prompt: str | None) -> list[int]:
        """Token ids of a conversation through the chat template, or of a raw prompt.

        :raises RequestError: for an empty prompt, a missing template or one that refuses.
        """
        if raw_prompt is not None:
            try:
                ids = self.tokenizer.encode(raw_prompt, add_special_tokens=True)
            except (TypeError, ValueError) as error:
                raise RequestError(f"the prompt is no valid text ({error}); send UTF-8") from error
        else:
            ids = self._apply_template(messages)
        if not ids:
            raise RequestError("the prompt is empty; send at least one character")
        return list(ids)

    def _apply_template(self, messages: Sequence[Message]) -> list[int]:
        if not messages or not any(m.content.strip() for m in messages):
            raise RequestError("the prompt is empty; send a prompt or messages with content")
        if not self.has_template:
            raise RequestError(
                f"model {self.folder} has no chat template; send the goal with raw_prompt true, "
                "or add chat_template.jinja to the folder"
            )
        turns: list[dict[str, Any]] = [{"role": m.role, "content": m.content} for m in messages]
        try:
            encoding = self.tokenizer.apply_chat_template(
                turns, tokenize=True, add_generation_prompt=True, return_dict=True
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"the chat template of {self.folder} refuses these messages ({error}); "
                "check their roles and order"
            ) from error
        return list(encoding["input_ids"])

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
        keep = max(self._overlap(text, stop) for stop in self.stops)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of ``text`` that begins ``stop``."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if stop.startswith(text[-length:]):
                return length
        return 0

    def flush(self) -> str:
        """Held text, when the generation ends without the stop string."""
        held, self.held = self.held, ""
        return held
