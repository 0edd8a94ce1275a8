# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: find one, check it, and hand out its tensors one by one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from transformers import AutoConfig

from ..api import CheckpointError, ErrorCode

Progress = Callable[[str, float], None]

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def find_folder(name: str, role: str) -> Path:
    """Resolve a folder or a downloaded repository name to a folder with ``config.json``.

    Nothing is downloaded here: a name such as ``google/gemma-4-E2B-it`` is looked up in the
    local Hugging Face cache only.

    :raises CheckpointError: when there is no such folder or no config in it.
    """
    if not name:
        raise CheckpointError(
            f"no {role} is set; give a Hugging Face folder in the parameter '{role}'"
        )
    folder = Path(name).expanduser()
    if not folder.exists() and not folder.is_absolute() and name.count("/") == 1:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError) as error:
            raise CheckpointError(
                f"{role} {name!r} is neither a folder nor in the local Hugging Face cache; "
                f"download it (hf download {name}) or give the path of its folder"
            ) from error
    if not folder.is_dir():
        raise CheckpointError(
            f"{role} folder {name!r} does not exist; give the path of a Hugging Face folder "
            "with config.json and model.safetensors"
        )
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{role} folder {name!r} has no config.json; give the folder that holds the whole "
            "checkpoint"
        )
    return folder


def read_config(folder: Path, allowed: set[str], role: str) -> Any:
    """Parse ``config.json`` with transformers and check the model type.

    :raises CheckpointError: when it cannot be read or is not a Gemma 4 ``role``.
    """
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'} cannot be read ({error}); download the checkpoint again"
        ) from error
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if kind not in allowed:
        raise CheckpointError(
            f"{role} {folder} has model_type {kind!r}, not one of {', '.join(sorted(allowed))}; "
            f"give a Gemma 4 {role} checkpoint"
        )
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is not a valid {kind} config "
            f"({' '.join(str(error).split())[:300]}); download the checkpoint again"
        ) from error


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies and how large it is."""

    file: Path
    key: str
    shape: tuple[int, ...]


class Weights:
    """The tensors of a checkpoint, read one at a time.

    Keys are those of the text model without the prefix (``layers.0.mlp.up_proj.weight``), whether
    the file holds the text model alone or inside a multimodal one; other towers are never read.

    :raises CheckpointError: when a file is missing, cut short or damaged.
    """

    PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")

    def __init__(self, folder: Path, role: str) -> None:
        self.folder = folder
        self.role = role
        self.entries: dict[str, TensorEntry] = {}
        for file in self._files():
            try:
                with safetensors.safe_open(file, framework="pt") as handle:
                    for key in handle.keys():  # noqa: SIM118 (not a dict)
                        shape = tuple(handle.get_slice(key).get_shape())
                        self.entries[key] = TensorEntry(file, key, shape)
            except (OSError, safetensors.SafetensorError) as error:
                raise CheckpointError(
                    f"{file} is cut short or damaged ({error}); download the checkpoint again"
                ) from error
        self.prefix = next(
            (p for p in self.PREFIXES if p + "layers.0.self_attn.q_proj.weight" in self.entries),
            None,
        )
        if self.prefix is None:
            raise CheckpointError(
                f"{role} {folder} holds no Gemma 4 text layers (layers.0.self_attn.q_proj.weight); "
                "give an unquantised Hugging Face checkpoint"
            )
        self.total = 1
        self.done = 0
        self.progress: Progress = lambda stage, fraction: None

    def _files(self) -> list[Path]:
        index = self.folder / INDEX
        if index.is_file():
            try:
                names = sorted(
                    set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
                )
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise CheckpointError(
                    f"{index} cannot be read ({error}); download the checkpoint again"
                ) from error
        else:
            names = [SINGLE]
        files = [self.folder / name for name in names]
        for file in files:
            if not file.is_file():
                raise CheckpointError(
                    f"{self.role} {self.folder} lacks {file.name}; download the checkpoint again"
                )
        return files

    def _find(self, name: str) -> TensorEntry | None:
        return self.entries.get(f"{self.prefix}{name}") or self.entries.get(name)

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return self._find(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the header."""
        entry = self._find(name)
        if entry is None:
            raise CheckpointError(
                f"{self.role} {self.folder} lacks the tensor {name}; download the checkpoint again"
            )
        return entry.shape

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor in the dtype of the file, checked for its shape and for NaN and infinity.

        :raises CheckpointError: when it is missing, misshapen or not finite.
        """
        entry = self._find(name)
        found = self.shape(name)
        assert entry is not None
        if found != shape:
            raise CheckpointError(
                f"tensor {name} of {self.role} {self.folder} has shape {found}, but config.json "
                f"implies {shape}; config and weights do not belong together"
            )
        try:
            with safetensors.safe_open(entry.file, framework="pt") as handle:
                tensor: torch.Tensor = handle.get_tensor(entry.key)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(
                f"{entry.file} is cut short or damaged ({error}); download the checkpoint again"
            ) from error
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"tensor {name} of {self.role} {self.folder} holds NaN or infinity; "
                "download the checkpoint again"
            )
        self.done += 1
        self.progress(self.role, min(1.0, self.done / self.total))
        return tensor


def check_memory(needed: int, available: int | None, reserve: int) -> None:
    """Refuse a model that cannot fit, before anything is loaded. All in bytes.

    :raises CheckpointError: with code OUT_OF_MEMORY and the numbers.
    """
    if available is None or needed + reserve <= available:
        return
    mib = 1024 * 1024
    raise CheckpointError(
        f"the model needs {math.ceil(needed / mib)} MiB and {reserve // mib} MiB are kept for "
        "the rest "
        f"of the robot, but {available // mib} MiB are available; use a smaller checkpoint, "
        "engine.weights: bfloat16, a smaller engine.max_context, or free memory",
        ErrorCode.OUT_OF_MEMORY,
    )


def available_memory() -> int | None:
    """MemAvailable in bytes, or None where the kernel does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
