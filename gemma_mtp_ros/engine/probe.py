# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""What torch, transformers and the kernels say of themselves, as JSON, for ``gemma-mtp doctor``.

A program of its own, ``python -m gemma_mtp_ros.engine.probe torch|transformers|kernels``: a library
that is built for another machine may end its process.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def of_torch() -> dict[str, Any]:
    """Version, CUDA and GPU. ``error``: why CUDA does not work."""
    import torch

    found: dict[str, Any] = {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "arch_list": [],
        "error": "",
    }
    if torch.version.cuda is None:
        return found
    found["arch_list"] = torch.cuda.get_arch_list()
    try:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        found["device"] = properties.name
        found["capability"] = [properties.major, properties.minor]
        # A product, for an architecture that is listed may still not run.
        ones = torch.ones(16, 16, device="cuda")
        if float((ones @ ones).sum()) != 4096.0:
            found["error"] = "a product of matrices is wrong"
    except Exception as error:  # whatever CUDA says is the finding
        found["error"] = " ".join(str(error).split())[:300]
    return found


def of_transformers() -> dict[str, Any]:
    """Version, once the classes of the engine are there."""
    import transformers
    from transformers import Gemma4AssistantConfig, Gemma4TextConfig, Gemma4UnifiedConfig

    known = [Gemma4AssistantConfig, Gemma4TextConfig, Gemma4UnifiedConfig]
    return {"version": transformers.__version__, "classes": [each.__name__ for each in known]}


def of_kernels() -> dict[str, Any]:
    """The instruction set that they chose, or why they are not used."""
    from . import kernels

    try:
        library = kernels.open_library(kernels.library_file())
    except kernels.KernelsUnusable as error:
        return {"error": str(error)}
    return {"isa": library.gmtp_isa().decode(), "file": str(kernels.library_file())}


PROBES = {"torch": of_torch, "transformers": of_transformers, "kernels": of_kernels}

if __name__ == "__main__":
    try:
        print(json.dumps(PROBES[sys.argv[1]]()))
    except ImportError as missing:
        print(json.dumps({"missing": f"{missing.name or 'a module'}: {missing}"}))
