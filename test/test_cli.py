# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: the real command, as a process and through its entry point."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from rich.console import Console

from gemma_mtp_ros import demo
from gemma_mtp_ros.api import Channel, Stats, ToolCall
from gemma_mtp_ros.cli.main import main
from gemma_mtp_ros.demo.evaluate import extract_plan
from gemma_mtp_ros.models import resolve_pair
from gemma_mtp_ros.terminal import AnswerPrinter, call_line, plan_table, statistics, visible

REPOSITORY = Path(__file__).parent.parent
# As installed without ROS: whoever imports it here fails.
WITHOUT_ROS = (
    "import sys; sys.modules['rclpy'] = None; "
    "from gemma_mtp_ros.cli.main import main; sys.exit(main())"
)
ENDLESS = "100000"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A random pair that writes small letters and never ends its turn."""
    letters = set(tiny.tokenizer().convert_tokens_to_ids(list(string.ascii_lowercase)))
    others = [token for token in range(tiny.VOCAB) if token not in letters]
    target, drafter = tiny.make_pair(tmp_path_factory.mktemp("pair"), suppress_tokens=others)
    return str(target), str(drafter)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_ROS, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `gemma-mtp ask`, in this process."""
    try:
        status = main(["ask", *arguments])
    except SystemExit as ended:  # argparse ends the process itself
        status = ended.code
    said = capsys.readouterr()
    return status, said.out, said.err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, err = ask(capsys, "--json", *arguments)
    assert status == 0, err
    return json.loads(out)


def test_text_goes_to_stdout_and_statistics_to_stderr(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--drafter",
        pair[1],
        "--seed",
        "7",
        "--max-new-tokens",
        "40",
        "--system",
        "Be brief",
    ]
    process = start("ask", "--model", pair[0], *options, "--threads", "1", "hello robot")
    out, err = process.communicate()
    assert process.returncode == 0, err
    expected = answer(capsys, "--model", pair[0], *options, "hello robot")
    assert out.decode() == expected["text"] + "\n"
    assert len(expected["text"]) == 40
    for name in ("tokens/s", "time to first token", "acceptance", "tokens per target pass"):
        assert name in err.decode()


def test_text_comes_while_it_is_generated_and_ctrl_c_ends_it(pair: tuple[str, str]) -> None:
    process = start("ask", "--model", pair[0], "--max-new-tokens", ENDLESS, "hello")
    assert process.stdout is not None
    first = process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate()
    assert process.returncode == 130
    assert (first + rest).decode().rstrip("\n").isalpha()
    assert b"tokens/s" in err
    assert b"Traceback" not in err


def test_a_reader_that_goes_away_ends_it(pair: tuple[str, str]) -> None:
    process = start("ask", "--model", pair[0], "--max-new-tokens", ENDLESS, "hello")
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_draft_length_changes_the_cost_and_not_the_text(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", pair[0], "--drafter", pair[1], "--max-new-tokens", "60", "--seed", "3"]
    answers = [answer(capsys, *options, "--draft-length", k, "hello") for k in ("0", "3", "7")]
    assert len({found["text"] for found in answers}) == 1
    drafted = [found["stats"]["drafted_at"] for found in answers]
    assert [sum(count > 0 for count in depths) for depths in drafted] == [0, 3, 7]
    assert answers[0]["stats"]["acceptance_rate"] is None


def test_seed_and_temperature_reach_the_sampler(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def text(*options: str) -> str:
        return answer(
            capsys, "--model", pair[0], "--max-new-tokens", "30", "--no-reproducible", *options, "x"
        )["text"]

    hot = ("--temperature", "2")
    assert text(*hot, "--seed", "1") == text(*hot, "--seed", "1") != text(*hot, "--seed", "2")
    cold = ("--temperature", "0")
    assert text(*cold, "--seed", "1") == text(*cold, "--seed", "2")


def test_the_prompt_may_come_from_the_standard_input(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["--model", pair[0], "--raw", "--max-new-tokens", "20", "--temperature", "0"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("tidy up"))
    found = answer(capsys, *options, "-")
    assert found["stats"]["prompt_tokens"] == len("tidy up")  # a byte a token, no template
    assert found["text"] == answer(capsys, *options, "tidy up")["text"]


def test_a_closed_standard_input_is_an_empty_one(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as python finds it after <&-
    status, _, err = ask(capsys, "--model", pair[0], "-")
    assert status == 2
    assert "prompt is empty" in err
    monkeypatch.setattr(sys, "stdin", None)
    status, out, _ = ask(capsys, "--model", pair[0], "--max-new-tokens", "5", "--chat", "hello")
    assert status == 0
    assert out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "TARGET", "--draft-length", "8", "x"], ["--draft-length", "'8'", "0 to 7"]),
        (["--model", "TARGET", "--max-new-tokens", "0", "x"], ["--max-new-tokens = 0", "1"]),
        (["--model", "TARGET", "--temperature", "nan", "x"], ["--temperature", "finite"]),
        (["--model", "TARGET", "--seed", "-1", "x"], ["--seed = -1"]),
        (["--model", "TARGET", "--threads", "many", "x"], ["--threads", "many"]),
        (["--model", "TARGET", "--raw", "--system", "s", "x"], ["--system", "--raw", "drop one"]),
        (["--model", "TARGET", "caf\udce9"], ["PROMPT", "UTF-8"]),
        (["--model", "TARGET", " "], ["prompt is empty"]),
        (["--model", "TARGET", "--max-context", "16", "x" * 40], ["16 tokens", "--max-context"]),
        (["--model", "TARGET", "--max-context", "8", "x"], ["--max-context = 8", "16"]),
        (["--model", "TARGET", "--drafter", "TARGET", "x"], ["drafter", "gemma4_text"]),
        (["--model", "/no/such/folder", "x"], ["/no/such/folder", "does not exist"]),
        (["x"], ["rclpy", "--model"]),
        (["--threads", "2", "x"], ["--threads", "--model"]),
        (["--no-reproducible", "x"], ["--no-reproducible", "--model"]),
        (["--model", "TARGET", "--node", "/n", "x"], ["--model", "--node", "drop one"]),
        (["--model", "TARGET"], ["PROMPT"]),
        (["--model", "TARGET", "--chat", "--json"], ["--json", "--chat"]),
        (["--model", "TARGET", "--chat", "-"], ["PROMPT", "--chat"]),
        (["--model", "TARGET", "--schema", "[]", "x"], ["--schema []", "No such file"]),
        (["--model", "TARGET", "--schema", '{"a":', "x"], ["--schema", "line 1, column 6"]),
        (["--model", "TARGET", "--schema", '{"a":' * 99_999, "x"], ["--schema", "simpler"]),
        (["--model", "TARGET", "--schema", '{"a":' + "1" * 9999, "x"], ["--schema", "simpler"]),
        (["--model", "TARGET", "--tools", "/dev/null", "x"], ["--tools /dev/null", "JSON"]),
        (["--model", "TARGET", "--tools", '[{"name": "a"}]', "x"], ["cannot declare tools"]),
    ],
)
def test_a_mistake_gets_one_sentence(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: list[str],
) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)  # as where ROS is not installed
    for name in [name for name in sys.modules if name.startswith("gemma_mtp_ros.ros.")]:
        monkeypatch.delitem(sys.modules, name)
    given = [pair[0] if word == "TARGET" else word for word in arguments]
    status, out, err = ask(capsys, *given)
    assert (status, out) == (2, "")
    assert err.startswith("gemma-mtp")
    assert err.count("\n") == 1
    for word in words:
        assert word.lower() in err.lower()


def test_a_conversation_in_this_process(
    pair: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ["--model", pair[0], "--max-new-tokens", "20", "--temperature", "0", "--system", "s"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("again\n/reset\nhello\n"))
    status, out, err = ask(capsys, "--chat", *options, "hello")
    assert status == 0
    first, second, third = out.splitlines()
    assert first == third == answer(capsys, *options, "hello")["text"]
    assert second != answer(capsys, *options, "again")["text"]  # it saw what was said before
    prompts = [int(n) for n in re.findall(r"of (\d+) prompt tokens", err)]
    assert prompts[1] > prompts[0] + 20
    assert prompts[2] == prompts[0]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_output_that_is_not_taken_gets_one_sentence(options: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_ROS, "doctor", "--only", "python", *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gemma-mtp: the output cannot be written (No space left on device)")


def test_a_closed_standard_output_is_written_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as python finds it after >&-
    assert main(["doctor", "--only", "python"]) == 0


def test_demo_is_the_embedded_pair() -> None:
    embedded = str(demo.TARGET_DIR), str(demo.DRAFTER_DIR)
    assert resolve_pair("demo", "") == resolve_pair("demo", "demo") == embedded
    assert resolve_pair("demo", "other") == (embedded[0], "other")
    assert resolve_pair("other", "") == resolve_pair("other", "none") == ("other", "")
    assert resolve_pair("demo", "none") == (embedded[0], "")


def test_demo_as_a_draft_model_is_the_embedded_target() -> None:
    assert resolve_pair("other", "demo", "draft_model") == ("other", str(demo.TARGET_DIR))


def test_the_embedded_pair_plans(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--model", "demo", "Bring Anna the red cup from the kitchen.")
    assert extract_plan(found["text"]) == [
        {"action": "navigate", "to": "kitchen"},
        {"action": "pick", "object": "red cup"},
        {"action": "give", "object": "red cup", "to": "Anna"},
    ]
    assert found["stats"]["acceptance_rate"] > 0.5


def test_an_answer_follows_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"enum": ["kitchen", "dock"]}
    options = ["--model", "demo", "--schema", json.dumps(schema), "--max-new-tokens", "20"]
    found = answer(capsys, *options, "Where is the cup?")
    assert json.loads(found["text"]) in schema["enum"]


def printed(rounds: list[str], terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, color_system="standard", width=20)
    printer = AnswerPrinter(console)
    for text in rounds:
        printer.round(text)
    printer.end()
    return file.getvalue()


def test_rounds_alternate_in_colour_on_a_terminal() -> None:
    written = printed(["one", "two", "", "three"], terminal=True)
    green, cyan = "\x1b[1;32m", "\x1b[1;36m"
    off = "\x1b[0m"
    assert written == f"{green}one{off}{cyan}two{off}{cyan}three{off}\n"


def test_thoughts_are_dimmed_and_calls_are_left_to_the_end() -> None:
    text, aside = io.StringIO(), io.StringIO()
    thoughts = Console(file=aside, force_terminal=True, color_system="standard")
    printer = AnswerPrinter(Console(file=text), thoughts)
    printer.round("Hm", Channel.REASONING)
    printer.round("Yes.", Channel.TEXT)
    printer.round("call:go{}", Channel.TOOL_CALL)
    printer.end()
    assert text.getvalue() == "Yes.\n"
    assert aside.getvalue() == "\x1b[2;3mHm\x1b[0m\n"
    line = call_line(ToolCall(name="go", arguments='{"to": "\x1b[2J"}'))
    assert line.plain == '→ go {"to": "�[2J"}'


def test_elsewhere_the_text_comes_as_it_is() -> None:
    text = "a line longer than the console [bold]is[/] wide\x1b[2J\n"
    assert printed([text[:20], text[20:]], terminal=False) == text


def test_an_answer_cannot_steer_the_terminal() -> None:
    assert visible("a\x1b[2Jb\r\x9b\tc\n") == "a�[2Jb��\tc\n"
    assert "\x1b[2J" not in printed(["\x1b[2J"], terminal=True)


def shown(table: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_statistics_say_what_is_known() -> None:
    stats = Stats(
        prompt_tokens=12,
        completion_tokens=21,
        rounds=5,
        drafted_at=(5, 5, 0, 0, 0, 0, 0),
        accepted_at=(4, 3, 0, 0, 0, 0, 0),
        ttft_s=0.025,
        decode_s=0.1,
        tokens_per_second=200.0,
    )
    for figure in ("200", "25 ms", "0.70", "4.00"):
        assert figure in shown(statistics(stats))
    assert "nan" not in shown(statistics(Stats())).lower()


def test_a_plan_is_shown_step_by_step() -> None:
    plan = [{"action": "pick", "object": "[red] cup", "count": 2}, {"action": "dock"}]
    lines = shown(plan_table(plan)).splitlines()
    assert any("pick" in line and "object: [red] cup, count: 2" in line for line in lines)
    assert any("dock" in line for line in lines)
