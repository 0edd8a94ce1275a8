# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""`gemma-mtp ask` through the node: real processes, real signals, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from driver import Driver, NodeProcess

from gemma_mtp_ros.api import FinishReason
from gemma_mtp_ros.cli.main import main

REPOSITORY = Path(__file__).parent.parent.parent
CUP = "Bring Anna the red cup from the kitchen."
DOCK = "Go to the dock."
SAID = "I will bring Anna the red cup from the kitchen.\n"
DOCKED = 'I will return to the dock.\n{"plan":[{"action":"dock"}]}\n'
WAIT_S = 60.0


@pytest.fixture(scope="module")
def parameters(embedded: dict[str, Any]) -> dict[str, Any]:
    return embedded


@pytest.fixture
def slow(active: NodeProcess, driver: Driver) -> Iterator[None]:
    """Answers take seconds: a token a round."""
    assert driver.set(draft__max_length=0) == ""
    yield
    assert driver.set(draft__max_length=4) == ""


def start(*arguments: str, **streams: Any) -> subprocess.Popen[str]:
    path = f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-m", "gemma_mtp_ros", "ask", *arguments],
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        | streams,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
    )


def ask(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    process = start(*arguments)
    out, err = process.communicate(stdin, timeout=WAIT_S)
    return process.returncode, out, err


@pytest.mark.usefixtures("active")
def test_the_text_goes_to_stdout_and_the_cost_to_stderr() -> None:
    status, out, err = ask(CUP)
    assert status == 0
    assert out.startswith(SAID)
    assert json.loads(out.removeprefix(SAID))["plan"]
    assert "tokens/s" in err


@pytest.mark.usefixtures("active")
def test_json_and_the_prompt_from_stdin() -> None:
    status, out, err = ask(
        "--json", "--max-new-tokens", "5", "--node", "/gemma_mtp", "-", stdin=CUP
    )
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert SAID.startswith(found["text"])
    assert (found["finish_reason"], found["error_code"]) == ("length", 0)
    assert found["model"]["model"]
    assert found["stats"]["completion_tokens"] == 5


@pytest.mark.usefixtures("active", "slow")
def test_ctrl_c_cancels_the_goal_and_prints_what_came(driver: Driver) -> None:
    process = start(CUP)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    said = (first + rest).removesuffix("\n")
    assert SAID.startswith(said)
    assert said != SAID
    assert "tokens/s" in err
    assert "Traceback" not in err
    driver.wait_until(lambda: any(chunk.done for chunk in driver.chunks))
    assert driver.chunks[-1].finish_reason == FinishReason.CANCELED
    assert "".join(chunk.text for chunk in driver.chunks) == said


@pytest.mark.usefixtures("slow")
def test_a_second_ctrl_c_leaves_though_the_node_hangs(active: NodeProcess) -> None:
    process = start(CUP)
    assert process.stdout is not None
    process.stdout.read(1)
    active.signal(signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)  # the goal cannot be canceled
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    finally:
        active.signal(signal.SIGCONT)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "gemma-mtp: interrupted"
    assert "Traceback" not in err


def prompt_tokens(err: str) -> list[int]:
    return [int(found) for found in re.findall(r"of (\d+) prompt tokens", err)]


@pytest.mark.usefixtures("active")
def test_chat_keeps_what_was_said() -> None:
    lines = [DOCK, "", DOCK, "/reset", "/nothing", DOCK, "/quit", "never asked"]
    status, out, err = ask("--chat", "--temperature", "0", stdin="\n".join(lines))
    assert status == 0
    assert out == DOCKED * 3
    first, second, third = prompt_tokens(err)
    assert second > 2 * first
    assert third == first
    assert "/nothing is no command" in err


@pytest.mark.usefixtures("active")
def test_a_turn_that_fails_is_forgotten_and_the_chat_goes_on() -> None:
    status, out, err = ask("--chat", DOCK, stdin="dock " * 5000 + "\n" + DOCK + "\n")
    assert status == 0
    assert out == DOCKED * 2
    assert "this turn is forgotten" in err
    first, second = prompt_tokens(err)
    assert second < 4 * first


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self.process = start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self._file: IO[bytes] = os.fdopen(ours, "r+b", buffering=0)
        self.seen = ""

    def wait(self, *words: str) -> str:
        """What is shown from now on until the last of the words, which come in this order."""
        begin = len(self.seen)
        for word in words:
            at = begin
            while word not in self.seen[at:]:
                self.seen += os.read(self._file.fileno(), 4096).decode(errors="replace")
        return self.seen[begin:]

    def type(self, text: str) -> None:
        self._file.write(text.encode())

    def close(self) -> None:
        self._file.close()


@pytest.mark.usefixtures("active", "slow")
def test_chat_on_a_terminal_ctrl_c_leads_back_to_the_prompt(driver: Driver) -> None:
    terminal = Terminal("--chat")
    terminal.wait("/quit leaves", "> ")
    terminal.type(CUP + "\n")
    terminal.wait("will")
    terminal.process.send_signal(signal.SIGINT)
    terminal.wait("canceled; this turn is forgotten", "> ")
    assert driver.set(draft__max_length=4) == ""
    terminal.type(DOCK + "\n")
    shown = terminal.wait("dock", "prompt tokens cached", "> ")
    assert "\x1b[1;3" in shown  # rounds in colours
    terminal.type("/quit\n")
    assert terminal.process.wait(WAIT_S) == 0
    terminal.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--schema", '{"type": 3}', "x"], ["schema"]),
        (["--schema", "FILE", "x"], ["schema"]),
        (["--tools", '[{"name": "stop"}]', "x"], ["cannot declare tools"]),
        (["--think", "x"], ["enable_thinking"]),
        (["--temperature", "0", "x" * 5 + " " * 10 + "y" * 20000], ["tokens"]),
    ],
)
@pytest.mark.usefixtures("active")
def test_what_the_node_refuses_is_a_mistake(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": 3}')
    status = main(["ask", *(str(file) if word == "FILE" else word for word in arguments)])
    out, err = capsys.readouterr()
    assert (status, out.strip()) == (2, "")
    assert err.startswith("gemma-mtp: ")
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.usefixtures("active")
def test_an_inactive_node(driver: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    assert driver.change("deactivate")
    assert main(["ask", CUP]) == 2
    assert "takes goals only while it is active" in capsys.readouterr().err
