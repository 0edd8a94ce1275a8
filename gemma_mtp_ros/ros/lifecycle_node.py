# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `gemma_mtp`.

All ROS entities are made in the constructor and live as long as the node; activation opens a gate.
Transitions run on a worker thread (`transitions`), goals are coroutines that await a future
(`generate_server`), the watchdog has its own thread: no callback ever waits for the model, so one
executor thread is enough (see `node`).
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter

from gemma_mtp_ros.api import ErrorCode, FinishReason, GemmaMtpError, Message, Progress
from gemma_mtp_ros.host import BusyPolicy, EngineHost, HostState
from gemma_mtp_ros.ros import logs
from gemma_mtp_ros.ros.attended import AttendedSource
from gemma_mtp_ros.ros.generate_server import GenerateServer
from gemma_mtp_ros.ros.health import EngineView
from gemma_mtp_ros.ros.heartbeat import Heartbeat
from gemma_mtp_ros.ros.meter import Meter
from gemma_mtp_ros.ros.monitor import Monitor
from gemma_mtp_ros.ros.services import Services
from gemma_mtp_ros.ros.settings import Settings
from gemma_mtp_ros.ros.transitions import Transitions
from gemma_mtp_ros.telemetry.energy import HOLD_S
from gemma_mtp_ros.telemetry.policy import Decision
from gemma_mtp_ros.telemetry.reading import Reading
from gemma_mtp_ros.telemetry.sources import NullSource, open_source
from gemma_mtp_ros.telemetry.watchdog import Watchdog

WATCHED = (
    "telemetry.source",
    "telemetry.root",
    "telemetry.trace",
    "telemetry.loop",
    "watchdog.period_s",
)
"""Parameters that take another watchdog."""

END_GOALS_S = 2.0
"""How long deactivate waits for running goals to end; they end by themselves after that."""

LEAVE_S = 3.0
"""How long leaving waits for a transition that runs."""

FLUSH_S = 0.5
"""How long leaving waits for results that are on their way."""

SETTLE_S = 0.2
"""The executor goes on this long after the last goal, for clients that ask for their result."""


class GemmaMtpNode(LifecycleNodeMixin, Node):
    """Hosts the engine and serves goals while ACTIVE."""

    def __init__(self, **options: Any) -> None:
        Node.__init__(self, "gemma_mtp", **options)
        self._group = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(self, callback_group=self._group)
        self._log_handler = logs.RosHandler(self.get_logger())
        self._log_handler.install()
        self._host: EngineHost | None = None
        self._leaving = False
        self._restarts_before = 0
        self._told = ("STOPPED", "")
        self._progress = ""
        self._error = ""
        self._given_up = False
        self._transitions = Transitions(self)
        self._settings = Settings(self, self._is_unconfigured, self._apply)
        self._meter = Meter()
        self._monitor = Monitor(
            self, self._settings, self._group, self._meter, self._current_host, self._engine_view
        )
        self._generate = GenerateServer(
            self,
            self._settings,
            self._group,
            self._meter,
            self._halted,
            self._monitor.energy.between,
            self._monitor.publish_stats,
        )
        self._answers = Services(self, self._settings, self._group, self._current_host)
        self._heartbeat = Heartbeat(self)
        self._watchdog = self._make_watchdog()
        self._watchdog.start()
        if self._settings["autostart"]:
            threading.Thread(target=self._start_up, name="autostart", daemon=True).start()

    # The lifecycle. Each runs on a worker thread; what they raise, rclpy would swallow.

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the engine process and load the model."""
        return self._guarded("configure", self._configure, TransitionCallbackReturn.FAILURE)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Prefill the system prompt, then take goals."""
        return self._guarded("activate", self._activate, TransitionCallbackReturn.FAILURE)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Take no more goals, end those that are here, keep the model."""
        return self._guarded("deactivate", self._deactivate, TransitionCallbackReturn.ERROR)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End the engine process: all its memory is free."""
        return self._guarded("cleanup", self._release, TransitionCallbackReturn.ERROR)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End all goals and the engine process."""
        return self._guarded("shutdown", self._release, TransitionCallbackReturn.SUCCESS)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything; the node is UNCONFIGURED and can be configured again."""
        return self._guarded("error processing", self._recover, TransitionCallbackReturn.SUCCESS)

    def _guarded(
        self,
        name: str,
        work: Callable[[], TransitionCallbackReturn],
        failed: TransitionCallbackReturn,
    ) -> TransitionCallbackReturn:
        try:
            return work()
        except GemmaMtpError as error:
            self._error = str(error)
            self.get_logger().error(f"{name} failed: {error}")
        except Exception as error:
            self._error = f"{name} failed: {error!r}"
            self.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
        return failed

    def _configure(self) -> TransitionCallbackReturn:
        self._error = ""
        self._renew_watchdog()
        config = self._settings.engine_config()
        host = EngineHost(
            config,
            queue_size=self._settings["queue_size"],
            busy_policy=BusyPolicy(self._settings["busy_policy"]),
            on_log=self._on_engine_log,
            on_progress=self._on_progress,
            on_state=self._on_host_state,
        )
        self._host = host
        try:
            if self._leaving:
                raise GemmaMtpError("the process is about to end")
            self._apply(self._settings.values)
            latest = self._watchdog.latest
            if latest is not None:
                self._stamp(*latest)
            begun_s = time.monotonic()
            self.get_logger().info(f"configuring: loading {config.model}")
            info = host.start()
        except BaseException:
            self._host = None
            host.stop()
            raise
        self.get_logger().info(
            f"{info.model} is loaded in {time.monotonic() - begun_s:.1f} s on {info.device} "
            f"({info.precision}, drafter {info.drafter or 'none'}, reproducible: "
            f"{info.reproducible})"
        )
        return TransitionCallbackReturn.SUCCESS

    def _activate(self) -> TransitionCallbackReturn:
        host = self._host
        if host is None or self._given_up:
            return TransitionCallbackReturn.ERROR
        self._warm(host, self._settings["system_prompt"], self._settings["engine.load_timeout_s"])
        self._heartbeat.start(self._settings["bond_heartbeat_period"])
        self._generate.open(host)
        self.get_logger().info("active: takes goals")
        return TransitionCallbackReturn.SUCCESS

    def _warm(self, host: EngineHost, system_prompt: str, timeout_s: float) -> None:
        """Prefill the system prompt, if it leaves room for a user's turn."""
        if system_prompt:
            turns = (
                Message(role="system", content=system_prompt),
                Message(role="user", content="?"),
            )
            counted = host.count_tokens(turns, None, timeout_s).result()
            if not counted.success:
                raise GemmaMtpError(f"system_prompt cannot be used: {counted.message}")
            if counted.tokens >= counted.max_context:
                raise GemmaMtpError(
                    f"system_prompt takes {counted.tokens} tokens, but engine.max_context is "
                    f"{counted.max_context} for all; shorten it or raise engine.max_context"
                )
        warmed = host.warm(system_prompt).result(timeout_s)
        if not warmed.success:
            raise GemmaMtpError(f"system_prompt cannot be prefilled: {warmed.message}")

    def _deactivate(self) -> TransitionCallbackReturn:
        self._generate.close()
        self._heartbeat.stop()
        host = self._host
        if host is None or self._given_up:
            return TransitionCallbackReturn.ERROR
        host.cancel_all(
            FinishReason.ERROR,
            ErrorCode.NOT_ACTIVE,
            "the node was deactivated; activate it and send the goal again",
        )
        if not self._generate.wait_idle(END_GOALS_S):
            self.get_logger().warning(f"a goal has not ended within {END_GOALS_S} s of deactivate")
        self.get_logger().info("inactive: takes no goals, keeps the model")
        return TransitionCallbackReturn.SUCCESS

    def _release(self) -> TransitionCallbackReturn:
        self._generate.close()
        self._heartbeat.stop()
        host, self._host = self._host, None
        if host is not None:
            host.stop()
            self._restarts_before += host.restarts
            self.get_logger().info("the model was given back")
        self._generate.wait_idle(END_GOALS_S)
        if self._given_up:
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    def _recover(self) -> TransitionCallbackReturn:
        self._given_up = False
        return self._release()

    def _start_up(self) -> None:
        """Autostart: configure, then activate."""
        for steps in ({"unconfigured": "configure"}, {"inactive": "activate"}):
            if not self._transitions.run(steps.get, 0.0):
                self.get_logger().error(f"autostart stopped at {', '.join(steps.values())}")
                return

    # What the host and the watchdog say, on their threads.

    def _on_engine_log(self, level: int, message: str) -> None:
        logs.log(self.get_logger(), level, message)

    def _on_progress(self, progress: Progress) -> None:
        self._progress = f"{progress.stage} {100 * progress.fraction:.0f} %"

    def _on_host_state(self, state: HostState, sentence: str) -> None:
        self._told = (state.name, sentence)
        if state is HostState.FAILED:
            self._error = sentence
            threading.Thread(
                target=self._give_up, args=(self._host,), name="give up", daemon=True
            ).start()
        elif state is HostState.READY and self._host is not None and self._host.restarts:
            # What the lost engine had read of it went with it.
            self._host.warm(self._settings["system_prompt"])

    def _give_up(self, host: EngineHost) -> None:
        """The engine of `host` is not restarted any more: leave through the error path."""
        steps = {"active": "deactivate", "inactive": "cleanup"}

        def choose(state: str) -> str:
            self._given_up = self._host is host and state in steps
            return steps[state] if self._given_up else ""

        self._transitions.run(choose, threading.TIMEOUT_MAX)

    def _on_decision(self, reading: Reading, decision: Decision) -> None:
        self._stamp(reading, decision)
        self._monitor.decided(reading, decision)

    def _stamp(self, reading: Reading, decision: Decision) -> None:
        host = self._host
        if host is not None:
            host.set_control(
                draft_cap=decision.draft_cap,
                duty=decision.duty,
                longest_pause_s=self._settings["watchdog.max_pause_s"],
                halt=decision.halt,
                reason=decision.reason,
                power_mode=reading.power_mode or "",
            )

    def _halted(self) -> str:
        latest = self._monitor.latest
        return latest[1].reason if latest is not None and latest[1].halt else ""

    # Parameters.

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> SetParametersResult:
        """As rclpy's, with sentences of our own where rclpy names neither bound nor parameter."""
        reason = self._settings.unknown(parameter_list) or self._settings.refusal(parameter_list)
        if reason:
            return SetParametersResult(successful=False, reason=reason)
        return super().set_parameters_atomically(parameter_list)

    def _is_unconfigured(self) -> bool:
        return self._transitions.state == "unconfigured"

    def _apply(self, changed: Mapping[str, Any]) -> None:
        host = self._host
        if host is not None:
            live = {
                "draft_max_length": changed.get("draft.max_length"),
                "stale_after_s": changed.get("watchdog.stale_after_s"),
                "stale_draft_cap": changed.get("watchdog.stale_draft_cap"),
                "queue_size": changed.get("queue_size"),
            }
            if "busy_policy" in changed:
                live["busy_policy"] = BusyPolicy(changed["busy_policy"])
            host.set_live(**{name: value for name, value in live.items() if value is not None})
        if any(name.startswith("watchdog.") for name in changed):
            self._watchdog.stale_after_s = self._settings["watchdog.stale_after_s"]
            self._watchdog.set_config(self._settings.policy_config())

    def _make_watchdog(self) -> Watchdog:
        self._watched = tuple(self._settings[name] for name in WATCHED)
        kind, root, trace, loop, period_s = self._watched
        self._settings.forgive("telemetry")
        try:
            source = open_source(kind, root, trace=trace, loop=loop)
        except ValueError as error:
            self.get_logger().error(str(error))
            self._settings.complain("telemetry", str(error))
            self._watched = ()  # the next configure tries again
            source = NullSource()
        self._monitor.energy.hold_s = max(HOLD_S, 1.5 * period_s)
        return Watchdog(
            AttendedSource(source, self._meter),
            self._settings.policy_config(),
            self._on_decision,
            period_s=period_s,
            stale_after_s=self._settings["watchdog.stale_after_s"],
        )

    def _renew_watchdog(self) -> None:
        """Start another watchdog if the parameters of its source or period changed."""
        if self._watched != tuple(self._settings[name] for name in WATCHED):
            made = self._make_watchdog()
            self._watchdog.stop()
            self._watchdog = made
            self._watchdog.start()

    # Views of the moment.

    def _current_host(self) -> EngineHost | None:
        return self._host

    def _engine_view(self) -> EngineView:
        host = self._host
        state, said = self._told
        return EngineView(
            lifecycle=self._transitions.state,
            state=state if host is not None else "STOPPED",
            said=said,
            progress=self._progress,
            info=host.info if host is not None else None,
            pid=host.pid if host is not None else None,
            restarts=self._restarts_before + (host.restarts if host is not None else 0),
            error=self._error,
        )

    # The end.

    def leave(self) -> None:
        """End a load, all goals and the engine, and finalize; the executor still spins."""
        self._leaving = True
        host = self._host
        if host is not None and self._transitions.state in ("configuring", "activating"):
            host.stop()
        reachable = ("unconfigured", "inactive", "active")
        self._transitions.run(lambda state: "shutdown" if state in reachable else "", LEAVE_S)
        self._watchdog.stop()
        self._generate.flush(FLUSH_S)
        time.sleep(SETTLE_S)

    def destroy(self) -> None:
        """Destroy the node; to be called when nothing spins any more."""
        self._log_handler.remove()
        self._generate.destroy()
        self.destroy_node()
