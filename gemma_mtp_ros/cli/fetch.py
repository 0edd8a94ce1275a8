# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""``gemma-mtp fetch``: a target and its drafter into the Hugging Face cache, checked as a pair."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..api import CheckpointError, RequestError
from ..models import NO_DRAFTER, RELEASED, drafter_of, released_pair
from . import hub

NO_SUCH = 1
"""Exit status where --offline finds something missing."""


@dataclass(frozen=True)
class Wanted:
    """A repository that was asked for. ``pinned``: its revision was named."""

    role: str
    name: str
    revision: str
    pinned: bool

    @property
    def engine_name(self) -> str:
        """What the parameters model and drafter call it."""
        return f"{self.name}@{self.revision}" if self.pinned else self.name


def run(options: argparse.Namespace) -> int:
    """Fetch, or with --offline say what is there; return the exit status.

    Raises:
        GemmaMtpError: what is asked for cannot be had; says what to change.
    """
    wanted = choose(options)
    console = Console(stderr=True, markup=False)
    if options.offline:
        return tell_cached(wanted)
    if hub.is_offline():
        console.print("HF_HUB_OFFLINE is set, so nothing is downloaded", highlight=False)
        return tell_cached(wanted)
    fetch(wanted, console)
    return 0


def choose(options: argparse.Namespace) -> list[Wanted]:
    """The repositories that the options name: the target first.

    Raises:
        RequestError: the name is neither a size nor a repository.
    """
    name, drafter = options.name, options.drafter
    pair = released_pair(name)
    if pair is None and not hub.is_name(name):
        raise RequestError(
            f"{name!r} is neither a released size ({', '.join(RELEASED)}) nor a repository "
            "(OWNER/NAME); give one of them"
        )
    target, known = pair or (name, drafter_of(name) or NO_DRAFTER)
    drafter = drafter or known
    if drafter != NO_DRAFTER and not hub.is_name(drafter):
        raise RequestError(f"--drafter {drafter!r} is no repository; give OWNER/NAME, or none")
    wanted = [Wanted("model", target, options.revision or "main", bool(options.revision))]
    if drafter != NO_DRAFTER:
        revision = options.drafter_revision
        wanted.append(Wanted("drafter", drafter, revision or "main", bool(revision)))
    elif options.drafter_revision:
        raise RequestError(
            f"--drafter-revision {options.drafter_revision} is given without a drafter; name one "
            "with --drafter"
        )
    return wanted


def fetch(wanted: list[Wanted], console: Console) -> None:
    """Bring all of it into the cache.

    Raises:
        GemmaMtpError: it cannot be had, or target and drafter do not belong together.
    """
    repositories = [hub.look_up(each.name, each.revision) for each in wanted]
    for repository in repositories:
        console.print(licence(repository), highlight=False, soft_wrap=True)
    for repository in repositories:
        if hub.CONFIG not in repository.files:
            raise hub.FetchError(
                f"{repository.name} has no {hub.CONFIG} at {repository.commit[:12]}; take a "
                "repository of a Gemma 4 checkpoint, such as google/gemma-4-E2B-it"
            )
    configs = [hub.fetch_file(each, each.files[hub.CONFIG]).parent for each in repositories]
    with console.status("checking the pair") if console.is_terminal else contextlib.nullcontext():
        check_pair(configs, [each.name for each in wanted])
    files = []
    for each, repository in zip(wanted, repositories, strict=True):
        index = repository.files.get(hub.INDEX)
        place = hub.fetch_file(repository, index) if index else None
        names = hub.weight_names(repository, place)
        files += [
            (repository, file) for file in repository.needed(names, target=each.role == "model")
        ]
    total = sum(file.size for _, file in files)
    missing = sum(hub.missing_bytes(repository, file) for repository, file in files)
    hub.check_disk(missing)
    with _progress(console, total) as progress:
        done = 0
        for repository, file in files:
            told = progress(f"{repository.name.split('/')[-1]} {file.name}", done)
            hub.fetch_file(repository, file, told)
            done += file.size
    for each, repository, folder in zip(wanted, repositories, configs, strict=True):
        check_files(folder, each.role)
        hub.remember_revision(repository)
        print(f"{each.role} {each.name} commit {repository.commit} in {folder}", flush=True)
    console.print(_how_to(wanted, missing), highlight=False, soft_wrap=True)


def licence(repository: hub.Repository) -> str:
    """What the model card states, and where to read it."""
    page = hub.page(repository.name)
    if not repository.licence:
        return f"{repository.name}: its model card states no licence; read {page} before you use it"
    link = f" ({repository.licence_link})" if repository.licence_link else ""
    return (
        f"{repository.name}: licence {repository.licence}{link} as its model card states; by "
        f"using the weights you accept it: {page}"
    )


def check_pair(folders: list[Path], names: list[str]) -> None:
    """The engine's own check, over the configs alone.

    Raises:
        CheckpointError: one is no Gemma 4 target or drafter, or they do not belong together.
    """
    from ..engine import spec
    from ..engine.checkpoint import read_config

    target = spec.text_spec(read_config(folders[0], spec.TARGET_TYPES, "model").get_text_config())
    if len(folders) > 1:
        drafter = spec.drafter_spec(read_config(folders[1], spec.DRAFTER_TYPES, "drafter"))
        spec.check_pair(target, drafter, *names)


def check_files(folder: Path, role: str) -> None:
    """Whether the engine finds its files whole: weights by their headers, a target's tokenizer.

    Raises:
        CheckpointError: what is missing or cut short.
    """
    from ..engine.checkpoint import Weights

    Weights(folder, role)
    if role == "model" and not (folder / "tokenizer.json").is_file():
        raise CheckpointError(
            f"model folder {folder} has no tokenizer.json; download the checkpoint again"
        )


def tell_cached(wanted: list[Wanted]) -> int:
    """Say what is in the cache and whether it is complete; ask nobody."""
    whole: list[Path] = []
    for each in wanted:
        commit = hub.local_commit(each.name, each.revision)
        if commit is None:
            print(
                f"{each.role} {each.name} at {each.revision} is not in {hub.cache_folder()}; fetch "
                "it while online"
            )
            continue
        folder = hub.storage(each.name) / "snapshots" / commit
        try:
            check_pair([folder], []) if each.role == "model" else None
            check_files(folder, each.role)
        except CheckpointError as error:
            print(f"{each.role} {each.name} commit {commit} is incomplete: {error}")
            continue
        print(f"{each.role} {each.name} commit {commit} is complete in {folder}")
        whole.append(folder)
    if len(whole) < len(wanted):
        return NO_SUCH
    check_pair(whole, [each.name for each in wanted])
    return 0


def _how_to(wanted: list[Wanted], missing: int) -> str:
    said = f"{hub.size_text(missing)} fetched" if missing else "all was there already"
    names = [each.engine_name for each in wanted]
    parameters = " ".join(
        f"{role}:={name}" for role, name in zip(("model", "drafter"), names, strict=False)
    )
    return f"{said}; to run: ros2 launch gemma_mtp_ros node.launch.py {parameters}"


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Callable[[str, int], hub.Told]]:
    """Show how far it is on a terminal, and nothing elsewhere.

    Gives a function that begins a file after so many bytes, and returns one that counts its bytes.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)

        def begin(description: str, completed: int) -> hub.Told:
            bar.update(task, description=description, completed=completed)
            return lambda count: bar.advance(task, count)

        yield begin
