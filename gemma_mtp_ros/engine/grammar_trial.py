# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a grammar in a process of its own, bounded in time and memory.

llguidance counts its steps, but not those of every automaton: an integer that is a multiple of
999983 takes it 40 s and 400 MB, within its limits. So what may be costly is compiled here first,
where it can be stopped.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

SECONDS = 3
MEMORY_MIB = 1024
BEAT_S = 0.1

LIMITS = LLParserLimits(
    max_grammar_size=100_000,
    max_lexer_states=20_000,
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    verbose_errors=False,
)
"""A tenth to a half of llguidance's defaults: a mask that takes longer than some 10 ms fails."""


def first_error(grammar: str, tokenizer: LLTokenizer) -> str:
    """What is wrong with a grammar; empty if its first mask can be had."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error()


def trial(grammar: str, beat: Callable[[], None]) -> str:
    """:func:`first_error` over single bytes, in another process; also when that takes too much.

    :param beat: called while it takes; may raise to give it up.
    """
    command = [sys.executable, "-m", "gemma_mtp_ros.engine.grammar_trial"]
    too_much = f"compiling it takes more than {SECONDS} s or {MEMORY_MIB} MiB"
    give_up_s = time.monotonic() + 4 * SECONDS
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        given: str | None = grammar
        while True:
            try:
                said, failed = child.communicate(given, timeout=BEAT_S)
                break
            except subprocess.TimeoutExpired:
                given = None
            try:
                beat()
            except BaseException:
                child.kill()
                raise
            if time.monotonic() > give_up_s:
                child.kill()
                return too_much
    if child.returncode < 0 or "MemoryError" in failed:  # ended by a signal: a bound
        return too_much
    if child.returncode:
        from ..api import GemmaMtpError  # which the child does without, in half its time

        raise GemmaMtpError(f"a schema could not be tried: {failed.strip()[-300:]}")
    return said


def main() -> None:
    """Read a grammar from stdin, print what is wrong with it."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB * 2**20, MEMORY_MIB * 2**20))
    print(first_error(sys.stdin.read(), LLTokenizer("byte")), end="")


if __name__ == "__main__":
    main()
