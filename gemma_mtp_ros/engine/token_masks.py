# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Sets of tokens, as the bits of a number and as masks of logits."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence

import torch
from llguidance import LLTokenizer

from .channels import MARKERS
from .closing import Closers
from .text import Text

BYTES_EACH = 1024
"""Memory that a token of the vocabulary takes, as read for masks (0.75 KiB measured)."""


class Vocabulary:
    """The tokens of a checkpoint, as bytes.

    Of the tokens that spell the same bytes only one is usable, so that a byte token (``<0x22>``)
    never stands for a character that has a token.

    :param text: the checkpoint's tokenizer.
    :param size: width of the model's logits; ids past the tokenizer's own are never allowed.
    :param eos: tokens that end an answer; other special tokens are never allowed.
    :param suppressed: tokens that the checkpoint never wants to see.
    :param device: where masks are wanted.
    """

    def __init__(
        self,
        text: Text,
        size: int,
        eos: Iterable[int],
        suppressed: Iterable[int] = (),
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.eos = frozenset(eos)
        self.tokenizer = LLTokenizer(
            _with_special_markers(text), n_vocab=max(size, text.size), eos_token=sorted(self.eos)
        )
        never = self.eos.union(suppressed)
        spelt: dict[bytes, int] = {}
        for token in range(min(size, text.size)):
            if token in never or self.tokenizer.is_special_token(token):
                continue
            held = self.tokenizer.decode_bytes([token])
            if held and spelt.get(held, token) in text.byte_tokens:
                spelt[held] = token
            elif held:
                spelt.setdefault(held, token)
        self._spelt = spelt
        self.usable = bits(spelt.values())
        self.closers = Closers(spelt, self.usable)
        self.eos_bits = bits(self.eos)
        self.every = (1 << size) - 1
        self._row_bytes = -(-size // 8)
        self._device = torch.device(device)
        flags = (torch.arange(256)[:, None] >> torch.arange(8)) & 1
        self._unpacked = flags.bool().view(torch.int64)[:, 0].to(self._device)
        """Eight flags as the bytes of a number, for each byte."""

    def of_calls(self, quote: int, end: int) -> Vocabulary:
        """The same tokens where a tool call is written.

        :param quote: the marker around its strings, which may be written there.
        :param end: the marker that ends it, in place of the tokens that end an answer.
        """
        made = copy.copy(self)
        made.eos = frozenset([end])
        made.eos_bits = bits(made.eos)
        made.usable = self.usable | 1 << quote
        made.closers = Closers(self._spelt, made.usable, quote)
        return made

    def tensor(self, rows: Sequence[int]) -> torch.Tensor:
        """``(len(rows), size)`` bool, of sets of tokens as the bits of a number."""
        packed = bytearray().join(row.to_bytes(self._row_bytes, "little") for row in rows)
        held = torch.frombuffer(packed, dtype=torch.uint8).to(self._device)
        flags = self._unpacked.index_select(0, held.int()).view(torch.bool)
        return flags.view(len(rows), -1)[:, : self.size]


def _with_special_markers(text: Text) -> str:
    """The tokenizer's JSON, in which the markers of an answer are special whatever it says."""
    tokenizer = json.loads(text.backend.to_str())
    for added in tokenizer.get("added_tokens") or ():
        added["special"] = added["special"] or added["content"] in MARKERS
    return json.dumps(tokenizer)


def bits(tokens: Iterable[int]) -> int:
    """A set of tokens as the bits of a number."""
    flags = bytearray()
    for token in tokens:
        flags.extend(bytes(max(0, (token >> 3) + 1 - len(flags))))
        flags[token >> 3] |= 1 << (token & 7)
    return int.from_bytes(flags, "little")


def allow(
    logits: torch.Tensor, mask: torch.Tensor, ids: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits with -inf where the mask allows nothing.

    :param logits: ``(rows, m)`` of tokens ``ids`` (``(m,)``; None: token = column).
    :param mask: ``(rows, size)`` of :meth:`GrammarState.masks`.
    """
    if ids is not None:
        mask = mask[:, ids]
    return logits.masked_fill(~mask, float("-inf"))
