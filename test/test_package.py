# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The package as it is shipped: interfaces, versions, licence headers, what gets installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemma_mtp_ros
from gemma_mtp_ros.api import MAX_DRAFT, ErrorCode, FinishReason

ROOT = Path(__file__).parent.parent
INTERFACES = sorted(path for kind in ("action", "msg", "srv") for path in (ROOT / kind).iterdir())
EXPECTED = [
    "action/Generate.action",
    "msg/ChatMessage.msg",
    "msg/EngineStats.msg",
    "msg/GenerationStats.msg",
    "msg/PowerState.msg",
    "msg/SamplingParams.msg",
    "msg/TokenChunk.msg",
    "msg/ToolCall.msg",
    "srv/CountTokens.srv",
    "srv/GetModelInfo.srv",
    "srv/ResetSession.srv",
]
BUILD_FOLDERS = (
    *("action", "cmake", "config", "csrc", "examples", "gemma_mtp_ros", "launch", "msg"),
    *("programs", "srv"),
)
SOURCE_FOLDERS = (
    *("benchmarks", "cmake", "csrc", "examples", "gemma_mtp_ros", "launch", "scripts", "test"),
)
SOURCE_SUFFIXES = (".py", ".sh", ".cmake", ".cpp", ".h", ".inl")
LICENCE = """\
# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0"""
CONSTANT = re.compile(r"^uint\d+ ([A-Z_0-9]+)=(\d+)", re.MULTILINE)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def field_lines(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#") and line != "---":
            yield line


def test_all_interfaces_exist_and_are_built() -> None:
    assert [relative(path) for path in INTERFACES] == EXPECTED
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.findall(r'"((?:action|msg|srv)/\w+\.\w+)"', cmake) == EXPECTED


@pytest.mark.parametrize("path", INTERFACES, ids=relative)
def test_every_field_has_a_comment(path: Path) -> None:
    lines = list(field_lines(path))
    assert lines
    assert [line for line in lines if not re.search(r"# +\S.{5,}$", line)] == []


def test_published_messages_carry_a_header() -> None:
    for name in ("EngineStats", "PowerState", "TokenChunk"):
        fields = list(field_lines(ROOT / "msg" / f"{name}.msg"))
        plain = [line for line in fields if not CONSTANT.match(line)]
        assert plain[0].startswith("std_msgs/Header header"), name


def test_constants_of_the_action_are_those_of_the_api() -> None:
    found = CONSTANT.findall((ROOT / "action/Generate.action").read_text())
    constants = {name: int(value) for name, value in found}
    assert {
        f"FINISH_{reason.name}": int(reason) for reason in FinishReason
    }.items() <= constants.items()
    codes = {
        name: value
        for name, value in constants.items()
        if not name.startswith(("FINISH_", "STATE_"))
    }
    assert codes == {code.name: int(code) for code in ErrorCode}


def test_draft_cap_comment_names_the_bound() -> None:
    assert f"; {MAX_DRAFT}: no cap" in (ROOT / "msg/PowerState.msg").read_text()


def test_versions_agree() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    assert package.findtext("version") == gemma_mtp_ros.__version__
    assert (
        'version = { attr = "gemma_mtp_ros.__version__" }' in (ROOT / "pyproject.toml").read_text()
    )


def test_every_source_file_names_licence_and_copyright() -> None:
    files = [path for name in SOURCE_FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()]
    sources = [path for path in files if path.suffix in SOURCE_SUFFIXES]
    sources += [*(ROOT / "programs").iterdir(), ROOT / "setup.py", ROOT / "CMakeLists.txt"]
    assert len(sources) > 30
    for path in sources:
        head = "\n".join(path.read_text().splitlines()[:3]).replace("// ", "# ")
        assert LICENCE in head, relative(path)


def test_requirements_are_pinned_for_development() -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    wanted: set[str] = set()
    for name in ("requirements.txt", "requirements-dev.txt"):
        wanted |= set(re.findall(r"^([\w-]+)", (ROOT / name).read_text(), re.MULTILINE))
    assert wanted - pinned == set()


@pytest.mark.ros
def test_installed_layout() -> None:
    from ament_index_python.packages import get_package_prefix

    prefix = Path(get_package_prefix("gemma_mtp_ros"))
    for name in ("node", "gemma-mtp"):
        program = prefix / "lib" / "gemma_mtp_ros" / name
        assert os.access(program, os.X_OK)
        assert program.read_text().startswith("#!/usr/bin/env python3\n")
    share = prefix / "share" / "gemma_mtp_ros"
    for name in ("package.xml", "config/demo.yaml", "config/thor.yaml", "examples/README.md"):
        assert (share / name).is_file()
    for name in ("demo", "orin", "thor"):
        assert (share / "launch" / f"{name}.launch.py").is_file()
    (package,) = prefix.glob("lib/python3*/site-packages/gemma_mtp_ros")
    for name in ("__init__.py", "api.py", "engine/worker.py", "ros/node.py", "msg/__init__.py"):
        assert (package / name).is_file()


# --- scripts/setup.sh ----------------------------------------------------------------------------


def run_setup(folder: Path, *path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run setup.sh in a copy of the repository that holds the scripts alone."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("requirements.txt", "requirements-ros.txt", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    search = ":".join([*map(str, path), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(folder / "scripts" / "setup.sh"), "run"],
        capture_output=True,
        text=True,
        env={"PATH": search, "HOME": str(folder)} | variables,
        timeout=60,
    )


def crippled_python(folder: Path, without: str) -> str:
    """An interpreter that fails whenever it is asked about `without`."""
    program = folder / "python-crippled"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *{without}*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    )
    program.chmod(0o755)
    return str(program)


def test_setup_names_a_missing_compiler(tmp_path: Path) -> None:
    done = run_setup(tmp_path, PYTHON=sys.executable, CXX="no-such-compiler")
    assert done.returncode != 0
    assert "missing: a C++ compiler (no-such-compiler)" in done.stderr
    assert "sudo apt install g++" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("without", "named", "package"),
    [("ensurepip", "the venv module", "venv"), ("Python.h", "the C headers", "dev")],
)
def test_setup_names_what_python_lacks(
    tmp_path: Path, without: str, named: str, package: str
) -> None:
    done = run_setup(tmp_path, PYTHON=crippled_python(tmp_path, without))
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode != 0
    assert f"missing: {named} of {version}" in done.stderr
    assert f"sudo apt install {version}-{package}" in done.stderr


def test_setup_refuses_a_python_that_does_not_fit(tmp_path: Path) -> None:
    done = run_setup(tmp_path, PYTHON="/bin/false")
    assert done.returncode != 0
    assert "PYTHON=/bin/false does not run, or is not Python 3.10 to 3.13" in done.stderr


@pytest.mark.parametrize("target", ["demo", "example"])
def test_prompt_reaches_the_demo_as_it_is(tmp_path: Path, target: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name, body in (("setup.sh", ""), (f"{target}.sh", 'printf %s "$DEMO_PROMPT" > got')):
        (scripts / name).write_text(f"#!/bin/sh\n{body}\n")
        (scripts / name).chmod(0o755)
    prompt = """go to "the kitchen", don't $(touch bad) `touch bad` $HOME $$ #5 \\ now"""
    subprocess.run(["make", target, f"PROMPT={prompt}"], cwd=tmp_path, check=True)
    assert (tmp_path / "got").read_text() == prompt
    assert not (tmp_path / "bad").exists()


# --- slow: real builds ---------------------------------------------------------------------------


def copy_sources(folder: Path) -> Path:
    """The files that a build reads, without what other builds left."""
    for name in (*BUILD_FOLDERS, "test"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wheel_works_without_ros(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = copy_sources(tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".safetensors") for name in names), "the embedded pair is missing"
    assert "gemma_mtp_ros/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gemma_mtp_ros"}

    site = tmp_path / "site"
    install = [*pip, "install", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH", "PYTHONPATH")
    }
    done = subprocess.run(
        [site / "bin" / "gemma-mtp", "ask", "--model", "demo", "go to the kitchen"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    assert "kitchen" in done.stdout


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace in a path with a space."""
    folder = tmp_path_factory.mktemp("colcon") / "a workspace"
    (folder / "src" / "gemma_mtp_ros").mkdir(parents=True)
    copy_sources(folder / "src" / "gemma_mtp_ros")
    return folder


@pytest.mark.slow
@pytest.mark.ros
@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", ["isolated", "merge-install", "symlink-install"])
def test_colcon_layouts(workspace: Path, tmp_path: Path, layout: str) -> None:
    colcon = shutil.which("colcon")
    if colcon is None:
        pytest.skip("colcon is not installed")
    command = [colcon, "build", "--install-base", layout, "--event-handlers", "console_direct+"]
    command += [] if layout == "isolated" else [f"--{layout}"]
    # What was built for copies serves both layouts of copies, but cannot be built on for links.
    command += ["--build-base", "build-links" if layout == "symlink-install" else "build-copies"]
    command += ["--cmake-force-configure", "--cmake-args", "-DBUILD_TESTING=OFF"]
    command += [f"-DPython3_EXECUTABLE={sys.executable}"]
    if (Path(sys.prefix) / "share" / "ament_cmake").is_dir():  # the ROS wheels
        snippet = workspace / "src/gemma_mtp_ros/cmake/drop_missing_includes.cmake"
        command += [f"-DCMAKE_PROJECT_INCLUDE={snippet}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    built = subprocess.run(command, cwd=workspace, capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]

    prefix = workspace / layout / ("" if layout == "merge-install" else "gemma_mtp_ros")
    code = """
import importlib.util, sys
import gemma_mtp_ros.api, gemma_mtp_ros.ros.node
from gemma_mtp_ros.action import Generate
from gemma_mtp_ros.msg import TokenChunk
from gemma_mtp_ros.srv import CountTokens
Generate.Goal(), TokenChunk(), CountTokens.Request()
TokenChunk.__class__.__import_type_support__()
assert TokenChunk.__class__._TYPE_SUPPORT is not None
print(*gemma_mtp_ros.__path__)
"""
    setup = prefix / "share" / "gemma_mtp_ros" / "local_setup.bash"
    imported = subprocess.run(
        ["bash", "-c", 'source "$0" && exec python -c "$1"', str(setup), code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.strip().startswith(str(prefix))
    assert os.access(prefix / "lib" / "gemma_mtp_ros" / "node", os.X_OK)
