# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded pair's tokenizer: Gemma's structure (BPE, byte fallback, "▁" for a space), small.

A name must be the same tokens after a space as after a quotation mark, or the pair would have to
learn each name twice. So merges are learned on words without their space, and only frequent
function words get a token with the space in front ("▁the"), by a merge of the lowest priority.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VOCAB_SIZE = 1280
SPACE = "▁"
TURN_HEADER = 3  # "<|turn>", the role and a line break: no part of what is learned

PAD, EOS, BOS, UNK, MASK = "<pad>", "<eos>", "<bos>", "<unk>", "<mask>"
TURN_START, TURN_END = "<|turn>", "<turn|>"
SPECIAL_TOKENS = (
    PAD, EOS, BOS, UNK, MASK,
    "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>",
    '<|"|>', "<|think|>", "<|channel>", "<channel|>", TURN_START, TURN_END,
)  # fmt: skip
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))

# Words that take their space along.
SPACED_WORDS = (
    "the", "to", "and", "then", "in", "on", "a", "an", "from", "it", "up", "you", "will", "I",
    "me", "for", "before", "first", "please", "is", "of", "them", "that", "with", "my",
)  # fmt: skip

# The shape of Gemma 4's template for text: one <bos>, a system turn as such, "model" for the
# assistant. Tools and thinking are not for this pair.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message['role'] in ['system', 'developer'] -%}
        {%- set role = 'system' -%}
    {%- elif message['role'] in ['assistant', 'model'] -%}
        {%- set role = 'model' -%}
    {%- elif message['role'] == 'user' -%}
        {%- set role = 'user' -%}
    {%- else -%}
        {{- raise_exception('role must be system, user or assistant, got ' + message['role']) -}}
    {%- endif -%}
    {{- '<|turn>' + role + '\\n' + message['content'] | trim + '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Learn the merges from `texts` and return the finished tokenizer of `vocab_size` tokens."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", SPACE)
    learner.pre_tokenizer = pre_tokenizers.Split(
        Regex(rf"{SPACE}|\n|[0-9]|[\p{{L}}_]+|[^\p{{L}}_0-9{SPACE}\n]+"), behavior="isolated"
    )
    ascii_characters = [chr(code) for code in range(0x20, 0x7F)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(BYTE_TOKENS) - len(SPACED_WORDS),
        initial_alphabet=[SPACE, "\n", *ascii_characters[1:]],
        limit_alphabet=len(ascii_characters) + 1,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    merges = [tuple(merge) for merge in learned["merges"]]
    for word in SPACED_WORDS:
        if word not in learned["vocab"]:
            raise ValueError(f"the word {word!r} did not become one token: add more text")
        merges.append((SPACE, word))
        pieces.append(SPACE + word)
    vocab = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *BYTE_TOKENS, *pieces))}
    if len(vocab) != vocab_size:
        raise ValueError(f"{len(vocab)} tokens instead of {vocab_size}: change the texts")

    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token=UNK, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    # As Gemma's: plain text gets a <bos>; the chat template brings its own, so encode its text
    # with add_special_tokens=False.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, vocab[BOS])]
    )
    return tokenizer


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]]
) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation in the chat template, and the positions to learn from."""
    ids = [SPECIAL_TOKENS.index(BOS)]
    predicts = [False]
    for message in messages:
        learned = message["role"] == "assistant"
        role = "model" if learned else message["role"]
        text = f"{TURN_START}{role}\n{message['content']}{TURN_END}\n"
        turn = tokenizer.encode(text, add_special_tokens=False).ids
        ids += turn
        # From the header's line break (predicts the first token) to the token before <turn|>.
        inner = len(turn) - TURN_HEADER - 1
        predicts += [False] * (TURN_HEADER - 1) + [learned] * inner + [False] * 2
    return ids, predicts


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `folder`."""
    config: dict[str, Any] = {
        "tokenizer_class": "GemmaTokenizer",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNK,
        "mask_token": MASK,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "extra_special_tokens": {"sot_token": TURN_START, "eot_token": TURN_END},
    }
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
