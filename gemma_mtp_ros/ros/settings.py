# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The parameter table on a node: declared, validated when set, applied afterwards, read typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError
from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from gemma_mtp_ros.api import EngineConfig, GemmaMtpError, one_sentence
from gemma_mtp_ros.models import resolve_pair
from gemma_mtp_ros.ros.parameters import (
    BY_NAME,
    TABLE,
    Spec,
    When,
    check,
    coerce,
    unknown_name,
    unknown_names,
)
from gemma_mtp_ros.telemetry.policy import Level, PolicyConfig, parse_draft_cap


class Settings:
    """Parameters of `node`, declared from the table.

    A value from a parameter file that is not allowed does not stop the process: the default is
    declared in its place, the sentence is logged, and :meth:`engine_config` raises it until the
    parameter is set right. `is_unconfigured` says whether parameters of the engine may change;
    `apply` is called with the changed names and values after a set was accepted.
    """

    def __init__(
        self,
        node: Node,
        is_unconfigured: Callable[[], bool],
        apply: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._node = node
        self._is_unconfigured = is_unconfigured
        self._apply = apply
        self._values: dict[str, Any] = {spec.name: spec.default for spec in TABLE}
        self._bad: dict[str, str] = {}
        self._declared = False
        overrides: Mapping[str, Parameter] = node._parameter_overrides  # no public reader exists
        for sentence in unknown_names(overrides):
            node.get_logger().warning(f"{sentence} (it is ignored)")
        wanted = {name: overrides[name].value for name in BY_NAME if name in overrides}
        for name, value in wanted.items():
            sentence = check(BY_NAME[name], value)
            if not sentence:
                self._values[name] = coerce(BY_NAME[name], value)
                sentence = _check_together(self._values)
            if sentence:
                self._values[name] = BY_NAME[name].default
                self._bad[name] = sentence
                node.get_logger().error(f"{sentence} (the default holds until it is set right)")
        for spec in TABLE:
            node.declare_parameter(
                spec.name, _plain(self._values[spec.name]), _descriptor(spec), ignore_override=True
            )
        self._declared = True
        node.add_on_set_parameters_callback(self._on_set)
        # Humble has no callback for after the set; there the on-set callback applies.
        self._has_post_set = hasattr(node, "add_post_set_parameters_callback")
        if self._has_post_set:
            node.add_post_set_parameters_callback(self._after_set)

    def __getitem__(self, name: str) -> Any:
        """Value of parameter `name`, as the type of its default."""
        return self._values[name]

    @property
    def values(self) -> Mapping[str, Any]:
        """All values by name, as they are now."""
        return self._values

    def complain(self, name: str, sentence: str) -> None:
        """Make configure fail with `sentence` until parameter `name` is set anew, or forgiven."""
        self._bad[name] = sentence

    def forgive(self, name: str) -> None:
        """Take back what was complained of under this name."""
        self._bad.pop(name, None)

    def engine_config(self) -> EngineConfig:
        """What the engine is started with.

        Raises:
            GemmaMtpError: a parameter is not allowed or missing.
        """
        for sentence in self._bad.values():
            raise GemmaMtpError(sentence)
        if not self["model"]:
            raise GemmaMtpError(
                "parameter model is empty; give the folder of a Gemma 4 target, or demo for the "
                "embedded one"
            )
        fields = {
            name.removeprefix("engine."): value
            for name, value in self._values.items()
            if name.startswith("engine.")
        }
        fields["adaptive_draft"] = self["draft.adaptive"]
        fields["cache_max_mib"] = self["cache.max_mib"]
        kind = fields["draft_kind"] = self["draft.kind"]
        fields["model"], fields["drafter"] = resolve_pair(self["model"], self["drafter"], kind)
        try:
            return EngineConfig(**fields)
        except ValidationError as error:
            raise GemmaMtpError(f"engine parameters: {one_sentence(error)}") from error

    def policy_config(self) -> PolicyConfig:
        """The watchdog's policy; what the parameters hold is valid."""
        return _policy_config(self._values)

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        try:
            reason = self.refusal(parameters)
        except Exception as error:  # rclpy would drop the request without an answer
            self._node.get_logger().error(f"parameter callback failed: {error!r}")
            reason = f"the node failed to check the value: {error!r}"
        if not reason and not self._has_post_set:
            self._after_set(parameters)
        return SetParametersResult(successful=not reason, reason=reason)

    def unknown(self, parameters: list[Parameter]) -> str:
        """Empty if all of these are parameters of the node, else one sentence."""
        for parameter in parameters:
            if not self._node.has_parameter(parameter.name):
                return unknown_name(parameter.name)
        return ""

    def refusal(self, parameters: list[Parameter]) -> str:
        """Empty if these may be set together now, else one sentence."""
        values = dict(self._values)
        for name, value in ((p.name, p.value) for p in parameters if p.name in BY_NAME):
            spec = BY_NAME[name]
            sentence = check(spec, value)
            if sentence:
                return sentence
            values[name] = coerce(spec, value)
            if values[name] == self._values[name]:
                continue
            if spec.when is When.START:
                return f"{name} is read at the start only; restart the node with the new value"
            if spec.when is When.UNCONFIGURED and not self._is_unconfigured():
                node = self._node.get_fully_qualified_name()
                return (
                    f"{name} can only change while the node is unconfigured; deactivate and clean "
                    f"up first (ros2 lifecycle set {node} deactivate, then cleanup), set it, and "
                    "configure again"
                )
        return _check_together(values)

    def _after_set(self, parameters: list[Parameter]) -> None:
        changed = {}
        for parameter in parameters:
            spec = BY_NAME.get(parameter.name)
            if spec is None:
                continue
            changed[spec.name] = coerce(spec, parameter.value)
            self._bad.pop(spec.name, None)
        self._values = {**self._values, **changed}  # readers on other threads hold the old one
        try:
            self._apply(changed)
        except Exception as error:  # an exception here would end the executor's spin
            self._node.get_logger().error(f"applying {', '.join(changed)} failed: {error!r}")


def _policy_config(values: Mapping[str, Any]) -> PolicyConfig:
    override = values["watchdog.override"]
    numbers = {
        name: values[f"watchdog.{name}"]
        for name in PolicyConfig.__dataclass_fields__
        if name not in ("mode", "draft_cap", "override")
    }
    return PolicyConfig(
        mode=values["watchdog.mode"],
        draft_cap=parse_draft_cap(values["watchdog.draft_cap"]),
        override=Level[override] if override else None,
        **numbers,
    )


def _check_together(values: Mapping[str, Any]) -> str:
    """Empty if the values fit each other, else one sentence."""
    try:
        _policy_config(values)
    except ValueError as error:
        return str(error).rstrip(".")
    if values["watchdog.stale_after_s"] <= values["watchdog.period_s"]:
        return (
            f"watchdog.stale_after_s = {values['watchdog.stale_after_s']:g} is not above "
            f"watchdog.period_s = {values['watchdog.period_s']:g}, so every decision would be "
            "stale before the next; give at least twice the period"
        )
    return ""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _descriptor(spec: Spec) -> ParameterDescriptor:
    """Ranges where both ends are plain bounds; the callback checks the rest and the type.

    Doubles and arrays are typed dynamically: an integer is taken for a double, and rclpy takes an
    empty list for an array of bytes.
    """
    limits = ", ".join(part for part in (spec.kind, spec.bounds, spec.when.value) if part)
    descriptor = ParameterDescriptor(
        name=spec.name,
        description=spec.description,
        additional_constraints=limits,
        dynamic_typing=isinstance(spec.default, (float, tuple)),
        read_only=spec.when is When.START,
    )
    if spec.high is None or isinstance(spec.default, tuple):
        return descriptor
    low = spec.special if spec.special is not None else spec.low
    if low is None:
        return descriptor
    if isinstance(spec.default, float):
        descriptor.floating_point_range = [
            FloatingPointRange(from_value=float(low), to_value=float(spec.high))
        ]
    else:
        descriptor.integer_range = [
            IntegerRange(from_value=int(low), to_value=int(spec.high), step=1)
        ]
    return descriptor
