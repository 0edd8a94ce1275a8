# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Words that cross borders between node, host, engine and command line.

Frozen pydantic models only; no torch, no rclpy. The numbers of :class:`FinishReason` and
:class:`ErrorCode` are those of ``action/Generate.action``.
"""

from __future__ import annotations

import enum
import json
import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from .limits import MAX_DRAFT as MAX_DRAFT

MAX_STOP_STRINGS = 64
MAX_STOP_BYTES = 1024
MAX_PROMPT_BYTES = 4 * 1024 * 1024


class FinishReason(enum.IntEnum):
    """Why a generation ended (constants ``FINISH_*`` of the action's result)."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    TOOL_CALLS = 3
    CANCELED = 4
    TIMEOUT = 5
    PREEMPTED = 6
    THERMAL = 7
    ERROR = 8


class ErrorCode(enum.IntEnum):
    """Error codes of the action's result."""

    NONE = 0
    UNKNOWN = 7100
    INVALID_GOAL = 7101
    PROMPT_TOO_LONG = 7102
    QUEUE_FULL = 7103
    NOT_ACTIVE = 7104
    TIMEOUT = 7105
    PREEMPTED = 7106
    THERMAL_LIMIT = 7107
    ENGINE_LOST = 7108
    OUT_OF_MEMORY = 7109
    SCHEMA_UNSUPPORTED = 7110
    TOOL_CALL_INVALID = 7111
    BACKEND_UNAVAILABLE = 7112
    CANCELED = 7113


class Channel(enum.IntEnum):
    """Which part of the answer a piece belongs to (constants of ``TokenChunk``)."""

    TEXT = 0
    REASONING = 1
    TOOL_CALL = 2


class GemmaMtpError(Exception):
    """A failure that a user can act on: one sentence with the value, the bound and the remedy."""

    code = ErrorCode.UNKNOWN

    def __init__(self, message: str, code: ErrorCode | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class CheckpointError(GemmaMtpError):
    """A model folder that cannot be used."""

    code = ErrorCode.BACKEND_UNAVAILABLE


class RequestError(GemmaMtpError):
    """A goal that cannot be served as asked."""

    code = ErrorCode.INVALID_GOAL


class EngineLostError(GemmaMtpError):
    """The engine process died or stopped answering."""

    code = ErrorCode.ENGINE_LOST


class Frozen(BaseModel):
    """Base of all messages: immutable, no unknown fields, NaN and infinity refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolCall(Frozen):
    """A call of a tool, as ``msg/ToolCall``; ``arguments`` is JSON."""

    id: str = ""
    name: str
    arguments: str = "{}"


class Message(Frozen):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str = ""
    reasoning: str = ""
    """What the assistant thought before its calls; templates show it again until the next user
    turn."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


class SamplingParams(Frozen):
    """How tokens are drawn. ``None`` takes the checkpoint's ``generation_config.json``.

    ``temperature`` 0 is greedy, ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and ``repetition_penalty`` 1
    are off; ``seed`` ``None`` is drawn at random by the engine and reported in :class:`Finish`.
    """

    max_new_tokens: int | None = Field(None, ge=1, le=1_000_000)
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0.0, le=1.0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100.0)
    presence_penalty: float = Field(0.0, ge=-100.0, le=100.0)
    frequency_penalty: float = Field(0.0, ge=-100.0, le=100.0)
    seed: int | None = Field(None, ge=0, lt=2**63)
    stop: tuple[str, ...] = ()

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > MAX_STOP_STRINGS:
            raise ValueError(
                f"{len(value)} stop strings are more than {MAX_STOP_STRINGS}; send fewer"
            )
        for text in value:
            if not text:
                raise ValueError("a stop string is empty; leave it out")
            if len(text.encode("utf-8", "replace")) > MAX_STOP_BYTES:
                raise ValueError(f"a stop string has more than {MAX_STOP_BYTES} bytes; shorten it")
        return value


class Request(Frozen):
    """One goal, validated. Either ``messages`` (through the chat template) or ``raw_prompt``."""

    id: str
    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None
    session_id: str = ""
    enable_thinking: bool = False
    tools: str = ""
    """JSON array of the functions that the model may call; empty: none."""
    tool_choice: str = ""
    """``auto`` (or empty), ``none``, ``required`` or a function's name."""
    response_schema: str = ""
    """JSON Schema that the answer's text follows; empty: free text."""
    sampling: SamplingParams = SamplingParams()
    deadline_s: float | None = None
    """CLOCK_MONOTONIC time at which the goal ends with TIMEOUT."""
    submitted_s: float | None = None
    """CLOCK_MONOTONIC time at which the goal was accepted; statistics count from it."""
    priority: int = Field(0, ge=0, le=255)


class Stats(Frozen):
    """What a generation cost (``msg/GenerationStats``); ``drafted_at[i]`` is draft depth
    ``i+1``.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted_at: tuple[int, ...] = (0,) * MAX_DRAFT
    accepted_at: tuple[int, ...] = (0,) * MAX_DRAFT
    queue_s: float = 0.0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    paused_s: float = 0.0
    total_s: float = 0.0
    tokens_per_second: float = 0.0
    energy_j: float | None = None

    @property
    def acceptance_rate(self) -> float:
        """Share of drafted tokens that stood; NaN when none was drafted."""
        drafted = sum(self.drafted_at)
        return sum(self.accepted_at) / drafted if drafted else math.nan

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a target pass decides in decoding, the first token (of the prefill) aside.

        NaN before the first round.
        """
        return (self.completion_tokens - 1) / self.rounds if self.rounds else math.nan


DraftKind = Literal["mtp", "draft_model", "prompt_lookup", "none"]
"""Where drafts come from: the target's own MTP assistant, a smaller model with the same tokenizer,
the text itself, or nowhere."""


class EngineConfig(Frozen):
    """All that the engine process needs to know at its start."""

    model: str
    """A Hugging Face folder (or the name of a downloaded repository) with the target."""
    drafter: str = ""
    """By ``draft_kind``: the folder of the MTP assistant trained with this target (empty: no
    drafts), or of a smaller model; of no meaning with the other kinds."""
    draft_kind: DraftKind = "mtp"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    weights: Literal["float32", "bfloat16", "int8", "int4"] = "float32"
    drafter_weights: Literal["same", "float32", "bfloat16", "int8", "int4"] = "same"
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Keys and values; auto: float32 for float32 weights, else bfloat16."""
    ple: Literal["auto", "disk", "memory"] = "auto"
    """Where the table of per-layer embeddings lies; auto: in memory up to 64 MiB, else on disk."""
    reproducible: bool = True
    adaptive_draft: bool = False
    """Draft as many tokens as pay by measured costs and acceptance, at most the limit set; False:
    always as many as that."""
    structured_output: bool = True
    """Read the vocabulary for masks: answers and tool calls are held to their schemas while they
    are decoded. It takes a kibibyte a token."""
    max_context: int = Field(4096, ge=16, le=262_144)
    """Most tokens of prompt and completion together; the model's own limit bounds it too."""
    prefill_chunk: int = Field(256, ge=8, le=8192)
    cache_max_mib: int = Field(0, ge=0, le=1_048_576)
    """Memory for cached prefixes; 0: none, each prompt is read anew."""
    max_new_tokens: int = Field(512, ge=1)
    """Token limit where neither the goal nor the parameters give one."""
    threads: int = Field(0, ge=0, le=256)
    """CPU threads of the engine; 0: one for a very small model, else as many as torch chooses."""
    cpu_affinity: tuple[int, ...] = ()
    """CPUs the engine may run on; empty: all."""
    nice: int = Field(0, ge=0, le=19)
    oom_score_adj: int = Field(800, ge=0, le=1000)
    max_duty_cycle: float = Field(1.0, gt=0.0, le=1.0)
    """Largest share of the time in which rounds run; the rest is paused."""
    memory_reserve_mib: int = Field(256, ge=0)
    """Memory left to the rest of the robot when checking whether a model fits."""
    stall_timeout_s: float = Field(30.0, gt=0.0)
    load_timeout_s: float = Field(300.0, gt=0.0)
    """Longest time without a sign of life while decoding, and while loading."""
    max_restarts: int = Field(3, ge=0)
    restart_window_s: float = Field(300.0, gt=0.0)


class MemoryUse(Frozen):
    """Bytes that the engine holds, by purpose."""

    weights: int = 0
    """Of the target, its table of per-layer embeddings aside."""
    drafter: int = 0
    ple: int = 0
    """The table of per-layer embeddings; 0 while it stays on disk."""
    kv: int = 0
    """Keys and values at the full context, which a CPU commits only as they are written."""
    snapshots: int = 0
    """Cached prefixes, at this moment."""
    workspace: int = 0
    """Largest temporary of a pass, and tables."""

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.drafter + self.ple + self.kv + self.snapshots + self.workspace


Drafting = Literal["none", "fixed", "chain", "stepwise"]


class ModelInfo(Frozen):
    """What was loaded, told once the engine is ready."""

    model: str
    drafter: str = ""
    draft_kind: DraftKind = "none"
    """What drafts; ``none`` too where the kind is mtp and no drafter is given."""
    precision: str
    revision: str = ""
    context: int
    vocabulary: int
    bytes: int
    """Bytes of weights, caches and workspace: the total of ``memory``."""
    memory: MemoryUse = MemoryUse()
    reproducible: str
    """``verified``, ``off``, or why equality of bits could not be shown."""
    device: str = "cpu"
    drafting: Drafting = "none"
    """``none``: without a drafter; ``fixed``: always the longest draft; ``chain``: as long as pays,
    decided before each round; ``stepwise``: decided after each draft, by the drafter's probability
    too (on a CPU, where reading it back waits for nothing, from draft steps of 1 ms on)."""
    load_s: float = 0.0


# Host to engine.


class Configure(Frozen):
    """First message: load this."""

    kind: Literal["configure"] = "configure"
    config: EngineConfig


class Generate(Frozen):
    """Serve this request; the engine holds one at a time."""

    kind: Literal["generate"] = "generate"
    request: Request


class Cancel(Frozen):
    """End the running request at the next round or chunk, for this reason."""

    kind: Literal["cancel"] = "cancel"
    request_id: str
    finish_reason: FinishReason = FinishReason.CANCELED
    error_code: ErrorCode = ErrorCode.CANCELED
    error_msg: str = "the goal was canceled by its client"


class CountTokens(Frozen):
    """Count the tokens of a prompt with the chat template applied."""

    kind: Literal["count_tokens"] = "count_tokens"
    id: str
    messages: tuple[Message, ...] = ()
    raw_prompt: str | None = None


class ResetSession(Frozen):
    """Forget the cached keys and values of a session."""

    kind: Literal["reset_session"] = "reset_session"
    id: str
    session_id: str


class Warm(Frozen):
    """Prefill this system prompt, so that the first goal finds all code paths warm."""

    kind: Literal["warm"] = "warm"
    id: str
    system_prompt: str = ""


# Engine to host.


class Progress(Frozen):
    """A sign of life while loading."""

    kind: Literal["progress"] = "progress"
    stage: str
    fraction: float


class Ready(Frozen):
    """The model is loaded."""

    kind: Literal["ready"] = "ready"
    info: ModelInfo


class Failed(Frozen):
    """The model could not be loaded; the engine process ends."""

    kind: Literal["failed"] = "failed"
    error_code: ErrorCode
    error_msg: str


class Queued(Frozen):
    """The request waits: ``position`` requests are before it, or the engine is loading."""

    kind: Literal["queued"] = "queued"
    request_id: str
    position: int
    loading: bool = False


class Started(Frozen):
    """The engine took the request and begins its prefill."""

    kind: Literal["started"] = "started"
    request_id: str
    prompt_tokens: int
    cached_tokens: int = 0
    seed: int = 0
    """The seed in use, so that a request whose engine is lost can be repeated."""


class Piece(Frozen):
    """What one round decided. ``text`` holds whole characters only and may be empty."""

    kind: Literal["piece"] = "piece"
    request_id: str
    text: str
    token_ids: tuple[int, ...]
    channel: Channel = Channel.TEXT
    completion_tokens: int
    tokens_per_second: float
    draft_length: int
    decided_s: float = 0.0
    """CLOCK_MONOTONIC time at which the engine decided the round; 0: unknown."""


class Finish(Frozen):
    """The end of a request: exactly one for each that was submitted."""

    kind: Literal["finish"] = "finish"
    request_id: str
    finish_reason: FinishReason
    error_code: ErrorCode = ErrorCode.NONE
    error_msg: str = ""
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    seed: int = 0
    stats: Stats = Stats()


class Counted(Frozen):
    """Answer to :class:`CountTokens`."""

    kind: Literal["counted"] = "counted"
    id: str
    success: bool
    message: str = ""
    tokens: int = 0
    max_context: int = 0


class Warmed(Frozen):
    """Answer to :class:`Warm`."""

    kind: Literal["warmed"] = "warmed"
    id: str
    success: bool
    message: str = ""


class SessionReset(Frozen):
    """Answer to :class:`ResetSession`."""

    kind: Literal["session_reset"] = "session_reset"
    id: str
    success: bool
    message: str = ""
    found: bool = False


class Held(Frozen):
    """What the engine holds from now on."""

    kind: Literal["held"] = "held"
    memory: MemoryUse


class Log(Frozen):
    """A log line of the engine; ``level`` as in :mod:`logging`."""

    kind: Literal["log"] = "log"
    level: int
    message: str


ToEngine = Annotated[
    Configure | Generate | Cancel | CountTokens | ResetSession | Warm, Field(discriminator="kind")
]
FromEngine = Annotated[
    Progress
    | Ready
    | Failed
    | Started
    | Piece
    | Finish
    | Counted
    | SessionReset
    | Warmed
    | Held
    | Log,
    Field(discriminator="kind"),
]
to_engine: TypeAdapter[ToEngine] = TypeAdapter(ToEngine)
from_engine: TypeAdapter[FromEngine] = TypeAdapter(FromEngine)


def one_sentence(error: ValidationError) -> str:
    """Turn the first finding of a validation into a sentence that names field and value."""
    found = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in found["loc"]) or "value"
    value = found.get("input")
    shown = json.dumps(value, default=str)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    message = found["msg"].removeprefix("Value error, ")
    return f"{where} = {shown}: {message[0].lower()}{message[1:]}"
