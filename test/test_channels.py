# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""An answer is split into text, reasoning and tool calls, wherever the borders of pieces fall."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import Channel
from gemma_mtp_ros.engine.channels import (
    CALL_CLOSE,
    CALL_OPEN,
    CHANNEL_CLOSE,
    CHANNEL_OPEN,
    LABEL,
    MARKERS,
    QUOTE,
    RESPONSE_OPEN,
    ChannelSplitter,
    MarkerScanner,
    Part,
    WrittenCall,
)

TEXT, REASONING, TOOL_CALL = Channel
NAMES = ("go", "go_home")
MARKER = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")

# Words that make markers, the channel's name and unmarked calls likely, in parts and whole.
PARTS = "a,ü,🤖, ,\n,thought,thought\n,th,<,|,>,<|,|>,channel,call:,go,_home,{,}".split(",")
WORDS = st.sampled_from([*PARTS, ","])
FREE_TEXT = st.lists(WORDS, max_size=8).map("".join).filter(lambda text: not MARKER.search(text))
ITEMS = st.lists(WORDS | st.sampled_from(MARKERS), max_size=16)
CUTS = st.lists(st.integers(1, 9), max_size=60)


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    """The text cut into pieces of these lengths and a rest."""
    edges = [0, *(at for at in itertools.accumulate(cuts) if at < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def merged(parts: Iterable[Part]) -> list[Part]:
    """Neighbours of one channel joined."""
    groups = itertools.groupby(parts, key=lambda part: part.channel)
    return [Part(channel, "".join(part.text for part in group)) for channel, group in groups]


def split(texts: Iterable[str], names: Iterable[str] = ()) -> tuple[list[Part], list[WrittenCall]]:
    """Parts and calls of an answer whose markers are spelled out."""
    splitter = ChannelSplitter(tuple(names), spelled=True)
    parts = [part for text in texts for part in splitter.push(text)]
    parts += splitter.flush()
    assert all(part.text for part in parts)
    return merged(parts), splitter.calls


def split_tokens(items: Iterable[str], names: Iterable[str] = ()) -> list[Part]:
    """Parts of an answer whose markers are tokens."""
    splitter = ChannelSplitter(tuple(names))
    parts: list[Part] = []
    for item in items:
        parts += splitter.mark(item) if item in MARKERS else splitter.push(item)
    return merged([*parts, *splitter.flush()])


SEGMENTS = st.lists(
    st.tuples(st.just(TEXT), FREE_TEXT.filter(bool))
    | st.tuples(st.just(REASONING), FREE_TEXT)
    | st.tuples(st.just(TOOL_CALL), FREE_TEXT),
    max_size=6,
)


@given(SEGMENTS, CUTS)
def test_an_answer_comes_out_as_it_was_put_together(segments, cuts):
    written, expected = "", []
    for channel, text in segments:
        if channel is REASONING:
            written += f"{CHANNEL_OPEN}{LABEL}{text}\n{CHANNEL_CLOSE}"
        elif channel is TOOL_CALL:
            text = f"{CALL_OPEN}{text}{CALL_CLOSE}"
            written += text
        else:
            written += text
        if text:
            expected.append(Part(channel, text))
    # Neighbours in writing may spell a marker together, which is one then.
    parts, calls = split(pieces(written, cuts))
    if len(MARKER.findall(written)) == 2 * sum(channel is not TEXT for channel, _ in segments):
        assert parts == merged(expected)
        assert calls == [WrittenCall(t, True) for channel, t in segments if channel is TOOL_CALL]


@given(ITEMS, CUTS, st.sampled_from([(), NAMES]))
def test_where_pieces_are_cut_does_not_matter(items, cuts, names):
    written = "".join(items)
    assert split(pieces(written, cuts), names) == split([written], names)


@given(ITEMS, CUTS, st.sampled_from([(), NAMES]))
def test_tokens_and_spelled_markers_say_the_same(items, cuts, names):
    written = "".join(items)
    tokens = [p for run in MARKER.split(written) for p in ([run] if run in MARKERS else [*run])]
    assert split_tokens(tokens, names) == split(pieces(written, cuts), names)[0]


@given(st.lists(st.sampled_from(["a", "b ", "{", "}", "ü"]) | st.sampled_from(MARKERS)))
def test_nothing_but_markers_is_lost_and_nothing_doubled(items):
    """In disorder too: unclosed, nested and stray markers."""
    if RESPONSE_OPEN in items:
        items = items[: items.index(RESPONSE_OPEN)]
    shown = "".join(part.text for part in split_tokens(items))
    plain = "".join(item for item in items if item not in MARKERS)
    assert MARKER.sub("", shown) == plain


@given(st.lists(st.sampled_from(["a", "b ", "{", "}", "ü", QUOTE, CHANNEL_OPEN, CHANNEL_CLOSE])))
def test_in_a_call_all_but_its_own_markers_is_text(items):
    parts = split_tokens([CALL_OPEN, *items, CALL_CLOSE])
    assert parts == [Part(TOOL_CALL, "".join([CALL_OPEN, *items, CALL_CLOSE]))]


@given(FREE_TEXT, st.sampled_from(MARKERS))
def test_a_marker_that_is_only_spelled_out_is_text(text, marker):
    """The model may explain its own notation: only the token is the marker."""
    splitter = ChannelSplitter()
    parts = merged([*splitter.push(text + marker), *splitter.push("!"), *splitter.flush()])
    assert parts == [Part(TEXT, text + marker + "!")]
    assert not splitter.calls


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Hello.", [(TEXT, "Hello.")]),
        ("<|channel>thought\n<channel|>Hello.", [(TEXT, "Hello.")]),
        ("<|channel>thought<channel|>Hello.", [(TEXT, "Hello.")]),
        ("<|channel>thought\nHm.\n<channel|>Hello.", [(REASONING, "Hm."), (TEXT, "Hello.")]),
        # Only the line break of the frame goes.
        ("<|channel>thought\n\nHm.\n\n<channel|>", [(REASONING, "\nHm.\n")]),
        ("<|channel>Hm.<channel|>\nHello.", [(REASONING, "Hm."), (TEXT, "\nHello.")]),
        ("<|channel>thoughtful<channel|>", [(REASONING, "thoughtful")]),
        # Open at the token limit.
        ("<|channel>thought\nHm.", [(REASONING, "Hm.")]),
        ("<|channel>thought\nHm.\n", [(REASONING, "Hm.\n")]),
        ("<|channel>tho", [(REASONING, "tho")]),
        ("<|channel>", []),
        # Out of order.
        ("Yes<channel|> no", [(TEXT, "Yes no")]),
        ("Yes<tool_call|> no", [(TEXT, "Yes no")]),
        (
            "<|channel>thought\nA<|channel>thought\nB<channel|>C",
            [(REASONING, "AB"), (TEXT, "C")],
        ),
        (
            "<|channel>thought\nHm.\n<|tool_call>call:go{}<tool_call|>",
            [(REASONING, "Hm."), (TOOL_CALL, "<|tool_call>call:go{}<tool_call|>")],
        ),
        ("<channel", [(TEXT, "<channel")]),
    ],
)
def test_frames(written, expected):
    assert split([written])[0] == [Part(*one) for one in expected]


def test_calls_are_kept_apart():
    one, two, three = "call:go{}", "call:a{", "call:b{}"
    written = ["On it.", CALL_OPEN, one, CALL_CLOSE, CALL_OPEN, two, CALL_OPEN, three, CALL_CLOSE]
    parts, calls = split(["".join(written)])
    assert calls == [
        WrittenCall(one, True),
        WrittenCall(two, False),
        WrittenCall(three, True),
    ]
    assert parts == [Part(TEXT, "On it."), Part(TOOL_CALL, "".join(written[1:]))]


def test_a_call_open_at_the_end_is_not_dropped():
    assert split(['<|tool_call>call:go{to:<|"|>do'])[1] == [
        WrittenCall('call:go{to:<|"|>do', False)
    ]


@pytest.mark.parametrize(
    "lead", ["", "\n", "<|channel>thought\nHm.\n<channel|>", "<|tool_call>a<tool_call|>"]
)
def test_a_declared_call_without_its_marker_is_one(lead):
    alone, _ = split([lead], NAMES)
    parts, calls = split([*lead, *"call:go_home{x:1}<tool_call|>"], NAMES)
    assert calls[-1] == WrittenCall("call:go_home{x:1}", True)
    assert parts == merged([*alone, Part(TOOL_CALL, "call:go_home{x:1}<tool_call|>")])


@pytest.mark.parametrize("text", ["call:fly{}", "Then call:go{}", "call:go", "call:", "ca"])
def test_what_only_resembles_a_call_is_text(text):
    assert split([*text], NAMES) == ([Part(TEXT, text)], [])


def test_the_turn_is_over_where_the_model_answers_its_own_call():
    splitter = ChannelSplitter(spelled=True)
    parts = splitter.push("<|tool_call>call:go{}<tool_call|><|tool_response>response:go{value:1}")
    assert splitter.ended
    assert merged(parts) == [Part(TOOL_CALL, "<|tool_call>call:go{}<tool_call|>")]
    assert splitter.push("more") == splitter.mark(CALL_OPEN) == splitter.flush() == []


def test_what_the_prompt_left_open():
    splitter = ChannelSplitter()
    assert splitter.open(CHANNEL_OPEN, "thought\n") == []
    assert splitter.push("Hm.") == [Part(REASONING, "Hm.")]
    splitter = ChannelSplitter(NAMES)
    begun = splitter.open(CALL_OPEN, "call:go{")
    assert merged(begun) == [Part(TOOL_CALL, "<|tool_call>call:go{")]
    splitter.push("}")
    splitter.mark(CALL_CLOSE)
    assert splitter.calls == [WrittenCall("call:go{}", True)]


def test_text_is_held_back_no_longer_than_it_may_begin_a_marker():
    scanner = MarkerScanner()
    assert list(scanner.push("a <")) == [("a ", "")]
    assert list(scanner.push("b <|to")) == [("<b ", "")]
    assert list(scanner.push("ol")) == [("", "")]
    assert list(scanner.push("s")) == [("<|tools", "")]
    splitter = ChannelSplitter(NAMES)
    assert splitter.push("call:") == []
    assert splitter.push("me") == [Part(TEXT, "call:me")]
    assert splitter.push("call:go") == [Part(TEXT, "call:go")]
