# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded pair writes 20 tokens in a real engine process, with drafts and without.

A program of its own, ``python -m gemma_mtp_ros.cli.self_test``, for ``gemma-mtp doctor``; prints
JSON. Host, engine and their settings are those of the node.
"""

from __future__ import annotations

import json
import queue
from typing import Any

from ..api import (
    EngineConfig,
    Finish,
    GemmaMtpError,
    Message,
    Piece,
    Request,
    SamplingParams,
)
from ..host import EngineHost, Event
from ..models import DEMO, resolve_pair

PROMPT = "Bring Anna the red cup from the kitchen."
TOKENS = 20
DRAFTS = 4


def write(host: EngineHost, name: str, drafts: int) -> tuple[list[int], Finish]:
    """Greedy tokens with this draft length, and how it ended."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    host.set_live(draft_max_length=drafts)
    host.submit(
        Request(
            id=name,
            messages=(Message(role="user", content=PROMPT),),
            sampling=SamplingParams(max_new_tokens=TOKENS, temperature=0.0, seed=0),
        ),
        events.put,
    )
    tokens: list[int] = []
    while not isinstance(event := events.get(), Finish):
        if isinstance(event, Piece):
            tokens += event.token_ids
    if event.error_msg:
        raise GemmaMtpError(event.error_msg, event.error_code)
    return tokens, event


def main() -> dict[str, Any]:
    """Run; return what was found. ``error``: why it could not run."""
    target, drafter = resolve_pair(DEMO, "")
    host = EngineHost(
        EngineConfig(model=target, drafter=drafter, max_context=512),
        on_log=lambda level, line: None,
    )
    try:
        info = host.start()
        plain, _ = write(host, "plain", 0)
        drafted, finish = write(host, "drafted", DRAFTS)
    except GemmaMtpError as error:
        return {"error": str(error)}
    finally:
        host.stop()
    return {
        "error": "",
        "plain": plain,
        "drafted": drafted,
        "text": finish.text,
        "accepted": sum(finish.stats.accepted_at),
        "device": info.device,
        "reproducible": info.reproducible,
        "load_s": info.load_s,
    }


if __name__ == "__main__":
    print(json.dumps(main()))
