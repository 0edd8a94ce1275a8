# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of ``gemma-mtp doctor`` on what is installed: Python, packages, ROS, torch, kernels."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..telemetry.discover import MODEL
from .finding import Finding, Machine, ProbeError, error, ok, probe, warning

PYTHONS = ((3, 10), (3, 13))
"""Oldest and newest that are tested."""

PACKAGES = {
    "huggingface_hub": "0",
    "jinja2": "0",
    "jsonschema": "4.18",
    "llguidance": "1.9",
    "psutil": "0",
    "pydantic": "2.7",
    "PyYAML": "0",
    "rich": "0",
    "safetensors": "0",
    "tokenizers": "0",
    "torch": "2.6",
    "transformers": "5.20",
}
"""Oldest versions, as in requirements.txt."""

APT_PYTHON = {"humble": (3, 10), "jazzy": (3, 12), "kilted": (3, 12)}
"""ROS distributions that this package supports, and the Python that their apt packages are for."""

BOARDS = {"orin": ((8, 7), "Orin"), "thor": ((11, 0), "Thor")}
"""Compute capability by the board's name in the device tree. CUDA 12 calls Thor's 10.1."""

PROBE_S = 120.0
SELF_TEST_S = 300.0
ANSWER = "I will bring Anna the red cup from the kitchen."


def version_of(text: str) -> tuple[int, ...]:
    """The leading numbers of a version."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def dotted(numbers: Iterable[int]) -> str:
    """Numbers as a version."""
    return ".".join(map(str, numbers))


def of_apt(environment: Mapping[str, str]) -> bool:
    """Whether the ROS that is sourced comes from its own packages."""
    return "/opt/ros/" in environment.get("AMENT_PREFIX_PATH", "")


def judge_python(version: tuple[int, int]) -> Finding:
    """Whether this Python is one that the package runs on."""
    oldest, newest = PYTHONS
    if oldest <= version <= newest:
        return ok(f"Python {dotted(version)} ({sys.executable})")
    return error(
        f"Python {dotted(version)} ({sys.executable}) is not one of {dotted(oldest)} to "
        f"{dotted(newest)}",
        "make the virtual environment with one of them (python3.10 on JetPack 6, python3.12 on "
        "JetPack 7)",
    )


def python(machine: Machine) -> list[Finding]:
    """Python itself."""
    return [judge_python((sys.version_info[0], sys.version_info[1]))]


def installed() -> dict[str, str | None]:
    """Versions of the required packages and of numpy; None: not installed."""
    found: dict[str, str | None] = {}
    for name in (*PACKAGES, "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def judge_packages(versions: Mapping[str, str | None], apt_ros: bool) -> list[Finding]:
    """Whether all is there, and new enough, and numpy is what ROS was compiled for."""
    findings = []
    missing = [name for name in PACKAGES if versions.get(name) is None]
    if missing:
        findings.append(
            error(
                f"{', '.join(missing)} cannot be found by {sys.executable}",
                "activate the virtual environment, or pip install -r requirements.txt there",
            )
        )
    for name, least in PACKAGES.items():
        version = versions.get(name)
        if version is None or version_of(version) >= version_of(least):
            continue
        whose = " (apt's, which the virtual environment sees)" if name == "pydantic" else ""
        findings.append(
            error(
                f"{name} {version}{whose} is older than {least}",
                f"pip install '{name}>={least}' into the virtual environment",
            )
        )
    numpy = versions.get("numpy")
    if numpy is None:
        findings.append(error("numpy cannot be found", "pip install 'numpy<2'"))
    elif apt_ros and version_of(numpy) >= (2,):
        findings.append(
            error(
                f"numpy {numpy} does not go with ROS from apt, which is compiled for numpy 1",
                "pip install 'numpy<2' into the virtual environment",
            )
        )
    if not findings:
        told = ("torch", "transformers", "pydantic", "numpy")
        findings.append(ok(", ".join(f"{name} {versions[name]}" for name in told)))
    return findings


def packages(machine: Machine) -> list[Finding]:
    """The Python packages, by what their metadata says."""
    return judge_packages(installed(), of_apt(machine.environment))


def judge_ros(
    distribution: str,
    there: Sequence[str],
    apt: bool,
    python: tuple[int, int],
    found: Mapping[str, Any],
) -> list[Finding]:
    """What can be said of ROS.

    Args:
        distribution: ROS_DISTRO. there: what is in /opt/ros. apt: it is sourced from there.
        found: what the probe says.
    """
    errors = found["errors"]
    if not distribution and "rclpy" in errors:
        remedy = "without ROS gemma-mtp works and the node does not; install ROS 2 Humble or Jazzy"
        if there:
            remedy = (
                f"source /opt/ros/{there[-1]}/setup.bash and the workspace's install/setup.bash"
            )
        return [warning("ROS is not sourced in this shell", remedy)]
    findings = []
    if distribution and distribution not in APT_PYTHON:
        findings.append(
            warning(
                f"ROS {distribution} is not one that this package is made for "
                f"({', '.join(APT_PYTHON)})",
                "use one of them",
            )
        )
    wanted = APT_PYTHON.get(distribution)
    if "rclpy" in errors:
        if apt and wanted and python != wanted:
            findings.append(
                error(
                    f"ROS {distribution} from apt is for Python {dotted(wanted)}, and this is "
                    f"Python {dotted(python)}",
                    f"make the virtual environment with python{dotted(wanted)} -m venv "
                    "--system-site-packages",
                )
            )
        else:
            findings.append(
                error(
                    f"rclpy cannot be loaded by {sys.executable} ({errors['rclpy']})",
                    "source ROS's setup.bash, and make the virtual environment with "
                    "--system-site-packages",
                )
            )
        return findings
    if "rmw" in errors:
        findings.append(no_middleware(errors["rmw"]))
    if "messages" in errors:
        findings.append(
            error(
                f"messages of ROS cannot be loaded ({errors['messages']})",
                "install what package.xml names (rosdep install --from-paths src); with numpy 2 "
                "beside ROS from apt, pip install 'numpy<2'",
            )
        )
    if "interfaces" in errors:
        findings.append(
            error(
                f"the interfaces of gemma_mtp_ros cannot be loaded ({errors['interfaces']})",
                "build them (colcon build) with this Python and source install/setup.bash",
            )
        )
    if not findings:
        findings.append(ok(f"ROS {distribution or '2'}, {found['rmw']}, interfaces are built"))
    return findings


def no_middleware(why: str) -> Finding:
    """RMW_IMPLEMENTATION, or what is installed for it, is wrong."""
    return error(
        f"the middleware of ROS cannot be loaded ({why})",
        "unset RMW_IMPLEMENTATION, or install the package of that name",
    )


def ros(machine: Machine) -> list[Finding]:
    """ROS, its middleware, and the interfaces of this package."""
    environment = machine.environment
    there = machine.tree.entries("opt/ros", "[a-z]+")
    try:
        found = probe("gemma_mtp_ros.ros.probe", limit_s=PROBE_S)
    except ProbeError as why:
        if "RMW implementation" in str(why):  # rcl ends the process when it is loaded
            return [no_middleware(str(why))]
        return [error(f"ROS cannot be loaded: {why}", "run ros2 doctor, and source ROS again")]
    version = sys.version_info[0], sys.version_info[1]
    distribution = environment.get("ROS_DISTRO", "")
    return judge_ros(distribution, there, of_apt(environment), version, found)


def architectures(listed: Sequence[str]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Capabilities of machine code (sm_87, sm_110a) and of PTX (compute_80) in torch's list."""
    code: set[tuple[int, int]] = set()
    ptx: set[tuple[int, int]] = set()
    for name in listed:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)
        if found:
            (code if found[1] == "sm" else ptx).add((int(found[2]), int(found[3])))
    return code, ptx


def board_of(model: str) -> str:
    """Orin, Thor, or empty: by the device tree's model name."""
    return next((kind for name, (_, kind) in BOARDS.items() if name in model.lower()), "")


def judge_torch(model: str, found: Mapping[str, Any]) -> Finding:
    """Whether torch computes on the GPU of this board.

    Args:
        model: the device tree's model name; empty: this is no such board.
        found: what the probe says.
    """
    version, board = f"torch {found['version']}", board_of(model)
    jetson = (
        "install torch for this board's CUDA (Jetson AI Lab's wheels: jp6/cu126 for JetPack 6, "
        "sbsa/cu130 for JetPack 7)"
    )
    if found["cuda"] is None:
        if board:
            return error(f"{version} has no CUDA, so the GPU of this {board} is idle", jetson)
        return ok(f"{version} without CUDA: the engine runs on the CPU")
    version += f" with CUDA {found['cuda']}"
    code, ptx = architectures(found["arch_list"])
    if "capability" not in found:
        said = found["error"] or "no reason given"
        if not board:
            return ok(f"{version} sees no GPU ({said}): the engine runs on the CPU")
        wanted = next(capability for capability, kind in BOARDS.values() if kind == board)
        if code and wanted not in code and not (board == "Thor" and (10, 1) in code):
            return error(
                f"{version} has no code for sm_{wanted[0]}{wanted[1]}, this {board}'s GPU", jetson
            )
        return error(
            f"{version} cannot use the GPU of this {board} ({said})",
            "see the finding on devices; in a container start with --runtime nvidia",
        )
    major, minor = found["capability"]
    name = f"sm_{major}{minor}"
    listed = " ".join(found["arch_list"])
    if found["error"]:
        return error(f"{version} cannot compute on {found['device']} ({found['error']})", jetson)
    if (major, minor) in code:
        return ok(f"{version} computes on {found['device']} ({name})")
    if any(each <= (major, minor) for each in ptx):
        return warning(
            f"{version} has no code for {name}, {found['device']}'s, and translates it at the "
            f"first start ({listed})",
            jetson,
        )
    return warning(
        f"{version} has no code for {name}, {found['device']}'s, and computes with that of "
        f"another ({listed})",
        jetson if board else "install a torch that lists it",
    )


def torch(machine: Machine) -> list[Finding]:
    """torch, CUDA and the GPU."""
    try:
        found = probe("gemma_mtp_ros.engine.probe", "torch", limit_s=PROBE_S)
    except ProbeError as why:
        return [error(f"torch cannot be loaded: {why}", "install a torch that fits this machine")]
    if "missing" in found:
        return [
            error(
                f"torch cannot be loaded: {found['missing']}",
                "activate the virtual environment, or install a torch that fits this machine",
            )
        ]
    return [judge_torch(machine.tree.text(MODEL) or "", found)]


def transformers(machine: Machine) -> list[Finding]:
    """The classes of Gemma 4."""
    try:
        found = probe("gemma_mtp_ros.engine.probe", "transformers", limit_s=PROBE_S)
    except ProbeError as why:
        found = {"missing": str(why)}
    if "missing" in found:
        return [
            error(
                f"transformers does not know Gemma 4 and its drafter: {found['missing']}",
                f"pip install 'transformers>={PACKAGES['transformers']}'",
            )
        ]
    return [ok(f"transformers {found['version']} knows Gemma 4 and its drafter")]


def kernels(machine: Machine) -> list[Finding]:
    """The C++ kernels of a CPU."""
    remedy = "install a C++17 compiler (g++) and install or build the package again"
    try:
        found = probe("gemma_mtp_ros.engine.probe", "kernels", limit_s=PROBE_S)
    except ProbeError as why:
        return [error(f"the C++ kernels cannot be loaded: {why}", remedy)]
    if "missing" in found:
        return [error(f"the C++ kernels cannot be tried without {found['missing']}", remedy)]
    if "error" in found:
        return [warning(f"the C++ kernels are not used: {found['error']}", remedy)]
    setting = machine.environment.get("GEMMA_MTP_KERNELS", "")
    if setting == "off":
        return [warning("the C++ kernels are switched off", "unset GEMMA_MTP_KERNELS")]
    return [ok(f"the C++ kernels run as {found['isa']}")]


def judge_self_test(found: Mapping[str, Any]) -> list[Finding]:
    """Whether the embedded pair wrote what it should."""
    if found["error"]:
        return [error(f"the self-test failed: {found['error']}", "see the findings above it")]
    if found["plain"] != found["drafted"]:
        return [
            error(
                f"the self-test wrote other tokens with drafts ({found['drafted']}) than without "
                f"({found['plain']})",
                "report this as a bug with this output",
            )
        ]
    if not found["text"].startswith(ANSWER):
        return [
            error(
                f"the self-test wrote {found['text']!r} and not {ANSWER!r}",
                "install the package again; if it stays so, report it with this output",
            )
        ]
    count = len(found["plain"])
    said = f"the self-test wrote {count} tokens on {found['device']}, the same with drafts"
    if found["reproducible"] != "verified":
        return [
            warning(
                f"{said}, but equality of bits is not shown: {found['reproducible']}",
                "answers may differ in near ties with another draft length",
            )
        ]
    return [ok(f"{said} ({found['accepted']} accepted); reproducible: verified")]


def self_test(machine: Machine) -> list[Finding]:
    """20 tokens of the embedded pair, in a real engine process."""
    try:
        found = probe("gemma_mtp_ros.cli.self_test", limit_s=SELF_TEST_S)
    except ProbeError as why:
        found = {"error": str(why)}
    return judge_self_test(found)
