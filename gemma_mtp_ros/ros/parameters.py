# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The node's parameters: one table of name, default, bounds, meaning and when they may change.

Pure: needs neither rclpy nor a node; `settings` declares the table on a node. docs/parameters.md
is this table too: ``python -m gemma_mtp_ros.ros.parameters > docs/parameters.md``.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from gemma_mtp_ros.api import MAX_DRAFT, DraftKind
from gemma_mtp_ros.scheduling import BusyPolicy
from gemma_mtp_ros.telemetry.policy import BOUNDS, Level, Mode, PolicyConfig
from gemma_mtp_ros.telemetry.sources import KINDS

BUILT_IN = re.compile(r"use_sim_time|start_type_description_service|qos_overrides\..*|bond_.*")
"""Parameters of every rclpy node, and of bondpy: no misspellings of ours."""


class When(enum.Enum):
    """When a parameter may change."""

    START = "at start"
    """Only by a parameter file or argument at the start of the process."""
    UNCONFIGURED = "unconfigured"
    """While the node is UNCONFIGURED: it takes effect at the next configure."""
    LIVE = "live"
    """At any time: it takes effect at once, for a running goal too where that makes sense."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One parameter. The type is that of `default`; an integer is taken for a double.

    low, high: bounds of a number, both included; above: a bound that is itself excluded.
    special: one more value that is allowed besides the range (-1 for "not set").
    item: type of the items where `default` is a tuple.
    """

    name: str
    default: Any
    description: str
    when: When = When.UNCONFIGURED
    low: float | None = None
    high: float | None = None
    above: float | None = None
    special: float | None = None
    choices: tuple[str, ...] = ()
    item: type = str

    @property
    def kind(self) -> str:
        """Name of the ROS type."""
        names = {bool: "bool", int: "integer", float: "double", str: "string"}
        if isinstance(self.default, tuple):
            return names[self.item] + " array"
        return names[type(self.default)]

    @property
    def bounds(self) -> str:
        """The values that are allowed, in words; empty: any."""
        if self.choices:
            return ", ".join(choice or '""' for choice in self.choices)
        words = []
        if self.above is not None:
            words.append(f"above {self.above}")
        if self.low is not None:
            words.append(f"{self.low}")
        if self.high is not None:
            words.append(f"to {self.high}" if self.low is not None else f"up to {self.high}")
        elif self.low is not None:
            words.append("or more")
        text = " ".join(words)
        return f"{self.special} or {text}" if self.special is not None and text else text


def _spec(name: str, default: Any, description: str, **more: Any) -> Spec:
    return Spec(name, default, " ".join(description.split()), **more)


def _policy(name: str, description: str) -> Spec:
    """A number of the watchdog's policy; default and bounds are stated there."""
    low, high = BOUNDS[name]
    default = getattr(PolicyConfig(), name)
    return _spec(f"watchdog.{name}", default, description, when=LIVE, low=low, high=high)


LIVE = When.LIVE
# fmt: off
TABLE: tuple[Spec, ...] = (
    _spec("model", "", """Folder of the target model (config.json, tokenizer.json, safetensors) or
        name of a Hugging Face repository that gemma-mtp fetch has brought (OWNER/NAME, or
        OWNER/NAME@REVISION); "demo": the embedded pair."""),
    _spec("drafter", "", """A folder or name like model, by draft.kind. mtp: the MTP
        drafter trained with this target ("demo": the embedded one; "none": no drafts; empty:
        "demo" with model "demo", else "none"); draft_model: a smaller Gemma 4 model with the same
        tokenizer; else it is not looked at."""),
    _spec("autostart", False, """The node configures and activates itself at its start. Leave it
        false where a lifecycle manager or a launch file drives the node.""", when=When.START),
    _spec("bond_heartbeat_period", 0.25, """Seconds between heartbeats on the topic bond, from the
        end of activate to deactivate, where bondpy is installed; 0 or less: no bond.""",
        high=60.0),
    _spec("queue_size", 4, """Goals that may wait; the running one is not counted. In a full queue a
        goal takes the place of the last one, if that has a lower priority (it ends PREEMPTED);
        else it ends ABORTED with QUEUE_FULL.""", when=LIVE, low=0, high=1000),
    _spec("busy_policy", "queue", """What becomes of a goal that comes while another one runs.
        queue: it waits; one of higher priority than the running one ends that (PREEMPTED, with its
        text) and goes before those that wait. refuse: it ends ABORTED with QUEUE_FULL, whatever its
        priority; nothing ever waits. preempt: it ends the running one unless that has a higher
        priority, and all that wait but those of a higher priority. A change holds for new
        goals.""", when=LIVE, choices=tuple(policy.value for policy in BusyPolicy)),
    _spec("goal_timeout_s", 300.0, """Seconds from acceptance after which a goal without a timeout
        of its own ends with TIMEOUT; 0: never.""", when=LIVE, low=0.0, high=86400.0),
    _spec("system_prompt", "", """Put before every conversation that has no system turn of its own,
        and before every prompt that is not raw. Changed while the node is active it holds for
        new goals; it is prefilled at activate.""", when=LIVE),
    # How tokens are chosen where the goal does not say.
    _spec("sampling.max_new_tokens", -1, """Most tokens of an answer; -1: the checkpoint's
        generation_config, else 512.""", when=LIVE, low=1, high=1_000_000, special=-1),
    _spec("sampling.temperature", -1.0, """0: greedy; -1: the checkpoint's generation_config.""",
        when=LIVE, low=0.0, high=100.0, special=-1),
    _spec("sampling.top_p", -1.0, """1: off; -1: the checkpoint's generation_config.""",
        when=LIVE, above=0.0, high=1.0, special=-1),
    _spec("sampling.top_k", -1, """0: off; -1: the checkpoint's generation_config.""",
        when=LIVE, low=0, high=2**31 - 1, special=-1),
    _spec("sampling.min_p", -1.0, """0: off; -1: the checkpoint's generation_config.""",
        when=LIVE, low=0.0, high=1.0, special=-1),
    _spec("sampling.repetition_penalty", -1.0, """1: off; -1: the checkpoint's
        generation_config.""", when=LIVE, low=0.01, high=100.0, special=-1),
    _spec("sampling.seed", -1, """-1: drawn at random for each goal; the result says which.""",
        when=LIVE, low=0, high=2**63 - 1, special=-1),
    # Drafting.
    _spec("draft.kind", "mtp", """Where drafts come from; the answer is the same with each
        (docs/drafters.md). mtp: the target's own MTP drafter; draft_model: a smaller model of the
        family, with keys and values of its own and a share of cache.max_mib; both are named by
        drafter. prompt_lookup: copies what followed the last tokens where they occurred before;
        none: no drafts.""", choices=get_args(DraftKind)),
    _spec("draft.max_length", 4, """Most tokens drafted in one round; 0: no drafts. The watchdog
        may lower it.""", when=LIVE, low=0, high=MAX_DRAFT),
    _spec("draft.adaptive", True, """Draft as many tokens as pay, by costs measured at configure and
        the acceptance seen, at most draft.max_length; false: always that many."""),
    _spec("cache.max_mib", 256, """MiB for keys and values of prompts that were read before, so
        that a goal reads only what is new in its prompt; the longest unused are dropped, those of
        a session_id last. 0: each prompt is read anew.""", low=0, high=1_048_576),
    # The engine process.
    _spec("engine.device", "auto", "Where the model runs.", choices=("auto", "cpu", "cuda")),
    _spec("engine.weights", "float32", """Number format of the target's weights. int8 is for a CPU;
        int4 keeps embedding tables and heads in int8 (bfloat16 on a GPU).""",
        choices=("float32", "bfloat16", "int8", "int4")),
    _spec("engine.drafter_weights", "same", "Number format of the drafter's weights.",
        choices=("same", "float32", "bfloat16", "int8", "int4")),
    _spec("engine.kv_dtype", "auto", """Number format of keys and values; auto: float32 for float32
        weights, else bfloat16.""", choices=("auto", "float32", "bfloat16", "int8")),
    _spec("engine.ple", "auto", """Where the table of per-layer embeddings of an E-size target lies;
        auto: in memory up to 64 MiB, else on disk.""", choices=("auto", "disk", "memory")),
    _spec("engine.reproducible", True, """The same bits for every draft length, checked at
        configure; false is faster, and near ties between tokens may fall differently."""),
    _spec("engine.structured_output", True, """Hold answers to response_schema, and tool calls to
        their functions' schemas, while they are decoded. Takes 0.75 KiB and 6 microseconds for each
        token of the vocabulary at configure; false: response_schema is refused, and calls are only
        checked once they are written."""),
    _spec("engine.max_context", 4096, "Most tokens of prompt and answer together.",
        low=16, high=262_144),
    _spec("engine.prefill_chunk", 256, """Tokens of the prompt computed in one step; a cancel waits
        for the end of a step.""", low=8, high=8192),
    _spec("engine.threads", 0, """CPU threads of the engine; 0: one for a very small model, else
        as many as torch chooses.""", low=0, high=256),
    _spec("engine.cpu_affinity", (), "CPUs that the engine may run on; empty: all.", item=int,
        low=0),
    _spec("engine.nice", 0, "Niceness of the engine process.", low=0, high=19),
    _spec("engine.oom_score_adj", 800, """How much sooner than others the engine is killed when
        memory runs out: the model dies before the robot does.""", low=0, high=1000),
    _spec("engine.max_duty_cycle", 1.0, """Largest share of the time in which the engine computes;
        the rest is paused.""", above=0.0, high=1.0),
    _spec("engine.memory_reserve_mib", 256, """MiB left to the rest of the robot: a model that does
        not fit beside it is refused at configure.""", low=0, high=1_048_576),
    _spec("engine.stall_timeout_s", 30.0, """Seconds without a sign of life while decoding after
        which the engine is killed and replaced.""", above=0.0, high=3600.0),
    _spec("engine.load_timeout_s", 300.0, """Seconds without a sign of life while loading after
        which configure fails.""", above=0.0, high=86400.0),
    _spec("engine.max_restarts", 3, """Lost engines that are replaced within
        engine.restart_window_s; at one more the node leaves ACTIVE for UNCONFIGURED.""",
        low=0, high=1000),
    _spec("engine.restart_window_s", 300.0, "Seconds in which restarts are counted.",
        above=0.0, high=86400.0),
    # The watchdog and its sensors; both run in every state of the node.
    _spec("watchdog.mode", "report", """report: watches, caps the draft length if
        watchdog.draft_cap says so, never pauses; guard: pauses between rounds too, so that the
        board stays below its trip point; off: nothing, goals are not ended for heat either (write
        "off" in quotes: YAML reads a bare off as a boolean).""",
        when=LIVE, choices=tuple(mode.value for mode in Mode)),
    _spec("watchdog.draft_cap", (), """Most tokens drafted at a level, LEVEL=CAP or
        LEVEL@POWERMODE=CAP, such as HOT=2 or HOT@15W=1; the smallest match counts.""", when=LIVE),
    _policy("warm_margin_c", "WARM: this near (K) to where clocks are cut."),
    _policy("hot_margin_c", "HOT: this near (K) to where clocks are cut."),
    _policy("critical_margin_c", """CRITICAL: this near (K) to the shutdown; goals end with
        THERMAL_LIMIT."""),
    _policy("hysteresis_c", "A level is left downwards this far (K) beyond its threshold."),
    _policy("min_dwell_s", "Seconds that a level stays, but for a change to CRITICAL."),
    _policy("guard_margin_c", """mode guard: holds the board this far (K) from where clocks are
        cut; at least 0.5 beyond the kernel's own hysteresis, more with a noisy sensor."""),
    _policy("guard_band_c", """mode guard: each K too hot takes 1 / guard_band_c of the time
        away."""),
    _policy("guard_integral_s", """mode guard: what is too hot takes as much time away again
        within these seconds."""),
    _policy("guard_ahead_s", """mode guard: seconds that it looks ahead along the slope of the
        temperature."""),
    _policy("max_pause_s", """mode guard: longest pause after a round, seconds; bounds the share
        of time that is left from below."""),
    _policy("unknown_duty", """mode guard: largest share of the time in which rounds run after 10 s
        without a temperature."""),
    _spec("watchdog.override", "", """A level to act as, whatever the sensors say, to try on a
        robot what happens then: draft cap and halt follow it, pacing does not, and mode off
        ignores it; empty: none.""", when=LIVE,
        choices=("", *(level.name for level in Level if level is not Level.DISABLED))),
    _spec("watchdog.period_s", 0.5, "Seconds between readings of the sensors.",
        low=0.05, high=60.0),
    _spec("watchdog.stale_after_s", 2.0, """Seconds after which a decision of the watchdog counts no
        more (the engine takes watchdog.stale_draft_cap), nor a reading of the sensors
        (UNKNOWN).""", when=LIVE, low=0.1, high=600.0),
    _spec("watchdog.stale_draft_cap", 0, "Most tokens drafted while the watchdog is silent.",
        when=LIVE, low=0, high=MAX_DRAFT),
    _spec("telemetry.source", "auto", """Where readings come from; auto: the best there is; sysfs:
        a Jetson's files; nvml: an NVIDIA card; plain: hwmon and RAPL; replay:
        telemetry.trace.""", choices=KINDS),
    _spec("telemetry.root", "/", "Folder that holds sys/, proc/, etc/ and var/ of the board."),
    _spec("telemetry.trace", "", """Recording of gemma-mtp record that source replay plays, at
        the pace at which it was recorded; where it ends, nothing is known."""),
    _spec("telemetry.loop", False, "Source replay begins again where the recording ends."),
)
# fmt: on
BY_NAME: Mapping[str, Spec] = {spec.name: spec for spec in TABLE}


def check(spec: Spec, value: Any) -> str:
    """Empty if `value` may be set, else one sentence with value, bound and remedy."""
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    said = f"{spec.name} = {shown}"
    if isinstance(spec.default, tuple):
        is_list = isinstance(value, (tuple, list)) or hasattr(value, "tolist")
        if not is_list or any(type(item) is not spec.item for item in value):
            return f"{said} is not {_a(spec.kind)}; give a list such as {_example(spec)}"
        if spec.low is not None and any(item < spec.low for item in value):
            return f"{said} is outside the allowed range; give values in it ({spec.bounds})"
        return ""
    wanted = (int, float) if isinstance(spec.default, float) else (type(spec.default),)
    if type(value) not in wanted:
        hint = (
            "; YAML reads on, off, yes, no as booleans: put it in quotes, in a shell in two kinds, "
            """as "'off'\""""
        )
        return (
            f"{said} is not {_a(spec.kind)}; give {_a(spec.kind)}"
            + (f" ({spec.bounds})" if spec.bounds else "")
            + (hint if isinstance(value, bool) else "")
        )
    if spec.choices and value not in spec.choices:
        close = difflib.get_close_matches(value, spec.choices, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{said} is not one of {spec.bounds}{hint}"
    if spec.kind in ("integer", "double") and not _inside(spec, value):
        return f"{said} is outside the allowed range; give a value in it ({spec.bounds})"
    return ""


def _inside(spec: Spec, value: float) -> bool:
    if not math.isfinite(value):
        return False
    if spec.special is not None and value == spec.special:
        return True
    return not (
        (spec.low is not None and value < spec.low)
        or (spec.high is not None and value > spec.high)
        or (spec.above is not None and value <= spec.above)
    )


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _example(spec: Spec) -> str:
    return "[0, 1]" if spec.item is int else '["HOT=2"]'


def coerce(spec: Spec, value: Any) -> Any:
    """`value`, already checked, as the type of the default."""
    if isinstance(spec.default, tuple):
        return tuple(value)
    return float(value) if isinstance(spec.default, float) else value


def unknown_names(names: Iterable[str]) -> list[str]:
    """One sentence for each name that is no parameter."""
    return [
        unknown_name(name)
        for name in sorted(names)
        if name not in BY_NAME and not BUILT_IN.fullmatch(name)
    ]


def unknown_name(name: str) -> str:
    """One sentence for a name that is no parameter, with the likeliest one that is."""
    close = difflib.get_close_matches(name, BY_NAME, n=1)
    hint = f"did you mean {close[0]}?" if close else "see docs/parameters.md for the names"
    return f"parameter {name} does not exist; {hint}"


def markdown() -> str:
    """The page docs/parameters.md."""
    lines = [
        "# Parameters of the node",
        "",
        "Made from the table in gemma_mtp_ros/ros/parameters.py by",
        "`python -m gemma_mtp_ros.ros.parameters > docs/parameters.md`; change it there.",
        "",
        "A parameter marked *live* can be set at any time, one marked *unconfigured* while the",
        "node is UNCONFIGURED (it takes effect at the next configure), one marked *at start* only",
        "by a parameter file or argument. An integer is taken for a double. A value that is not",
        "allowed is refused with a sentence; in a parameter file it makes configure fail with",
        "that sentence until it is set right. An unknown name is refused with the likeliest one;",
        "in a parameter file it is warned about.",
        "",
        "| Name | Type | Default | Allowed | May change | Meaning |",
        "|---|---|---|---|---|---|",
    ]
    for spec in TABLE:
        default = str(list(spec.default) if isinstance(spec.default, tuple) else spec.default)
        if isinstance(spec.default, bool):
            default = default.lower()
        default = default or '""'
        cells = (
            f"`{spec.name}`", spec.kind, f"`{default}`", spec.bounds, spec.when.value,
            spec.description,
        )  # fmt: skip
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
