# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The round loop, a generator of pieces: prefill in chunks, then draft, verify, keep what stands.

State between rounds: ``length`` rows of the caches are committed; ``token`` was chosen by the
target but is not yet in the caches; ``state`` is the target's post-norm state at the last
committed position. A round drafts k tokens after ``token``, runs the target once over ``token``
and the drafts, keeps the drafts that equal the target's own choices, and has one choice more.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from ..api import (
    MAX_DRAFT,
    Cancel,
    EngineConfig,
    ErrorCode,
    Finish,
    FinishReason,
    MemoryUse,
    Message,
    ModelInfo,
    Piece,
    Request,
    RequestError,
    Started,
    Stats,
)
from .chat import NO_TOOLS, Tools, read_tools
from .checkpoint import available_memory
from .draft_length import DraftController
from .draft_source import DraftSource
from .drafting import Place, chain
from .load import LoadedModel, give_back_freed, has_room, load_model
from .ops import read_back
from .prefill import SHORTEST, Prefill
from .prefix import Owner, PrefixCache, agreeing
from .rounds import Rounds
from .sampling import Rules, TokenCounts, choose, penalise
from .sequence import Sequence, Shown
from .structured import Interrupted, Structured
from .target import Target
from .text import Text


class RoundControl(NamedTuple):
    """What the outside wants of the next round."""

    draft_cap: int
    end: Cancel | None = None
    paused_s: float = 0.0
    power_mode: str = ""
    """By whose name costs are remembered; empty: unknown."""


Poll = Callable[[], RoundControl]
"""Called once before each prefill chunk and each round."""

SYSTEM_PROMPT = object()
"""Owner of the snapshot of the node's own system prompt."""

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy: dividing by them would overflow."""


class Engine:
    """A loaded pair that serves one request at a time."""

    def __init__(self, config: EngineConfig, model: LoadedModel) -> None:
        self.config = config
        self.model = model
        self.target: Target = model.target
        self.drafter: DraftSource | None = model.drafter
        self.text: Text = model.text
        self.info: ModelInfo = model.info
        self.device = model.target.device
        self._controller: DraftController | None = None
        self.structured = Structured(model.text, model.vocabulary)
        self.forcing = True
        """Whether tokens that a grammar forces cost no pass of their own; off to measure."""
        self.context = model.info.context
        """Tokens of prompt and completion together: engine.max_context, or the model's own."""
        budget = config.cache_max_mib * 2**20
        drafts = None if self.drafter is None else self.drafter.prefixes
        self.prefixes = PrefixCache(
            self.target.cache,
            self.target.spec.window,
            budget - (0 if drafts is None else drafts.budget),
            lambda size: has_room(config, self.device, size),
        )
        self._kept = [self.prefixes] if drafts is None else [self.prefixes, drafts]
        """Snapshots of the target and, if it has keys of its own, of the drafter."""

    @classmethod
    def load(cls, config: EngineConfig, progress: Callable[[str, float], None]) -> Engine:
        """Load target and drafter and prove what ``reproducible`` claims.

        :param progress: called with (stage, fraction) for each tensor and step.
        :raises GemmaMtpError: with one sentence; nothing stays loaded.
        """
        return cls(config, load_model(config, progress))

    @property
    def controller(self) -> DraftController | None:
        """What chooses draft lengths; None: always the longest. It knows ``model.costs``."""
        costs = self.model.costs
        if costs is None:
            return None
        if self._controller is None or self._controller.measured is not costs:
            self._controller = DraftController(costs)
        return self._controller

    def count_tokens(self, messages: tuple[Message, ...], raw_prompt: str | None) -> int:
        """Tokens of a prompt, template applied.

        :raises RequestError: as a goal with this prompt would.
        """
        return len(self._encode(messages, raw_prompt))

    def _encode(
        self,
        messages: tuple[Message, ...],
        raw_prompt: str | None,
        *,
        tools: Tools = NO_TOOLS,
        thinking: bool = False,
    ) -> list[int]:
        """Token ids of a prompt; one that cannot fit is refused before it is tokenised.

        Megabytes take seconds to tokenise, in which nothing else would be served.
        """
        texts = [m.content for m in messages] if raw_prompt is None else [raw_prompt]
        texts += [call.arguments for m in messages for call in m.tool_calls]
        texts += [json.dumps(one, ensure_ascii=False) for one in tools.declarations]
        size = sum(len(text.encode("utf-8", "replace")) for text in texts)
        if size > self.context * self.text.longest_token:
            raise RequestError(
                f"the prompt has {size} bytes, which do not fit the {self.context} tokens of "
                "prompt and answer together; shorten it or raise engine.max_context (this "
                f"model allows {self.target.spec.max_positions})",
                ErrorCode.PROMPT_TOO_LONG,
            )
        return self.text.encode(messages, raw_prompt, tools=tools, thinking=thinking)

    def warm(self, system_prompt: str, poll: Poll) -> None:
        """Run every code path once, over the system prompt where there is one."""
        prompt = self._system_prefix(system_prompt) if system_prompt else [self.model.bos]
        prompt = prompt[: self.context - MAX_DRAFT - 2]
        prefill = self._prefill(prompt, SYSTEM_PROMPT)
        while not prefill.done:
            if poll().end is not None:
                prefill.stop()
                return
            prefill.step()
        with torch.inference_mode():
            state = torch.zeros(1, self.target.spec.hidden, device=self.device)
            token = torch.tensor([self.model.bos], device=self.device)
            if self.drafter is not None:
                self.drafter.begin(prompt, SYSTEM_PROMPT)
                while self.drafter.catch_up([self.model.bos]) is None:
                    if poll().end is not None:
                        return
                drafts = chain(self.drafter, Place(token, state, Rules(), 0), 2)
                token = torch.cat([token, drafts])
            self.target.decode(token, self.target.cache.length)

    def _system_prefix(self, system_prompt: str) -> list[int]:
        """What all conversations with this system prompt begin with."""
        first, second = (
            self.text.encode(
                (Message(role="system", content=system_prompt), Message(role="user", content=word)),
                None,
            )
            for word in ("a", "b")
        )
        return first[: agreeing(first, second)]

    def _prefill(self, prompt: list[int], owner: Owner = None) -> Prefill:
        return Prefill(
            self.target,
            self.prefixes,
            prompt,
            longest=self.config.prefill_chunk,
            turn_end=self.text.turn_end,
            owner=owner,
        )

    @property
    def memory(self) -> MemoryUse:
        """What is held now; keys and values count as at the full context."""
        return self.info.memory.model_copy(
            update={"snapshots": sum(kept.bytes for kept in self._kept)}
        )

    def reset_session(self, session_id: str) -> bool:
        """Forget the cached keys and values of a session; False: there are none."""
        found = [kept.reset_session(session_id) for kept in self._kept]
        return any(found)

    def _rules(self, request: Request) -> Rules:
        """Sampling parameters with the checkpoint's own where the request leaves them open."""
        s, d = request.sampling, self.model.generation
        temperature = d.temperature if s.temperature is None else s.temperature
        return Rules(
            temperature=0.0 if temperature < GREEDY_BELOW else temperature,
            top_p=d.top_p if s.top_p is None else s.top_p,
            top_k=d.top_k if s.top_k is None else s.top_k,
            min_p=d.min_p if s.min_p is None else s.min_p,
            repetition_penalty=(
                d.repetition_penalty if s.repetition_penalty is None else s.repetition_penalty
            ),
            presence_penalty=s.presence_penalty,
            frequency_penalty=s.frequency_penalty,
            seed=secrets.randbits(62) if s.seed is None else s.seed,
        )

    def _open(self, request: Request, poll: Poll | None = None) -> Sequence:
        """Check a request and turn it into a sequence.

        :param poll: called while schemas are compiled.
        :raises RequestError: naming the value, the bound and the remedy.
        :raises Interrupted: when the poll ends it.
        """
        tools = read_tools(request.tools, request.tool_choice)
        schemas = self.structured.arguments(tools.parameters)
        prompt = self._encode(
            request.messages, request.raw_prompt, tools=tools, thinking=request.enable_thinking
        )
        context = self.context
        if len(prompt) >= context:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, but there is room for {context} tokens of "
                "prompt and answer together; shorten the prompt or raise engine.max_context (this "
                f"model allows {self.target.spec.max_positions})",
                ErrorCode.PROMPT_TOO_LONG,
            )
        limit = (
            request.sampling.max_new_tokens
            or self.model.generation.max_new_tokens
            or self.config.max_new_tokens
        )
        limit = min(limit, context - len(prompt))
        guide = self.structured.guide(
            request, schemas.schemas, prompt, limit, self.model.suppress, lambda: _beat(poll)
        )
        self._make_room(len(prompt) + limit)
        rules = self._rules(request)
        return Sequence(request, prompt, rules, limit, self.text, tools, schemas, guide)

    def _make_room(self, positions: int) -> None:
        """See that keys and values of a request find memory; drop cached ones if not.

        :raises RequestError: when the rest of the robot would be left too little.
        """
        drafter, reserve = self.drafter, self.config.memory_reserve_mib * 2**20
        caches = [self.target.cache]
        drops: list[Callable[[int], object]] = [lambda _: self.target.cache.release()]
        if drafter is not None and drafter.cache is not None:
            caches.append(drafter.cache)
            drops.append(lambda _: drafter.forget())
        drops = [kept.shrink for kept in self._kept if kept.bytes] + drops
        while True:
            free = available_memory()
            growth = sum(max(0, each.bytes_at(positions) - each.bytes) for each in caches)
            if free is None or free >= reserve + growth:
                return
            if not drops:
                break
            drops.pop(0)(reserve + growth - free)
            give_back_freed()
        raise RequestError(
            f"the goal may need {growth // 2**20} MiB for keys and values and "
            f"{reserve // 2**20} MiB are kept for the rest of the robot "
            f"(engine.memory_reserve_mib), but {free // 2**20} MiB are available; ask for "
            "fewer tokens (max_new_tokens) or free memory",
            ErrorCode.OUT_OF_MEMORY,
        )

    def generate(self, request: Request, poll: Poll) -> Iterator[Started | Piece | Finish]:
        """Serve a request: one ``Started``, a ``Piece`` a round and channel, one ``Finish``.

        An inadmissible request gives its ``Finish`` alone. The generator may be closed at any
        point; the next request starts from a cached prefix, or from an empty cache.
        """
        begin_s = time.monotonic()
        try:
            sequence = self._open(request, poll)
        except (RequestError, Interrupted) as error:
            submitted = begin_s if request.submitted_s is None else request.submitted_s
            ended = error.end if isinstance(error, Interrupted) else _end_of(request, error)
            yield Finish(
                request_id=request.id,
                finish_reason=ended.finish_reason,
                error_code=ended.error_code,
                error_msg=ended.error_msg,
                stats=Stats(
                    total_s=time.monotonic() - submitted, queue_s=max(0.0, begin_s - submitted)
                ),
            )
            return
        prefill = self._prefill(sequence.prompt, request.session_id or None)
        sequence.cached = prefill.cached
        yield Started(
            request_id=request.id,
            prompt_tokens=len(sequence.prompt),
            cached_tokens=prefill.cached,
            seed=sequence.rules.seed,
        )
        end: Cancel | None = None
        try:
            for piece in self._rounds(sequence, prefill, poll):
                if isinstance(piece, Cancel):
                    end = piece
                    break
                yield piece
        except RequestError as error:  # a grammar that grew beyond its bounds
            end = _end_of(request, error)
        for shown in sequence.flush():
            yield self._piece(sequence, shown, 0)
        if not self.config.reproducible and prefill.done:
            self._keep_answer(sequence)
        yield sequence.finished(end)

    def _keep_answer(self, sequence: Sequence) -> None:
        """Take a snapshot at the end of an answer, whose rows another prefill would round anew."""
        cache, prompt = self.target.cache, sequence.prompt
        tokens = [*prompt, *sequence.tokens][: cache.length]
        if len(tokens) >= len(prompt) + SHORTEST:
            self.prefixes.keep(tokens, sequence.request.session_id or None)

    def _piece(self, sequence: Sequence, shown: Shown, drafted: int) -> Piece:
        now = time.monotonic()
        return Piece(
            request_id=sequence.request.id,
            text=shown.text,
            token_ids=tuple(shown.tokens),
            channel=shown.channel,
            completion_tokens=shown.completed,
            tokens_per_second=sequence.rate(now),
            draft_length=drafted,
            decided_s=now,
        )

    def _rounds(self, sequence: Sequence, prefill: Prefill, poll: Poll) -> Iterator[Piece | Cancel]:
        """Prefill and rounds until the sequence ends, or a Cancel that ends it from outside."""
        rules, prompt = sequence.rules, sequence.prompt
        eos = self.model.generation.eos
        counts = (
            TokenCounts(self.target.spec.vocab, prompt, self.device) if rules.penalises else None
        )
        state = logits = None
        while not prefill.done:
            control = poll()
            sequence.paused_s += control.paused_s
            if control.end is not None:
                prefill.stop()
                yield control.end
                return
            result = prefill.step()
            if result is not None:
                state, logits = result
        assert state is not None
        assert logits is not None
        with torch.inference_mode():
            if counts is not None:
                logits = penalise(logits, rules, counts.prompt, counts.standing[None, :])
            guide = sequence.guide
            logits = self.model.suppress(logits) if guide is None else guide.restrict(logits)
            chosen = read_back(choose(logits, rules, 0))
        if guide is not None:
            chosen, _ = guide.settle((), chosen, self.forcing)
        token = torch.tensor(chosen[-1:], device=self.device)
        shown, kept, _ = sequence.push(chosen, eos)
        sequence.first_s = time.monotonic()
        if counts is not None:
            counts.add(kept)
        for part in shown:
            yield self._piece(sequence, part, 0)
        controller = self.controller if self.drafter is not None else None
        if controller is not None:
            controller.new_answer()
        if self.drafter is not None:
            self.drafter.begin(prompt, sequence.request.session_id or None)
        rounds = Rounds(self.model, self.drafter, controller, self.context, self.forcing)
        while sequence.finish is None:
            control = poll()
            sequence.paused_s += control.paused_s
            sequence.decode_paused_s += control.paused_s
            if control.end is not None:
                yield control.end
                return
            with torch.inference_mode():
                place = Place(token, state, rules, len(sequence.tokens), counts)
                if controller is not None:
                    controller.power_mode(control.power_mode)
                decided = rounds.run(sequence, place, control.draft_cap, control.paused_s)
            if decided is None:
                continue
            chosen, state = decided.chosen, decided.state
            shown, kept, used = sequence.push(chosen, eos)
            if counts is not None:
                counts.add(kept)
            # A draft that stands but lies past the end of the text was of no use.
            for i, at in enumerate(decided.stood):
                sequence.accepted[i] += at < used
            token = torch.tensor(chosen[-1:], device=self.device)
            for part in shown:
                yield self._piece(sequence, part, decided.drafted)


def _beat(poll: Poll | None) -> None:
    """Show a sign of life.

    :raises Interrupted: when the poll wants an end.
    """
    end = None if poll is None else poll().end
    if end is not None:
        raise Interrupted(end)


def _end_of(request: Request, error: RequestError) -> Cancel:
    return Cancel(
        request_id=request.id,
        finish_reason=FinishReason.ERROR,
        error_code=error.code,
        error_msg=str(error),
    )
