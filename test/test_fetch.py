# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp fetch``: the real command and huggingface_hub, with a hub on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from hub_server import HubServer

from gemma_mtp_ros.models import RELEASED, drafter_of, released_pair, split_revision

pytestmark = pytest.mark.timeout(300)

REPOSITORY = Path(__file__).parent.parent
TARGET, DRAFTER = "google/gemma-4-E2B-it", "google/gemma-4-E2B-it-assistant"
WEIGHTS = "model.safetensors"
LINK = "https://ai.google.dev/gemma/docs/gemma_4_license"
WIDE = {"vocab_size_per_layer_input": 150_000}
"""Makes the weights (30 MB) so large that huggingface_hub writes them in pieces (of 10 MB)."""
SENT = 25_000_000


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: a target and its drafter, and the drafter of another target."""
    folder = tmp_path_factory.mktemp("pairs")
    target = tiny.save_target(folder / "target", **tiny.E_SIZE.target, **WIDE)
    drafter = tiny.save_drafter(folder / "drafter", target, **tiny.E_SIZE.drafter)
    wider = tiny.save_target(folder / "wider", hidden_size=64)
    other = tiny.save_drafter(folder / "other", wider)
    return {"target": target, "drafter": drafter, "other": other}


@pytest.fixture
def hub(pairs: dict[str, Path]) -> Iterator[HubServer]:
    """Serves the pair as a released one, beside files that the engine has no use for."""
    useless = {
        "original/consolidated.00.pth": b"p" * 500_000,
        "gemma.gguf": b"g" * 500_000,
        "pytorch_model.bin": b"b" * 500_000,
        "README.md": b"# card",
    }
    with HubServer() as server:
        repo = server.add(TARGET, pairs["target"], useless)
        repo.card = {"license": "apache-2.0", "license_link": LINK}
        server.add(DRAFTER, pairs["drafter"], {"LICENSE": b"terms"})
        yield server


class Machine:
    """Runs the command with a cache of its own."""

    def __init__(self, home: Path, hub: HubServer) -> None:
        self.home = home
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "NO_PROXY": "*",
            "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}",
        }

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gemma_mtp_ros", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment | more,
        )

    def fetch(self, *arguments: str, **more: str) -> tuple[int, str, str]:
        process = self.start("fetch", *arguments, **more)
        out, err = process.communicate()
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def snapshot(self, name: str, commit: str) -> Path:
        return self.home / "hub" / f"models--{name.replace('/', '--')}" / "snapshots" / commit

    def python(self, code: str, **more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=self.environment | more,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def machine(tmp_path: Path, hub: HubServer) -> Machine:
    return Machine(tmp_path / "hf", hub)


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def test_released_pairs_are_known_by_size() -> None:
    assert released_pair("e2b") == (TARGET, DRAFTER)
    assert released_pair("26b-a4b") == (
        "google/gemma-4-26B-A4B-it",
        "google/gemma-4-26B-A4B-it-assistant",
    )
    assert released_pair("7B") is None
    for size in RELEASED:
        target, drafter = released_pair(size) or ("", "")
        assert drafter_of(target) == drafter
    assert drafter_of("someone/gemma-4-E2B-it") is None
    assert split_revision("a/b@refs/pr/1") == ("a/b", "refs/pr/1")
    assert split_revision("a/b") == ("a/b", None)


def test_a_pair_is_fetched_by_size_and_loads_by_name(hub: HubServer, machine: Machine) -> None:
    status, out, err = machine.fetch("e2b")
    assert status == 0, err
    commits = {name: hub.repos[name].branches["main"] for name in (TARGET, DRAFTER)}
    assert out.splitlines() == [
        f"{role} {name} commit {commits[name]} in {machine.snapshot(name, commits[name])}"
        for role, name in (("model", TARGET), ("drafter", DRAFTER))
    ]
    assert f"licence apache-2.0 ({LINK})" in err
    assert "states no licence" in err  # the drafter's card
    assert f"model:={TARGET} drafter:={DRAFTER}" in err
    # What the engine reads, and nothing else.
    target = names(machine.snapshot(TARGET, commits[TARGET]))
    assert {"config.json", "tokenizer.json", "chat_template.jinja", WEIGHTS} <= target
    assert not {name for name in target if name.endswith((".bin", ".gguf", ".pth", ".md"))}
    assert names(machine.snapshot(DRAFTER, commits[DRAFTER])) == {
        "config.json",
        WEIGHTS,
        "LICENSE",
    }
    # The engine finds and runs it by name, without any hub.
    hub.status = 500
    answer = machine.start(
        *("ask", "--model", TARGET, "--drafter", DRAFTER, "--max-new-tokens", "8", "--json", "x")
    )
    said, err = answer.communicate()
    assert answer.returncode == 0, err
    found = json.loads(said)
    assert found["model"]["revision"] == commits[TARGET]
    assert sum(found["stats"]["drafted_at"]) > 0

    # Again: the hub is asked what main is, and nothing is downloaded.
    hub.status = 0
    seen = len(hub.requests)
    status, _, err = machine.fetch(TARGET)
    assert (status, "all was there already" in err) == (0, True)
    assert [
        r.path for r in hub.requests[seen:] if "/resolve/" in r.path or "/large/" in r.path
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize("cut", [SENT, -SENT])
def test_a_broken_connection_goes_on(hub: HubServer, machine: Machine, cut: int) -> None:
    hub.cuts[WEIGHTS] = [cut]
    status, _, err = machine.fetch(TARGET, "--drafter", "none")
    assert status == 0, err
    first, second = hub.downloads(WEIGHTS)
    begin = int(second.range.removeprefix("bytes=").removesuffix("-"))
    assert 0 < begin <= first.sent
    assert begin + second.sent == len(hub.repos[TARGET].files("main")[WEIGHTS])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_was_interrupted_goes_on_in_the_next_run(
    hub: HubServer, machine: Machine, number: signal.Signals
) -> None:
    hub.hold[WEIGHTS] = SENT
    process = machine.start("fetch", TARGET, "--drafter", "none")
    assert hub.held.wait(60)
    parts = machine.home / "hub"
    while not any(file.stat().st_size for file in parts.rglob("*.incomplete")):
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate()
    if number == signal.SIGINT:
        assert (process.returncode, err.splitlines()[-1]) == (130, "gemma-mtp: interrupted")
        assert "Traceback" not in err
    (held,) = parts.rglob("*.incomplete")
    kept = held.stat().st_size
    assert 0 < kept <= SENT
    status, out, _ = machine.fetch(TARGET, "--offline")
    assert (status, "is not in" in out or "is incomplete" in out) == (1, True)
    hub.hold.clear()
    status, _, err = machine.fetch(TARGET, "--drafter", "none")
    assert status == 0, err
    data = hub.repos[TARGET].files("main")[WEIGHTS]
    last = hub.downloads(WEIGHTS)[-1]
    assert (last.range, last.sent) == (f"bytes={kept}-", len(data) - kept)
    commit = hub.repos[TARGET].branches["main"]
    assert (machine.snapshot(TARGET, commit) / WEIGHTS).read_bytes() == data


@pytest.mark.slow
def test_parts_that_do_not_fit_together_are_refused(hub: HubServer, machine: Machine) -> None:
    hub.hold[WEIGHTS] = SENT
    process = machine.start("fetch", TARGET, "--drafter", "none")
    assert hub.held.wait(60)
    process.kill()
    process.communicate()
    (held,) = (machine.home / "hub").rglob("*.incomplete")
    held.write_bytes(b"rubbish" * 10_000)
    hub.hold.clear()
    status, _, err = machine.fetch(TARGET, "--drafter", "none")
    assert status == 2
    assert "does not have the SHA-256" in err
    assert not held.exists()
    assert machine.fetch(TARGET, "--drafter", "none")[0] == 0


@pytest.mark.slow
def test_a_revision_is_pinned(hub: HubServer, machine: Machine, pairs: dict[str, Path]) -> None:
    repo = hub.repos[TARGET]
    old = repo.branches["main"]
    new = repo.commit({**repo.commits[old], "generation_config.json": b'{"top_k": 3}'})
    assert new != old
    status, out, err = machine.fetch(TARGET, "--revision", old, "--drafter", "none")
    assert status == 0, err
    assert f"commit {old} " in out
    assert f"model:={TARGET}@{old}" in err
    find = (
        "from gemma_mtp_ros.engine.checkpoint import find_folder; print(find_folder({!r}, 'model'))"
    )
    pinned = find.format(f"{TARGET}@{old}")
    assert machine.python(pinned, HF_HUB_OFFLINE="1") == str(machine.snapshot(TARGET, old))
    # main moved on: it is another commit, and the pinned one stays.
    status, out, _ = machine.fetch(TARGET, "--drafter", "none")
    assert (status, f"commit {new} " in out) == (0, True)
    assert machine.python(find.format(TARGET)) == str(machine.snapshot(TARGET, new))
    assert machine.python(pinned) == str(machine.snapshot(TARGET, old))
    # The weights are the same file: fetched once.
    assert len(hub.downloads(WEIGHTS)) == 1


@pytest.mark.slow
def test_offline_only_says_what_is_there(hub: HubServer, machine: Machine) -> None:
    status, out, _ = machine.fetch("E2B", "--offline")
    assert status == 1
    assert out.count("is not in") == 2
    assert machine.fetch("E2B")[0] == 0
    seen = len(hub.requests)
    status, out, err = machine.fetch("E2B", HF_HUB_OFFLINE="1")
    assert (status, out.count("is complete in")) == (0, 2)
    assert err == "HF_HUB_OFFLINE is set, so nothing is downloaded\n"
    commit = hub.repos[TARGET].branches["main"]
    weights = machine.snapshot(TARGET, commit) / WEIGHTS
    blob = weights.resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    status, out, _ = machine.fetch("E2B", "--offline")
    assert (status, f"{weights} is cut short or damaged" in out) == (1, True)
    weights.unlink()
    status, out, _ = machine.fetch("E2B", "--offline")
    assert (status, f"lacks {WEIGHTS}" in out) == (1, True)
    assert len(hub.requests) == seen


def test_a_drafter_of_another_target_is_refused_before_the_weights_come(
    hub: HubServer, machine: Machine, pairs: dict[str, Path]
) -> None:
    hub.add("someone/drafter", pairs["other"])
    status, out, err = machine.fetch("E2B", "--drafter", "someone/drafter")
    assert (status, out) == (2, "")
    assert "drafter someone/drafter was made for a target with hidden size 64" in err
    assert hub.downloads(WEIGHTS) == []
    status, _, err = machine.fetch("E2B", "--drafter", TARGET)
    assert (status, "model_type 'gemma4_text'" in err) == (2, True)


@pytest.mark.slow
def test_sharded_weights_are_those_of_the_index(
    hub: HubServer, machine: Machine, tmp_path: Path
) -> None:
    folder = tiny.save_target(tmp_path / "sharded", shard="100KB")
    shards = {file.name for file in folder.glob("model-*.safetensors")}
    assert len(shards) > 1
    hub.add("someone/sharded", folder, {"consolidated.safetensors": b"x" * 1000})
    status, _, err = machine.fetch("someone/sharded")
    assert status == 0, err
    commit = hub.repos["someone/sharded"].branches["main"]
    got = names(machine.snapshot("someone/sharded", commit))
    assert {name for name in got if name.endswith(".safetensors")} == shards


@pytest.mark.slow
def test_a_token_goes_to_the_hub_and_to_nobody_else(hub: HubServer, machine: Machine) -> None:
    hub.repos[TARGET].gated = True
    hub.repos[TARGET].token = "hf_granted"
    status, _, err = machine.fetch("E2B")
    assert status == 2
    assert f"access to {TARGET} is granted by its owner only, and no token is set" in err
    assert f"{hub.url}/{TARGET}" in err
    assert "HF_TOKEN" in err
    status, _, err = machine.fetch("E2B", HF_TOKEN="hf_other")
    assert (status, "the token in use does not have it" in err) == (2, True)
    status, _, err = machine.fetch("E2B", HF_TOKEN="hf_granted")
    assert status == 0, err
    large = [r for r in hub.requests if r.path.startswith("/large/")]
    assert {r.host for r in large} == {"localhost"}
    assert {r.token for r in large} == {""}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["7B"], ["'7B'", "E2B, E4B, 12B, 26B-A4B, 31B", "OWNER/NAME"]),
        (["google/no-such"], ["has no repository google/no-such", "hf auth login", "HF_TOKEN"]),
        (["goo gle/x!"], ["nor a repository"]),
        (["../x", "--offline"], ["nor a repository"]),
        (["E2B", "--drafter", "E2B", "--offline"], ["--drafter 'E2B' is no repository"]),
        (["E2B", "--revision", "v9"], [f"{TARGET} has no revision v9", "/commits/main"]),
        (["a/b", "--drafter-revision", "v1"], ["--drafter-revision v1", "--drafter"]),
        (["someone/gguf"], ["someone/gguf has no config.json"]),
        (["someone/pickled"], ["has no model.safetensors", "it holds .bin, .gguf", "unquantised"]),
        (["someone/huge"], ["1000000.0 GB", "free some", "HF_HOME"]),
    ],
)
def test_what_cannot_be_had_gets_one_sentence(
    hub: HubServer,
    machine: Machine,
    pairs: dict[str, Path],
    arguments: list[str],
    words: list[str],
) -> None:
    hub.add("someone/gguf", pairs["target"]).commit({"gemma.gguf": b"g"})
    config = (pairs["target"] / "config.json").read_bytes()
    hub.add("someone/pickled", pairs["target"]).commit(
        {"config.json": config, "pytorch_model.bin": b"b", "gemma.gguf": b"g"}
    )
    hub.add("someone/huge", pairs["target"]).claimed = {WEIGHTS: 10**15}
    status, out, err = machine.fetch(*arguments)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("gemma-mtp: ")
    for word in words:
        assert word in err.splitlines()[-1]


@pytest.mark.parametrize(("answer", "word"), [(503, "answers 503"), (429, "asked too often")])
def test_a_hub_that_is_unwell_gets_one_sentence(
    hub: HubServer, machine: Machine, answer: int, word: str
) -> None:
    hub.status = answer
    status, _, err = machine.fetch("E2B")
    assert (status, word in err) == (2, True)


def test_no_network_gets_one_sentence(hub: HubServer, machine: Machine) -> None:
    status, _, err = machine.fetch("E2B", HF_ENDPOINT="http://127.0.0.1:9")
    assert status == 2
    assert "http://127.0.0.1:9 cannot be reached (" in err
    assert "HF_ENDPOINT" in err


@pytest.mark.parametrize(
    ("name", "value"), [("HTTPS_PROXY", "carrier://pigeon"), ("HF_TOKEN", "hf_\u00e9")]
)
def test_settings_that_cannot_be_used_get_one_sentence(
    hub: HubServer, machine: Machine, name: str, value: str
) -> None:
    status, _, err = machine.fetch("E2B", **{"NO_PROXY": "localhost", name: value})
    assert status == 2
    assert "Traceback" not in err
    assert name in err.splitlines()[-1]


@pytest.mark.slow
def test_a_full_disk_gets_one_sentence_and_the_rerun_goes_on(
    hub: HubServer, machine: Machine, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        # The room is there when it is looked for, and gone when the last megabytes come.
        hub.hold[WEIGHTS] = SENT
        process = machine.start("fetch", TARGET, "--drafter", "none", HF_HOME=str(disk))
        assert hub.held.wait(60)
        while sum(file.stat().st_size for file in disk.rglob("*.incomplete")) < 20_000_000:
            assert process.poll() is None
        filler = disk / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - 2**20)
        hub.cuts[WEIGHTS] = []
        hub.hold.clear()
        hub.release.set()
        _, err = process.communicate()
        assert process.returncode == 2
        assert f"the disk of {disk / 'hub'} is full" in err
        assert "Traceback" not in err
        filler.unlink()
        status, _, err = machine.fetch(TARGET, "--drafter", "none", HF_HOME=str(disk))
        assert status == 0, err
        assert hub.downloads(WEIGHTS)[-1].range
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_cache_that_cannot_be_written_gets_one_sentence(
    hub: HubServer, machine: Machine, tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.write_text("")
    status, _, err = machine.fetch("E2B", HF_HOME=str(place))
    assert status == 2
    assert err.splitlines()[-1].startswith("gemma-mtp: ")
