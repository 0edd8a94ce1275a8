# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp doctor``: each finding made to appear, on a real tree or environment."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from typing import Any

import jetson_tree
import pytest
from jetson_tree import JetsonTree

from gemma_mtp_ros.cli import doctor, hardware, software
from gemma_mtp_ros.cli.finding import Check, Grade, Machine, ProbeError, carry_out, error, ok, probe

REPOSITORY = Path(__file__).parent.parent
OK, WARNING, ERROR = "ok", "warning", "error"
HERE = Machine(Path("/"), os.environ)


def drop_root_rights() -> None:
    """Have permissions of files count for root too, from the next program on."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


def look(
    only: str,
    root: Path | str = "/",
    *,
    python: str = sys.executable,
    path: Path | str = "",
    repository: Path = REPOSITORY,
    **environment: str,
) -> list[tuple[str, str]]:
    """(grade, sentence) of one check, by the real command; ``path`` comes first on PYTHONPATH."""
    places = [
        str(path),
        str(repository),
        environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")),
    ]
    options = ["--only", only] if only else []
    process = subprocess.run(
        [python, "-m", "gemma_mtp_ros", "doctor", "--json", "--root", str(root), *options],
        capture_output=True,
        text=True,
        cwd="/",
        preexec_fn=drop_root_rights,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, places))},
    )
    assert process.stderr == ""
    found = json.loads(process.stdout)
    assert process.returncode == int(not found["ok"])
    assert found["ok"] == all(each["grade"] != ERROR for each in found["findings"])
    for each in found["findings"]:
        assert bool(each["remedy"]) == (each["grade"] != OK), each
        assert not only or each["check"] == only
    return [
        (each["grade"], "; ".join(filter(None, (each["message"], each["remedy"]))))
        for each in found["findings"]
    ]


def one(*arguments: Any, **options: Any) -> tuple[str, str]:
    """The only finding."""
    (found,) = look(*arguments, **options)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_of_it_runs_here() -> None:
    found = look("", ROS_DISTRO="", AMENT_PREFIX_PATH="")
    assert len(found) >= len(doctor.CHECKS)
    written = [sentence for _, sentence in found if sentence.startswith("the self-test")]
    assert written == [found[-1][1]]
    assert re.match(
        r"the self-test wrote 20 tokens on \w+, the same with drafts \([1-9]", written[0]
    )


def test_where_nothing_is_installed_all_is_said_and_nothing_crashes(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    found = look(
        "",
        python=str(tmp_path / "venv/bin/python"),
        ROS_DISTRO="",
        AMENT_PREFIX_PATH="",
        PYTHONHOME="",
    )
    said = "\n".join(f"{grade} {sentence}" for grade, sentence in found)
    for words in (
        "error huggingface_hub, jinja2, jsonschema, llguidance, psutil, pydantic, PyYAML, rich,",
        "error numpy cannot be found",
        "error torch cannot be loaded: torch: No module named 'torch'",
        "error transformers does not know Gemma 4 and its drafter: transformers:",
        "error the C++ kernels cannot be tried without torch:",
        "error the self-test failed: ModuleNotFoundError: No module named 'pydantic'",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("name", "version", "environment", "words"),
    [
        (
            "numpy",
            "2.1.0",
            {"AMENT_PREFIX_PATH": "/opt/ros/jazzy"},
            "numpy 2.1.0 does not go with ROS from apt, which is compiled for numpy 1; pip install "
            "'numpy<2'",
        ),
        ("pydantic", "1.10.14", {}, "pydantic 1.10.14 (apt's, which the virtual environment sees)"),
        ("transformers", "4.57.1", {}, "transformers 4.57.1 is older than 5.20; pip install"),
    ],
)
def test_versions_are_those_that_python_would_load(
    tmp_path: Path, name: str, version: str, environment: dict[str, str], words: str
) -> None:
    folder = tmp_path / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    grade, sentence = one("packages", path=tmp_path, **environment)
    assert grade == ERROR
    assert sentence.startswith(words)


def test_the_versions_asked_for_are_those_of_the_requirements() -> None:
    lines = (REPOSITORY / "requirements.txt").read_text().splitlines()
    pairs = (line.partition(">=") for line in lines if line and not line.startswith("#"))
    assert {name: least.split(",")[0] or "0" for name, _, least in pairs} == software.PACKAGES


def test_numpy_2_is_no_fault_without_ros_from_apt() -> None:
    versions: dict[str, str | None] = {**software.PACKAGES, "numpy": "2.4.0"}
    assert software.judge_packages(versions, apt_ros=False)[0].grade is Grade.OK
    assert (
        software.judge_packages({**versions, "numpy": "1.26.4"}, apt_ros=True)[0].grade is Grade.OK
    )


@pytest.mark.parametrize(
    ("version", "grade"),
    [((3, 9), ERROR), ((3, 10), OK), ((3, 12), OK), ((3, 13), OK), ((3, 14), ERROR)],
)
def test_python_versions(version: tuple[int, int], grade: str) -> None:
    found = software.judge_python(version)
    assert found.grade == grade
    assert f"{version[0]}.{version[1]}" in found.message


BROKEN = "raise ImportError(\"No module named 'rclpy._rclpy_pybind11'\")\n"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"ROS_DISTRO": "", "AMENT_PREFIX_PATH": ""}, (WARNING, "ROS is not sourced")),
        (
            {"ROS_DISTRO": "jazzy", "AMENT_PREFIX_PATH": "/ws/install"},
            (ERROR, "rclpy cannot be loaded by "),
        ),
    ],
)
def test_a_ros_that_cannot_be_loaded(
    tmp_path: Path, environment: dict[str, str], expected: tuple[str, str]
) -> None:
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy/__init__.py").write_text(BROKEN)
    grade, sentence = one("ros", path=tmp_path, **environment)
    assert grade == expected[0]
    assert sentence.startswith(expected[1])


def test_ros_is_looked_for_where_apt_puts_it(tmp_path: Path) -> None:
    (tmp_path / "opt/ros/humble").mkdir(parents=True)
    (tmp_path / "rclpy").mkdir()
    (tmp_path / "rclpy/__init__.py").write_text(BROKEN)
    _, sentence = one("ros", tmp_path, path=tmp_path, ROS_DISTRO="", AMENT_PREFIX_PATH="")
    assert "source /opt/ros/humble/setup.bash" in sentence


@pytest.mark.parametrize(
    ("distribution", "python", "errors", "grades", "words"),
    [
        ("humble", (3, 10), {}, [OK], "ROS humble, rmw, interfaces are built"),
        ("humble", (3, 12), {"rclpy": "?"}, [ERROR], "ROS humble from apt is for Python 3.10"),
        ("jazzy", (3, 12), {"rclpy": "?"}, [ERROR], "rclpy cannot be loaded"),
        ("jazzy", (3, 12), {"interfaces": "?"}, [ERROR], "colcon build"),
        ("jazzy", (3, 12), {"rmw": "?"}, [ERROR], "RMW_IMPLEMENTATION"),
        ("jazzy", (3, 12), {"messages": "?", "interfaces": "?"}, [ERROR, ERROR], "rosdep"),
        ("foxy", (3, 10), {}, [WARNING], "ROS foxy is not one"),
    ],
)
def test_what_is_said_of_ros(
    distribution: str,
    python: tuple[int, int],
    errors: dict[str, str],
    grades: list[str],
    words: str,
) -> None:
    found = software.judge_ros(
        distribution, [], True, python, {"rclpy": "/x", "rmw": "rmw", "errors": errors}
    )
    assert [each.grade for each in found] == grades
    assert words in found[0].sentence


def gpu(arch_list: str, capability: list[int] | None, wrong: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {"version": "2.9", "cuda": "12.6", "arch_list": arch_list.split()}
    return (
        found
        | {"error": wrong}
        | ({"capability": capability, "device": "GPU"} if capability else {})
    )


@pytest.mark.parametrize(
    ("model", "found", "grade", "words"),
    [
        ("Jetson Orin Nano", gpu("sm_80 sm_87", [8, 7]), OK, "computes on GPU (sm_87)"),
        ("Jetson AGX Thor", gpu("sm_110a", [11, 0]), OK, "sm_110"),
        ("Jetson AGX Thor", gpu("sm_101", [10, 1]), OK, "sm_101"),
        ("Jetson Orin Nano", gpu("sm_80 sm_90", [8, 7]), WARNING, "computes with that of another"),
        ("", gpu("sm_70 compute_70", [8, 9]), WARNING, "translates it at the first start"),
        ("Jetson Orin Nano", gpu("sm_80 sm_90", None, "no driver"), ERROR, "no code for sm_87"),
        ("Jetson Orin Nano", gpu("sm_87", None, "no driver"), ERROR, "--runtime nvidia"),
        ("Jetson AGX Thor", gpu("sm_90", [11, 0], "no kernel image"), ERROR, "no kernel image"),
        ("", gpu("sm_90", None, "no driver"), OK, "the engine runs on the CPU"),
        ("", {"version": "2.9", "cuda": None}, OK, "without CUDA"),
        ("Jetson Orin NX", {"version": "2.9", "cuda": None}, ERROR, "GPU of this Orin is idle"),
    ],
)
def test_what_is_said_of_the_gpu(model: str, found: dict[str, Any], grade: str, words: str) -> None:
    finding = software.judge_torch(model, found)
    assert (finding.grade, words in finding.sentence) == (grade, True), finding.sentence


def test_a_library_that_ends_its_process_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    (tmp_path / "torch/__init__.py").write_text(code)
    expected = "torch cannot be loaded: ended by SIGILL; install a torch that fits this machine"
    assert one("torch", path=tmp_path) == (ERROR, expected)
    assert one("kernels", path=tmp_path)[0] == ERROR


def test_kernels_that_were_not_built(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "pair")
    shutil.copytree(REPOSITORY / "gemma_mtp_ros", tmp_path / "gemma_mtp_ros", ignore=ignored)
    grade, sentence = one("kernels", repository=tmp_path, PYTHONPATH="")
    assert grade == WARNING
    assert sentence.startswith("the C++ kernels are not used: ")
    assert "is not there (no C++ compiler at installation?)" in sentence


def test_a_probe_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_probe.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(ProbeError, match=r"no answer within 0\.5 s"):
        probe("slow_probe", limit_s=0.5)
    assert time.monotonic() - begun < 60


def test_a_check_that_hangs_or_fails_leaves_the_others_alone() -> None:
    never = threading.Event()

    def hangs(machine: Machine) -> list[Any]:
        never.wait()
        return []

    def fails(machine: Machine) -> list[Any]:
        raise ZeroDivisionError("by nothing")

    checks = [Check("a", hangs, 0.05), Check("b", fails), Check("c", lambda m: [ok("well")])]
    found = [carry_out(check, HERE)[0] for check in checks]
    never.set()
    assert [each.grade for each in found] == [Grade.ERROR, Grade.ERROR, Grade.OK]
    assert found[0].message == "the check did not end within 0.05 s"
    assert found[1].message == "the check itself failed (ZeroDivisionError: by nothing)"


@pytest.mark.parametrize(
    "board", [jetson_tree.ORIN_NANO, jetson_tree.AGX_ORIN, jetson_tree.AGX_THOR]
)
def test_the_sensors_of_a_board(tmp_path: Path, board: str) -> None:
    with JetsonTree(tmp_path, board):
        machine = Machine(tmp_path, {})
        reading, _ = hardware.take_reading(tmp_path)
        assert reading is not None
        sensed, *rest = carry_out(Check("sensors", hardware.sensors), machine)
        (moded,) = carry_out(Check("power mode", hardware.power_mode), machine)
        (named,) = carry_out(Check("board", hardware.board), machine)
    assert sensed.grade is Grade.OK
    assert f"{reading.hottest_zone} {reading.temperature_c:.1f} degC" in sensed.message
    assert sensed.message.startswith("source sysfs: ")
    assert all(reading.throttle_reason in each.message for each in rest)
    assert moded.message.startswith(f"power mode {reading.power_mode} (others: ")
    assert named.message == reading.board


def test_a_board_whose_clocks_are_cut(tmp_path: Path) -> None:
    with JetsonTree(tmp_path, jetson_tree.ORIN_NANO) as tree:
        tree.write("sys/class/thermal/cooling_device90/type", "devfreq-17000000.gpu")
        tree.write("sys/class/thermal/cooling_device90/cur_state", 3)
        tree.write(hardware.RELEASE, "# R36 (release), REVISION: 4.3, GCID: 1, BOARD: generic\n")
        found = look("sensors", tmp_path)
        assert found[-1][0] == WARNING
        assert found[-1][1].startswith("the clocks are being cut now (devfreq-17000000.gpu 3)")
        assert one("board", tmp_path)[1].endswith("L4T 36.4.3 (JetPack 6)")


def test_sensors_that_may_not_be_read(tmp_path: Path) -> None:
    with JetsonTree(tmp_path, jetson_tree.ORIN_NANO):
        layout = hardware.discover(Machine(tmp_path, {}).tree)
        zone = tmp_path / layout.zones["cpu-thermal"]
        zone.chmod(0)
        (grade, sentence), (_, rest) = look("sensors", tmp_path)
        assert grade == WARNING
        assert sentence.startswith("1 files of sensors may not be read by ")
        assert str(zone) in sentence
        assert "cpu-thermal" in rest
        (tmp_path / "var/lib/nvpmodel/status").chmod(0)
        assert one("power mode", tmp_path)[1].startswith("the power mode is unknown; ")


def test_a_host_whose_power_is_for_root_alone(tmp_path: Path) -> None:
    tree = JetsonTree(tmp_path)
    tree.write("sys/class/thermal/thermal_zone0/type", "x86_pkg_temp")
    tree.write("sys/class/thermal/thermal_zone0/temp", 51_000)
    tree.write("sys/class/powercap/intel-rapl:0/name", "package-0")
    tree.write("sys/class/powercap/intel-rapl:0/energy_uj", 1)
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").chmod(0)
    found = look("sensors", tmp_path)
    assert [grade for grade, _ in found] == [WARNING, OK, WARNING]
    assert "energy_uj" in found[0][1]
    assert "x86_pkg_temp 51.0 degC" in found[1][1]
    assert found[2][1].startswith("The power is unknown: the RAPL counters")


def test_a_machine_without_sensors(tmp_path: Path) -> None:
    grade, sentence = one("sensors", tmp_path)
    assert grade == WARNING
    assert sentence.startswith("no temperature can be read (No temperature and no power")
    assert one("power mode", tmp_path) == (OK, "no power modes: this is no Jetson")
    assert one("devices", tmp_path) == (OK, "no GPU of NVIDIA")
    assert one("memory", tmp_path)[1].startswith("the free memory is unknown: ")
    assert one("swap", tmp_path) == (OK, "no swap is set up")


def test_devices_of_the_gpu(tmp_path: Path) -> None:
    with JetsonTree(tmp_path, jetson_tree.AGX_ORIN) as tree:
        grade, sentence = one("devices", tmp_path)
        assert (grade, "--runtime nvidia" in sentence) == (WARNING, True)
        tree.write("dev/nvmap", "")
        tree.write("dev/dri/renderD128", "")
        assert one("devices", tmp_path)[0] == OK
        (tmp_path / "dev/nvmap").chmod(0)
        grade, sentence = one("devices", tmp_path)
        assert grade == ERROR
        assert f"may not use {tmp_path / 'dev/nvmap'}; sudo usermod -aG video,render" in sentence


@pytest.mark.parametrize(("free_mib", "expected"), [(800, ERROR), (3000, WARNING), (6000, OK)])
def test_free_memory(tmp_path: Path, free_mib: int, expected: str) -> None:
    (tmp_path / "proc").mkdir()
    text = f"MemTotal: {7607 * 1024} kB\nMemFree: 1 kB\nMemAvailable:   {free_mib * 1024} kB\n"
    (tmp_path / "proc/meminfo").write_text(text)
    grade, sentence = one("memory", tmp_path)
    assert grade == expected
    assert sentence.startswith(f"{free_mib} MiB of memory are free of 7607")


def test_swap_and_zram(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {7607 * 1024} kB\n")
    swaps = "Filename\tType\tSize\tUsed\tPriority\n"
    swaps += "".join(f"/dev/zram{i} partition 649000 100000 5\n" for i in range(6))
    (tmp_path / "proc/swaps").write_text(swaps)
    found = look("swap", tmp_path)
    assert [grade for grade, _ in found] == [WARNING, WARNING]
    assert found[0][1].startswith("582 MiB are swapped out")
    assert found[1][1].startswith("3798 MiB of zram compress pages")
    assert "nvzramconfig" in found[1][1]
    swaps = "Filename Type Size Used Priority\n/swapfile file 8388604 0 -2\n"
    (tmp_path / "proc/swaps").write_text(swaps)
    assert one("swap", tmp_path) == (OK, "8191 MiB of swap, 0 in use")


def test_the_disk_of_the_checkpoints(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    shut.chmod(0o500)
    grade, sentence = one("disk", HF_HOME=str(shut / "hf"), HF_HUB_CACHE="")
    assert grade == ERROR
    assert sentence.startswith(f"checkpoints cannot be kept in {shut / 'hf/hub'}: ")
    assert str(tmp_path / "here") in one("disk", HF_HUB_CACHE=str(tmp_path / "here"))[1]
    for free, expected in ((10**8, ERROR), (5 * 10**9, WARNING), (10**11, OK)):
        assert hardware.judge_disk(tmp_path, free).grade == expected


def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    for variables in ({}, {"HF_HOME": "/a"}, {"XDG_CACHE_HOME": "/b"}, {"HF_HUB_CACHE": "/c"}):
        bare = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_"))}
        environment = bare | variables
        said = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment
        )
        assert said.stdout.strip() == str(hardware.cache_folder(environment))


TOKENS = list(range(20))
WRITTEN = {
    "error": "",
    "plain": TOKENS,
    "drafted": TOKENS,
    "text": software.ANSWER,
    "accepted": 15,
    "device": "cpu",
    "reproducible": "verified",
}


@pytest.mark.parametrize(
    ("change", "grade", "words"),
    [
        ({}, OK, "wrote 20 tokens on cpu, the same with drafts (15 accepted)"),
        ({"error": "the engine was lost"}, ERROR, "the self-test failed: the engine was lost"),
        ({"drafted": TOKENS[:-1]}, ERROR, "other tokens with drafts"),
        ({"text": "I will"}, ERROR, "the self-test wrote 'I will' and not 'I will bring"),
        ({"reproducible": "off"}, WARNING, "equality of bits is not shown: off"),
    ],
)
def test_what_is_said_of_the_self_test(change: dict[str, Any], grade: str, words: str) -> None:
    (found,) = software.judge_self_test({**WRITTEN, **change})
    assert (found.grade, words in found.sentence) == (grade, True)


def test_lines_for_people(tmp_path: Path) -> None:
    shown = doctor.line("ros", error("it is off", "switch it on"), colours=False)
    assert shown == "error    ros:           it is off; switch it on"
    assert doctor.summary([ok("x")]) == "all is well"
    assert doctor.summary([error("x", "y"), ok("z")]) == "1 error, 0 warnings"
    process = subprocess.run(
        [sys.executable, "-m", "gemma_mtp_ros", "doctor", "--only", "python", "--only", "disk"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"},
    )
    lines = process.stdout.splitlines()
    assert lines[0].startswith("ok       python:        Python 3.")
    assert [line.split()[1] for line in lines[:2]] == ["python:", "disk:"]
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--root", "/no/such"], "--root /no/such is no folder"), (["--only", "x"], "--only x is no")],
)
def test_mistakes_get_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    from gemma_mtp_ros.cli.main import main

    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err
