# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Entry point of ``gemma-mtp``: reads the arguments, and loads only what the command needs."""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .. import __version__
from ..limits import DRAFT_KINDS, MAX_DRAFT
from ..models import RELEASED

PRECISIONS = ("float32", "bfloat16", "int8", "int4")

MISTAKE = 2
"""Exit status for what the user can put right."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as of a process that SIGINT ended."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Why a disk takes no more output."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """End the process with the sentence."""
        self.exit(MISTAKE, f"{self.prog}: {message} (see {self.prog} --help)\n")


if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Parser]


def _number(
    kind: Callable[[str], float], low: float, high: float, what: str
) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what} from {low:g} to {high:g}")
        return value

    return parse


def _integer(low: int, high: int) -> Callable[[str], float]:
    return _number(int, low, high, "whole number")


def _seconds(low: float, high: float) -> Callable[[str], float]:
    return _number(float, low, high, "number of seconds")


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="gemma-mtp", description="Gemma 4 with its MTP drafter, with or without ROS.")
    top.add_argument("--version", action="version", version=f"gemma-mtp {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_ask(commands)
    _add_bench(commands)
    _add_plan(commands)
    _add_record(commands)
    _add_fetch(commands)
    _add_doctor(commands)
    return top


def _add_model(command: argparse.ArgumentParser, required: bool = True) -> None:
    """Options of every command that loads a model."""
    command.add_argument(
        "--model",
        required=required,
        default="",
        metavar="NAME",
        help="folder of a Gemma 4 target, name of a downloaded Hugging Face repository, or demo "
        "for the embedded pair",
    )
    command.add_argument(
        "--drafter",
        default="",
        metavar="NAME",
        help="the MTP drafter of this target, or with --draft-kind draft_model a smaller model; "
        "named like --model; none: no drafts (default: the embedded one with --model demo, else "
        "none)",
    )
    command.add_argument(
        "--draft-kind",
        choices=DRAFT_KINDS,
        default="mtp",
        help="where drafts come from (default: %(default)s); see docs/drafters.md",
    )
    command.add_argument(
        "--no-reproducible",
        dest="reproducible",
        action="store_false",
        help="faster; near ties between tokens may fall differently with another draft length",
    )
    command.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads")
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    command.add_argument("--weights", choices=PRECISIONS, default="float32")


def _add_ask(commands: Commands) -> None:
    ask = commands.add_parser(
        "ask",
        help="ask a model, in this process or through the node",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Ask a model: with --model one that is loaded into this process, else that of\n"
        "a running node. The answer goes to the standard output as it comes, thoughts, tool\n"
        "calls and what it cost to the standard error. On a terminal the tokens that one pass\n"
        "of the target brought share a colour.\n\n"
        "Ctrl-C ends the answer at the next round and prints what came; a second one leaves at\n"
        "once. With --chat, the first one leads back to the prompt.",
        epilog="exit status: 0 the answer is whole, or as long as it may be; 1 it broke off with "
        "an\nerror, or nobody reads it; 2 it could not be asked so; 130 Ctrl-C",
    )
    ask.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="what to ask; - reads the standard input"
    )
    _add_model(ask, required=False)
    ask.add_argument(
        "--node",
        default="",
        metavar="NAME",
        help="the ROS node to ask where no --model is given (default: /gemma_mtp)",
    )
    ask.add_argument(
        "--chat",
        action="store_true",
        help="ask again and again, with all that was said before; /help lists commands",
    )
    ask.add_argument(
        "--schema",
        default="",
        metavar="JSON",
        help="JSON Schema that the answer follows, or the name of a file with it",
    )
    ask.add_argument(
        "--tools",
        default="",
        metavar="JSON",
        help="array of function declarations, or the name of a file with it; with --chat you "
        "are asked what each call returned",
    )
    ask.add_argument(
        "--tool-choice",
        default="",
        metavar="WORD",
        help="auto, none, required or a function's name (default: auto)",
    )
    ask.add_argument("--think", action="store_true", help="let the model think first")
    ask.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    ask.add_argument(
        "--draft-length",
        type=_integer(0, MAX_DRAFT),
        default=4,
        metavar="K",
        help=f"most tokens drafted in one round, 0 to {MAX_DRAFT} (default: %(default)s)",
    )
    ask.add_argument("--max-new-tokens", type=int, metavar="N", help="most tokens of the answer")
    ask.add_argument(
        "--temperature", type=float, metavar="T", help="0: greedy (default: as the model says)"
    )
    ask.add_argument(
        "--seed", type=int, metavar="N", help="same seed, same answer (default: drawn at random)"
    )
    ask.add_argument(
        "--max-context",
        type=int,
        default=4096,
        metavar="N",
        help="most tokens of prompt and answer together, if the model allows as many "
        "(default: %(default)s)",
    )
    ask.add_argument("--raw", action="store_true", help="no chat template: go on from PROMPT")
    ask.add_argument(
        "--json", action="store_true", help="one JSON object with answer and statistics at the end"
    )


def _add_bench(commands: Commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure what decoding costs on this board",
        description="Load a model, time its passes, its draft steps and its answers at every "
        "draft length, and compare with what the bandwidth of the memory would allow.",
    )
    _add_model(bench)
    bench.add_argument(
        "--drafter-weights",
        choices=("same", *PRECISIONS),
        default="same",
        help="precision of the drafter (default: that of --weights)",
    )
    bench.add_argument(
        "--kv-dtype",
        choices=("auto", "float32", "bfloat16", "int8"),
        default="auto",
        help="precision of keys and values",
    )
    bench.add_argument(
        "--context",
        type=_integer(1, 262_144),
        default=200,
        metavar="N",
        help="tokens in the caches when passes are timed, and of the prompt whose first token is "
        "(default: %(default)s)",
    )
    bench.add_argument(
        "--tokens",
        type=_integer(2, 8192),
        default=48,
        metavar="N",
        help="most tokens of an answer (default: %(default)s)",
    )
    bench.add_argument(
        "--repeats",
        type=_integer(1, 1000),
        default=3,
        metavar="N",
        help="turns, of which medians are taken (default: %(default)s)",
    )
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    bench.add_argument(
        "--drafters",
        action="store_true",
        help="compare kinds of drafters by kind of task and by temperature instead: plain, "
        "prompt_lookup, mtp with --drafter, draft_model with --draft-model",
    )
    bench.add_argument(
        "--draft-model",
        default="",
        metavar="NAME",
        help="with --drafters: a smaller model that drafts, named like --model",
    )
    bench.add_argument(
        "--draft-length",
        type=_integer(1, MAX_DRAFT),
        default=4,
        metavar="K",
        help=f"with --drafters: tokens drafted in one round, 1 to {MAX_DRAFT} (default: "
        "%(default)s)",
    )
    bench.add_argument(
        "--picture", type=Path, metavar="FILE", help="with --drafters: draw them, .png or .svg"
    )
    bench.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw them into this file, .png or .svg"
    )


def _add_plan(commands: Commands) -> None:
    plan = commands.add_parser(
        "plan",
        help="say which model fits a board, and how to start it",
        description="Compute what each released pair, or one, takes on a Jetson module or on this "
        "machine, recommend one, and print the line that starts the node with it. Nothing is "
        "downloaded or loaded. Bytes are those that configure counts; speeds are estimates. "
        "Exit status 1: nothing fits.",
    )
    plan.add_argument(
        "--module",
        default="",
        metavar="NAME",
        help="orin-nano-4gb, orin-nano-8gb, orin-nx-8gb, orin-nx-16gb, agx-orin-32gb, "
        "agx-orin-64gb, thor-64gb or thor-128gb (default: this machine)",
    )
    plan.add_argument(
        "--model",
        default="",
        metavar="NAME",
        help="E2B, E4B, 12B, 26B-A4B, 31B, a folder with config.json, or demo (default: all "
        "released ones)",
    )
    plan.add_argument(
        "--drafter",
        default="",
        metavar="NAME",
        help="folder of its drafter, or with --draft-kind draft_model a smaller model; none: no "
        "drafts (default: the released one; with a folder none)",
    )
    plan.add_argument(
        "--draft-kind",
        choices=DRAFT_KINDS,
        default="mtp",
        help="where drafts come from (default: %(default)s); see docs/drafters.md",
    )
    plan.add_argument(
        "--weights", choices=PRECISIONS, help="plan for this precision alone (default: all)"
    )
    plan.add_argument(
        "--context",
        type=_integer(16, 262_144),
        metavar="N",
        help="most tokens of prompt and answer together (default: as many as are cheap)",
    )
    plan.add_argument(
        "--kv-dtype",
        choices=("auto", "float32", "bfloat16", "int8"),
        default="auto",
        help="precision of keys and values",
    )
    plan.add_argument(
        "--ple",
        choices=("auto", "disk", "memory"),
        default="auto",
        help="where the table of per-layer embeddings lies",
    )
    plan.add_argument(
        "--no-reproducible",
        dest="reproducible",
        action="store_false",
        help="plan for passes of natural width (see docs/engine.md)",
    )
    plan.add_argument(
        "--no-structured-output",
        dest="structured_output",
        action="store_false",
        help="plan without the masks that hold answers to schemas",
    )
    plan.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    plan.add_argument(
        "--reserve-mib",
        type=_integer(0, 1_048_576),
        metavar="MIB",
        help="memory to leave to the rest of the robot (default: a quarter, at least 1024)",
    )
    plan.add_argument(
        "--cache-mib",
        type=_integer(0, 1_048_576),
        metavar="MIB",
        help="memory for cached prefixes (default: as the board's preset)",
    )
    plan.add_argument(
        "--min-speed",
        type=_number(float, 0.0, 1e6, "number"),
        default=10.0,
        metavar="N",
        help="tokens/s that a recommended model is to reach on text that drafts badly "
        "(default: %(default)s)",
    )
    plan.add_argument("--json", action="store_true", help="one JSON object; sizes in bytes")
    plan.add_argument(
        "--root",
        default="/",
        metavar="FOLDER",
        help="folder that holds proc/ of the board (default: %(default)s)",
    )


def _add_record(commands: Commands) -> None:
    record = commands.add_parser(
        "record",
        help="record what the sensors of this board say",
        description="Write a trace of the board's temperatures, power, clocks and power mode: JSON "
        "lines, one a reading, which telemetry.source replay plays back. Ends after --seconds or "
        "at Ctrl-C; what was read until then is in the file.",
    )
    record.add_argument(
        "file", type=Path, metavar="FILE", help="a new file; one that ends in .gz is compressed"
    )
    record.add_argument(
        "--seconds",
        type=_seconds(0.01, 1e7),
        metavar="N",
        help="how long (default: until Ctrl-C)",
    )
    record.add_argument(
        "--period",
        type=_seconds(0.01, 3600.0),
        default=0.5,
        metavar="S",
        help="seconds between readings (default: %(default)s)",
    )
    record.add_argument(
        "--source",
        choices=("auto", "sysfs", "nvml", "plain"),
        default="auto",
        help="where readings come from (default: the best that this machine has)",
    )
    record.add_argument(
        "--root",
        default="/",
        metavar="FOLDER",
        help="folder that holds sys/, proc/, etc/ and var/ of the board (default: %(default)s)",
    )


def _add_fetch(commands: Commands) -> None:
    fetch = commands.add_parser(
        "fetch",
        help="download a target and its drafter, checked as a pair",
        description="Download a Gemma 4 target and its drafter from the Hugging Face Hub into the "
        "local cache: what the engine reads of them and nothing else. Prints the commit of each. "
        "After an interruption the same command goes on where it stopped.",
    )
    fetch.add_argument(
        "name",
        metavar="NAME",
        help=f"size of a released pair ({', '.join(RELEASED)}), or a target's repository "
        "(OWNER/NAME)",
    )
    fetch.add_argument(
        "--drafter",
        default="",
        metavar="NAME",
        help="repository of the drafter; none: the target alone (default: that of the released "
        "pair, else none)",
    )
    for option, whose in (("--revision", "target"), ("--drafter-revision", "drafter")):
        fetch.add_argument(
            option,
            default="",
            metavar="REV",
            help=f"branch, tag or commit of the {whose} (default: main)",
        )
    fetch.add_argument(
        "--offline",
        action="store_true",
        help="ask nobody: say what is in the cache, and whether it is complete (also with "
        "HF_HUB_OFFLINE=1)",
    )


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check what the node needs on this machine",
        description="Check ROS, Python and its packages, the GPU, the sensors, memory, disk and "
        "power mode, and let the embedded pair write 20 tokens. Each finding is a sentence, with "
        "the remedy. Ends with 1 if there is an error.",
    )
    doctor.add_argument("--json", action="store_true", help="one JSON object with all findings")
    doctor.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CHECK",
        help="carry out this check alone; may be given more than once",
    )
    doctor.add_argument(
        "--root",
        default="/",
        metavar="FOLDER",
        help="folder that holds sys/, proc/, etc/, var/ and dev/ of the board "
        "(default: %(default)s)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    # A stream that was closed, as by a supervisor: nothing comes from there, nobody reads it.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    options = parser().parse_args(argv)
    try:
        command = importlib.import_module(f"{__package__}.{options.command}")
        status: int = command.run(options)
        sys.stdout.flush()
        return status
    except ImportError as error:
        return _mistake(
            f"{error.name or error} cannot be imported by {sys.executable} ({error}); install the "
            "requirements of gemma_mtp_ros there"
        )
    except KeyboardInterrupt:
        print("gemma-mtp: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()  # whoever read has enough
        return 1
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        if isinstance(error, OSError):
            _give_up_output()
        return _mistake(sentence)


def _give_up_output() -> None:
    """Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str | None:
    """What the user can put right; None: the program is at fault.

    Imports here what every command but doctor cannot do without: doctor says if it is missing.
    """
    from pydantic import ValidationError

    from ..api import GemmaMtpError, one_sentence

    if isinstance(error, ValidationError):
        field, rest = one_sentence(error).split(" ", 1)
        return f"--{field.replace('_', '-')} {rest}"
    if isinstance(error, OSError) and error.filename is None and error.errno in NO_ROOM:
        return f"the output cannot be written ({error.strerror}); free some of that disk"
    return str(error) if isinstance(error, GemmaMtpError) else None


def _mistake(sentence: str) -> int:
    print(f"gemma-mtp: {sentence}", file=sys.stderr)
    return MISTAKE


if __name__ == "__main__":
    sys.exit(main())
