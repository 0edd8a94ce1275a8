# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: find one, check it, and hand out its tensors part by part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import safetensors
import torch
from transformers import AutoConfig

from ..api import CheckpointError, ErrorCode
from ..models import released_pair, split_revision
from .tensor_file import (
    DTYPES,
    RowFile,
    TensorEntry,
    drop_cache,
    read_range,
    tensor_entries,
)

Progress = Callable[[str, float], None]

SIZES = {1536: "E2B", 2560: "E4B", 3840: "12B", 2816: "26B-A4B", 5376: "31B"}
"""Released targets by hidden size."""

PIECE_VALUES = 16 * 2**20
"""Values of a large tensor that are read and quantised at a time."""

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def find_folder(name: str, role: str) -> Path:
    """Resolve a folder or a downloaded repository name to a folder with ``config.json``.

    Nothing is downloaded here: a name such as ``google/gemma-4-E2B-it`` is looked up in the
    local Hugging Face cache only, at the revision after an ``@`` or else of its main branch.

    :raises CheckpointError: when there is no such folder or no config in it.
    """
    if not name:
        raise CheckpointError(
            f"no {role} is set; give a Hugging Face folder in the parameter '{role}'"
        )
    folder = Path(name).expanduser()
    repository, revision = split_revision(name)
    if not folder.exists() and not folder.is_absolute() and repository.count("/") == 1:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            # A repository holds more than is read here; what is read is looked for one by one.
            folder = Path(
                snapshot_download(
                    repository,
                    revision=revision,
                    local_files_only=True,
                    allow_patterns=["config.json"],
                )
            )
        except (LocalEntryNotFoundError, HFValidationError) as error:
            pinned = f" --revision {revision}" if revision else ""
            raise CheckpointError(
                f"{role} {name!r} is neither a folder nor in the local Hugging Face cache; "
                f"download it (gemma-mtp fetch {repository}{pinned}) or give the path of its folder"
            ) from error
    if folder.suffix == ".gguf" or (
        folder.is_dir() and not (folder / "config.json").is_file() and any(folder.glob("*.gguf"))
    ):
        raise CheckpointError(
            f"{role} {name!r} is a GGUF file, quantised for llama.cpp; give the folder of the "
            "unquantised Hugging Face checkpoint (such as google/gemma-4-E2B-it)"
        )
    if not folder.is_dir():
        if pair := released_pair(name):
            raise CheckpointError(
                f"{role} {name!r} is a size and no folder; give the name of a repository that was "
                f"fetched (gemma-mtp fetch {name}): {pair[0]}, or its drafter {pair[1]}"
            )
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
    refuse_quantised(raw, folder, role)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is not a valid {kind} config "
            f"({' '.join(str(error).split())[:300]}); download the checkpoint again"
        ) from error
    # The outermost config has the say on this in transformers.
    config.get_text_config().tie_word_embeddings = config.tie_word_embeddings
    return config


def refuse_quantised(raw: dict[str, Any], folder: Path, role: str) -> None:
    """Refuse weights that another tool has quantised: this engine quantises by itself.

    :param raw: the parsed ``config.json``.
    :raises CheckpointError: naming the unquantised checkpoint, where its sizes tell which.
    """
    text = raw.get("text_config") or {}
    found = raw.get("quantization_config") or text.get("quantization_config")
    if not found:
        return
    method = found.get("quant_method", "unknown method") if isinstance(found, dict) else found
    hidden = raw.get("backbone_hidden_size", text.get("hidden_size", raw.get("hidden_size")))
    size = SIZES.get(hidden) if isinstance(hidden, int) else None
    suffix = "-assistant" if role == "drafter" else ""
    known = f"google/gemma-4-{size}-it{suffix}" if size else "the one it was made from"
    raise CheckpointError(
        f"{role} {folder} is quantised already ({method}); give the unquantised checkpoint "
        f"({known}) and set engine.weights to the precision wanted"
    )


class Weights:
    """The tensors of a checkpoint, read one at a time.

    Keys are those of the text model without the prefix (``layers.0.mlp.up_proj.weight``), whether
    the file holds the text model alone or inside a multimodal one; other towers are never read.

    :raises CheckpointError: when a file is missing, cut short or damaged.
    """

    PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")
    HEADS = ("lm_head.", "pre_projection.", "post_projection.", "masked_embedding.")
    """Parts of a target or a drafter that stand beside the text model."""

    def __init__(self, folder: Path, role: str) -> None:
        self.folder = folder
        self.role = role
        self.entries: dict[str, TensorEntry] = {}
        for file in self._files():
            try:
                self.entries.update({entry.key: entry for entry in tensor_entries(file)})
            except (OSError, safetensors.SafetensorError) as error:
                raise self._damaged(file, error) from error
        self.prefix = next(
            (p for p in self.PREFIXES if p + "layers.0.self_attn.q_proj.weight" in self.entries),
            None,
        )
        if self.prefix is None:
            raise CheckpointError(
                f"{role} {folder} holds no Gemma 4 text layers (layers.0.self_attn.q_proj.weight); "
                "give an unquantised Hugging Face checkpoint"
            )
        self.total_bytes_text = sum(entry.bytes for entry in self.text_entries())
        """Bytes that the text model's tensors take in the files."""
        self.done_bytes = 0
        self.progress: Progress = lambda stage, fraction: None

    def text_entries(self) -> list[TensorEntry]:
        """The tensors of the text model and its heads; no vision, no audio."""
        starts = (self.prefix or "", *self.HEADS)
        return [entry for key, entry in self.entries.items() if key.startswith(starts)]

    def _damaged(self, file: Path, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"{file} is cut short or damaged ({error}); download the checkpoint again"
        )

    def _refuse(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"tensor {name} of {self.role} {self.folder} {what}; download the checkpoint again"
        )

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

    def _entry(self, name: str) -> TensorEntry:
        entry = self._find(name)
        if entry is None:
            raise CheckpointError(
                f"{self.role} {self.folder} lacks the tensor {name}; download the checkpoint again"
            )
        return entry

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        return self._find(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, from the header.

        :raises CheckpointError: when it is missing.
        """
        return self._entry(name).shape

    def _checked(self, name: str, shape: tuple[int, ...] | None) -> TensorEntry:
        """What can be known before reading: the tensor is there, and of this shape and kind."""
        entry = self._entry(name)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(
                f"tensor {name} of {self.role} {self.folder} has shape {entry.shape}, but "
                f"config.json implies {shape}; config and weights do not belong together"
            )
        if entry.dtype is None:
            raise CheckpointError(
                f"tensor {name} of {self.role} {self.folder} is stored as {entry.stored}, a "
                f"quantised form; give the unquantised checkpoint ({', '.join(DTYPES)})"
            )
        return entry

    def _tell(self, count: int) -> None:
        self.done_bytes += count
        self.progress(self.role, min(1.0, self.done_bytes / max(1, self.total_bytes_text)))

    def _part(
        self, name: str, entry: TensorEntry, skip: int, shape: tuple[int, ...]
    ) -> torch.Tensor:
        try:
            tensor = read_range(entry, skip, shape, self._tell)
        except OSError as error:
            raise self._damaged(entry.file, error) from error
        if tensor is None:
            raise self._refuse(name, "holds NaN or infinity")
        return tensor

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor in the dtype of the file, checked for its shape and for NaN and infinity.

        :raises CheckpointError: when it is missing, misshapen, quantised or not finite.
        """
        return self._part(name, self._checked(name, shape), 0, shape)

    def read_rows(
        self, name: str, begin: int, end: int, shape: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Indices ``begin .. end - 1`` of a tensor's first dimension; only their bytes are read.

        :param shape: of the whole tensor, to be checked.
        :raises CheckpointError: as :meth:`read`.
        :raises IndexError: for a range that the tensor does not have.
        """
        entry = self._checked(name, shape)
        if not 0 <= begin <= end <= entry.shape[0]:
            raise IndexError(
                f"rows {begin} to {end} of {name} were asked for, which has {entry.shape[0]}; "
                "ask for rows within them"
            )
        part = (end - begin, *entry.shape[1:])
        return self._part(name, entry, begin * entry.row_bytes, part)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterator[torch.Tensor]:
        """The rows of a tensor ``shape``, first to last, at most :data:`PIECE_VALUES` at a time.

        :raises CheckpointError: as :meth:`read`.
        """
        rows, width = shape
        step = max(1, PIECE_VALUES // width)
        for begin in range(0, rows, step):
            yield self.read_rows(name, begin, min(begin + step, rows), shape)

    def forget(self) -> None:
        """Let the kernel drop what it still holds of the files in its page cache."""
        for file in {entry.file for entry in self.entries.values()}:
            with file.open("rb") as opened:
                drop_cache(opened.fileno(), 0, file.stat().st_size)

    def rows_on_disk(self, name: str, shape: tuple[int, ...] | None = None) -> RowFile:
        """A table that stays on disk; its rows are checked for NaN and infinity when read.

        :param shape: of the whole table, to be checked.
        :raises CheckpointError: as :meth:`read`.
        """
        entry = self._checked(name, shape)
        try:
            rows = RowFile(entry, lambda what: self._refuse(name, what))
        except OSError as error:
            raise self._damaged(entry.file, error) from error
        self._tell(entry.bytes)
        return rows


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


def available_memory(device: torch.device | None = None) -> int | None:
    """Bytes that can still be had, or None where the kernel does not tell.

    :param device: a GPU with memory of its own is asked for that. One that shares the memory of the
        CPU, as a Jetson's does, would not count what the page cache gives back on demand.
    """
    if device is not None and device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        if not getattr(properties, "is_integrated", False):
            return int(torch.cuda.mem_get_info(device)[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
