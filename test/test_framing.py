# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Frames survive any chopping, and a socket that takes little."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_mtp_ros.api import MAX_PROMPT_BYTES, Generate, Request, Warm, to_engine
from gemma_mtp_ros.framing import MAX_FRAME_BYTES, FrameError, FrameReader, FrameWriter, encode


@given(st.lists(st.text(), max_size=6), st.data())
def test_any_chopping_gives_the_same_messages(texts: list[str], data: st.DataObject) -> None:
    sent = [Warm(id=str(i), system_prompt=text) for i, text in enumerate(texts)]
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader = FrameReader()
    bodies = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        bodies += reader.feed(stream[start:end])
    assert [to_engine.validate_json(body) for body in bodies] == sent


def test_a_length_beyond_the_bound_is_refused() -> None:
    with pytest.raises(FrameError, match=str(MAX_FRAME_BYTES)):
        list(FrameReader().feed(struct.pack("<I", MAX_FRAME_BYTES + 1)))


def test_what_came_before_a_bad_frame_is_read() -> None:
    good = Warm(id="a")
    bodies = FrameReader().feed(encode(good) + b"\xff" * 8)
    assert to_engine.validate_json(next(bodies)) == good
    with pytest.raises(FrameError):
        next(bodies)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(FrameError, match="Unicode"):
        encode(Warm(id="a", system_prompt="\ud800"))


def test_the_longest_prompt_fits_whatever_its_characters() -> None:
    request = Request(id="a", raw_prompt="\0" * MAX_PROMPT_BYTES)
    assert len(encode(Generate(request=request))) < MAX_FRAME_BYTES


def test_a_full_socket_delays_but_never_blocks_or_loses() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        writer, reader = FrameWriter(), FrameReader()
        sent = [Warm(id=str(i), system_prompt="x" * 300_000) for i in range(4)]
        for message in sent:
            writer.add(encode(message))
        writer.flush(ours)
        assert writer  # the buffer of the socket is smaller than that
        bodies: list[bytes] = []
        while len(bodies) < len(sent):
            bodies += reader.feed(theirs.recv(65536))
            writer.flush(ours)
        assert not writer
        assert [to_engine.validate_json(body) for body in bodies] == sent


def test_a_socket_whose_other_end_is_gone_drops_what_is_left() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        theirs.close()
        writer = FrameWriter()
        writer.add(b"abc")
        with pytest.raises(OSError, match="Broken pipe"):
            writer.flush(ours)
        assert not writer
