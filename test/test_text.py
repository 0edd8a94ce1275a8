# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Streaming text: whole characters, and stop strings wherever piece borders fall."""

from __future__ import annotations

import pytest
import tiny
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gemma_mtp_ros.api import CheckpointError, Message, RequestError
from gemma_mtp_ros.demo import TARGET_DIR
from gemma_mtp_ros.engine.text import Detokenizer, StopScanner, Text


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.tokenizer().save_pretrained(folder)
    return Text(folder)


@given(st.text(max_size=40))
def test_characters_are_never_split(text, written):
    """Each byte is a token: pieces hold whole characters only."""
    assume(not any(name in written for name in text.tokenizer.all_special_tokens))
    detokenizer = Detokenizer(text)
    pieces = [detokenizer.push(t) for t in text.tokenizer.encode(written, add_special_tokens=False)]
    assert "".join(pieces) + detokenizer.flush() == written
    assert all("\ufffd" not in piece for piece in pieces if "\ufffd" not in written)


@given(st.lists(st.integers(0, 260), max_size=60))
def test_joined_pieces_equal_the_whole_for_any_tokens(text, tokens):
    detokenizer = Detokenizer(text)
    joined = "".join(detokenizer.push(token) for token in tokens) + detokenizer.flush()
    assert joined == text.decode(tokens)


@pytest.fixture(scope="module")
def fallback():
    """The embedded pair's tokenizer: bytes that are no word fall back to byte tokens."""
    return Text(TARGET_DIR)


@given(st.text(max_size=20))
@example("1 <tool_response|")
def test_byte_fallback_gives_whole_characters(fallback, written):
    added = fallback.backend.get_added_tokens_decoder().values()
    assume(not any(token.content in written for token in added))
    ids = fallback.tokenizer.encode(written, add_special_tokens=False)
    detokenizer = Detokenizer(fallback)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.flush() == written
    assert fallback.backend.decode(ids) == written


@given(st.lists(st.integers(0, 1279), max_size=40))
def test_byte_fallback_takes_any_tokens(fallback, tokens):
    """A spoiled run of bytes takes nothing back: each prefix of tokens gives a prefix of text."""
    detokenizer = Detokenizer(fallback)
    shown = ""
    for at, token in enumerate(tokens):
        shown += detokenizer.push(token)
        assert fallback.decode(tokens[: at + 1]).startswith(shown)
    assert shown + detokenizer.flush() == fallback.decode(tokens)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<0x41>", "<0xFF>", "<0x42>"], "A\ufffdB"),
        (["<0xF0>", "<0x9F>", "<0xA4>", "<0x96>", "<0xF0>", "<0x9F>"], "🤖\ufffd"),
        (["<0xE4>", "<0xBD>", "<0xA0>", "<eos>", "<0xE5>"], "你\ufffd"),
    ],
)
def test_malformed_bytes_spoil_only_themselves(fallback, tokens, expected):
    assert fallback.decode(fallback.tokenizer.convert_tokens_to_ids(tokens)) == expected


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), max_size=30),
)
def test_stop_scanner_equals_a_search_in_the_whole_text(written, stops, cuts):
    scanner = StopScanner(stops)
    shown, at = "", 0
    for cut in [*cuts, len(written)]:
        shown += scanner.push(written[at : at + cut])
        at += cut
        # What is shown never has to be taken back.
        assert written.startswith(shown)
        if scanner.hit:
            break
    shown += scanner.flush()
    places = [written.find(stop) for stop in stops if stop in written]
    if not scanner.hit:
        assert shown == written
        assert not places
    else:
        # The first stop string to be complete wins; its text is gone.
        seen = written[:at]
        assert shown == seen[: min(seen.find(stop) for stop in stops if stop in seen)]


def test_missing_template_says_what_to_do(text, tmp_path):
    wrapped = tiny.tokenizer()
    wrapped.chat_template = None
    wrapped.save_pretrained(tmp_path)
    bare = Text(tmp_path)
    with pytest.raises(RequestError, match="no chat template; send the goal with raw_prompt"):
        bare.encode((Message(role="user", content="Hi"),), None)
    assert bare.encode((), "Hi")


def test_missing_or_damaged_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        Text(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot be read"):
        Text(tmp_path)
