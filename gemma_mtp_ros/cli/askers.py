# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Where a question of ``gemma-mtp ask`` goes: an engine in this process, or a ROS node."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from ..api import (
    Cancel,
    Channel,
    EngineConfig,
    Finish,
    FinishReason,
    GemmaMtpError,
    Message,
    Piece,
    Request,
    SamplingParams,
)
from ..models import resolve_pair

if TYPE_CHECKING:
    from ..engine.decode import Engine, RoundControl
    from ..ros.client import Answer

_OPTIONS = re.compile(r"engine\.(max_context|device)")
CHAT_CACHE_MIB = 256
"""Memory for what was read of a conversation, as the node's parameter cache.max_mib has it."""
LOOK_S = 0.1
"""How often the state of a goal that brings no text is shown."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked, wherever it goes; fields as in :class:`gemma_mtp_ros.api.Request`."""

    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    session_id: str = ""
    enable_thinking: bool = False
    response_schema: str = ""
    tools: str = ""
    tool_choice: str = ""
    sampling: SamplingParams = dataclasses.field(default_factory=SamplingParams)


class Interrupt:
    """Ctrl-C as a wish: the first is told to `on_ask`, the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.asked = False
        self.on_ask: Callable[[], None] = lambda: None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.on_ask()


Show = Callable[[str, Channel], None]


class Asker(Protocol):
    """Answers questions."""

    def ask(self, question: Question, interrupt: Interrupt, show: Show) -> Finish:
        """Hand each piece to `show` as it comes; say how it ended.

        Raises:
            GemmaMtpError: there is no answer at all.
        """

    def model(self) -> dict[str, Any]:
        """What is known of the model that answered, for --json."""


class InProcess:
    """An engine in this process."""

    def __init__(self, options: argparse.Namespace, errors: Console) -> None:
        """Load the model.

        Raises:
            GemmaMtpError: it cannot be loaded; says what to change.
            pydantic.ValidationError: an option is out of its bounds.
        """
        self._draft_length: int = options.draft_length
        config = make_config(options)
        with naming_options():
            self._engine = _load(config, errors)

    def ask(self, question: Question, interrupt: Interrupt, show: Show) -> Finish:
        """See :class:`Asker`."""
        from ..engine.decode import RoundControl

        request = make_request(question)

        def poll() -> RoundControl:
            end = Cancel(request_id=request.id) if interrupt.asked else None
            return RoundControl(draft_cap=self._draft_length, end=end)

        with naming_options():
            for event in self._engine.generate(request, poll):
                if isinstance(event, Piece):
                    show(event.text, event.channel)
                elif isinstance(event, Finish):
                    return event
        raise AssertionError("the engine ended without saying how")

    def model(self) -> dict[str, Any]:
        """See :class:`Asker`."""
        return self._engine.info.model_dump(mode="json")


class ThroughNode:
    """A node that runs elsewhere."""

    def __init__(self, name: str, errors: Console) -> None:
        """Make a client.

        Raises:
            GemmaMtpError: ROS is not there.
        """
        try:
            from ..ros.client import GenerateClient, NodeLostError
        except ImportError as error:
            raise GemmaMtpError(
                f"{error.name or error} cannot be imported by {sys.executable}; without --model a "
                "ROS node is asked: source ROS and the built workspace, or give --model"
            ) from error
        self._client = GenerateClient(name)
        self._node_lost = NodeLostError
        self._errors = errors
        self._model = ""

    def ask(self, question: Question, interrupt: Interrupt, show: Show) -> Finish:
        """See :class:`Asker`."""
        sampling = question.sampling.model_dump(exclude_unset=True, exclude_none=True)
        answer = self._client.ask(
            question.raw_prompt or "",
            raw_prompt=question.raw_prompt is not None,
            messages=question.messages,
            session_id=question.session_id,
            enable_thinking=question.enable_thinking,
            response_schema=question.response_schema,
            tools=question.tools,
            tool_choice=question.tool_choice,
            **sampling,
        )
        interrupt.on_ask = answer.cancel
        if interrupt.asked:
            answer.cancel()
        self._await_first(answer)
        while not answer.done():
            answer.wait(LOOK_S)
            for piece in answer.take():
                if piece.lost:
                    self._errors.print(f"[{piece.lost} pieces were lost]", style="red")
                show(piece.text, piece.channel)
        try:
            result = answer.result(check=False)
        except self._node_lost as error:
            return Finish(
                request_id="ask",
                finish_reason=FinishReason.ERROR,
                error_code=error.code,
                error_msg=str(error),
                text=answer.text,
                reasoning=answer.reasoning,
            )
        self._model = result.model
        return result

    def model(self) -> dict[str, Any]:
        """See :class:`Asker`."""
        return {"model": self._model}

    def close(self, wait: bool) -> None:
        """Leave ROS."""
        self._client.close(wait)

    def _await_first(self, answer: Answer) -> None:
        """Show how far the goal is until it brings something."""
        shown = self._errors.status("") if self._errors.is_terminal else contextlib.nullcontext()
        with shown as status:
            while not answer.wait(LOOK_S):
                if status is not None:
                    status.update(answer.stage.name.lower())


def make_request(question: Question) -> Request:
    """The question for an engine in this process.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    fields = {field.name: getattr(question, field.name) for field in dataclasses.fields(question)}
    return Request.model_validate(fields | {"id": "ask", "submitted_s": time.monotonic()})


def make_config(options: argparse.Namespace) -> EngineConfig:
    """What the engine is made with.

    Raises:
        pydantic.ValidationError: a value is out of its bounds.
    """
    model, drafter = resolve_pair(options.model, options.drafter, options.draft_kind)
    return EngineConfig(
        model=model,
        drafter=drafter,
        draft_kind=options.draft_kind,
        device=options.device,
        weights=options.weights,
        reproducible=options.reproducible,
        threads=options.threads,
        max_context=options.max_context,
        cache_max_mib=CHAT_CACHE_MIB if options.chat else 0,
    )


def as_options(sentence: str) -> str:
    """Name options where the engine names the node's parameters."""
    sentence = sentence.replace("draft.kind", "--draft-kind")
    sentence = sentence.replace("in the parameter 'drafter'", "as --drafter")
    return _OPTIONS.sub(lambda found: "--" + found[1].replace("_", "-"), sentence)


@contextlib.contextmanager
def naming_options() -> Iterator[None]:
    """Name options where an error names the node's parameters."""
    try:
        yield
    except GemmaMtpError as error:
        raise type(error)(as_options(str(error)), error.code) from error


def _load(config: EngineConfig, console: Console) -> Engine:
    with _progress(console) as progress:
        progress("importing torch", 0.0)
        from ..engine import bounds

        bounds.let_idle_threads_sleep()
        bounds.apply_to_torch(config)
        from ..engine.decode import Engine

        return Engine.load(config, progress)


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Show the stages of a load on a terminal, and nothing elsewhere."""
    if not console.is_terminal:
        yield lambda stage, fraction: None
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=30)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, fraction: bar.update(task, description=stage, completed=fraction)
