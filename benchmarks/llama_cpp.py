# Copyright 2026 The gemma_mtp_ros Authors
# SPDX-License-Identifier: Apache-2.0
"""The same weights in llama.cpp and in this engine, in turns, on the CPU.

Needs a checkout of llama.cpp that knows gemma4 and gemma4-assistant, built with the targets
llama-bench, llama-quantize and llama-speculative-simple, and ``pip install sentencepiece`` for its
converter. The pairs are those of ``decode``: 404M random parameters, where memory traffic decides,
and the embedded pair. Their tokenizer is padded to the vocabulary, which the converter asks for.

llama.cpp's q8_0 and this engine's int8 are the same grid: groups of 32, a half-precision scale.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from gemma_mtp_ros.api import EngineConfig, Finish, Message, Piece, Request, SamplingParams
from gemma_mtp_ros.demo import DRAFTER_DIR, TARGET_DIR

from . import wide
from .common import MORE, Row, parser, report

DRAFTS = 4
ROWS = (1, DRAFTS + 1)
ANSWER = 64
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
PRECISIONS = (("bf16", "bfloat16"), ("int8", "int8"))
DECODED = re.compile(r"decoded +(\d+) tokens in +([\d.]+) seconds")
DRAFTED = re.compile(r"n_drafted = +(\d+)")
ATTEMPTS = 5
"""Now and then it ends before all of its log is written."""


class Llama(NamedTuple):
    """A checkout of llama.cpp and its programs."""

    source: Path
    programs: Path

    def run(self, name: str, *arguments: str) -> str:
        """Run a program to its end; what it wrote, errors after output.

        :raises SystemExit: when it fails, with the end of what it wrote.
        """
        done = subprocess.run([self.programs / name, *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed ({done.returncode}): {done.stderr[-600:]}")
        return done.stdout + done.stderr

    def convert(self, folder: Path, file: Path) -> Path:
        """A Hugging Face folder as GGUF in bfloat16, by llama.cpp's own converter.

        :raises SystemExit: when it fails, with the end of what it wrote.
        """
        for name in TOKENIZER:
            if (TARGET_DIR / name).is_file():
                shutil.copy(TARGET_DIR / name, folder / name)
        pad_tokenizer(folder)
        done = subprocess.run(
            [
                *(sys.executable, str(self.source / "convert_hf_to_gguf.py"), str(folder)),
                *("--outtype", "bf16", "--outfile", str(file)),
            ],
            env=os.environ | {"PYTHONPATH": str(self.source / "gguf-py")},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"convert_hf_to_gguf.py failed: {done.stderr[-600:]}")
        return file

    def passes_ms(self, model: Path, threads: int) -> dict[int, list[float]]:
        """Times of passes of 1 and 5 rows behind 200 cached ones.

        Only the last row's logits are computed, where this engine computes those of all.
        """
        rows = ",".join(map(str, ROWS))
        said = self.run(
            *("llama-bench", "-m", str(model), "-t", str(threads), "-p", rows, "-n", "0"),
            *("-d", str(wide.CACHE), "-r", "5", "-o", "json"),
        )
        found = json.loads(said[said.index("[") : said.rindex("]") + 1])
        return {run["n_prompt"]: [ns / 1e6 for ns in run["samples_ns"]] for run in found}

    def drafted(
        self, target: Path, drafter: Path, prompt: Path, threads: int, tokens: int
    ) -> tuple[float, float, str]:
        """Answer greedily with drafts of 4: tokens/s, seconds a round, what it wrote.

        One thread for the drafter, and none that spin: with two of each it was three times slower.
        """
        for _ in range(ATTEMPTS):
            said = self.run(
                *("llama-speculative-simple", "-m", str(target), "-md", str(drafter)),
                *("--spec-type", "draft-mtp", "--spec-draft-n-max", str(DRAFTS)),
                *("-t", str(threads), "--spec-draft-threads", "1", "--poll", "0"),
                *("-f", str(prompt), "-n", str(tokens)),
                *("--temp", "0", "--top-k", "1"),
            )
            match, drafts = DECODED.search(said), DRAFTED.search(said)
            if match is not None and drafts is not None:
                break
        else:
            sys.exit(f"llama-speculative-simple says no speed: {said[-600:]}")
        seconds = float(match[2])
        rounds = max(1.0, int(drafts[1]) / DRAFTS)
        return int(match[1]) / seconds, seconds / rounds, said


def pad_tokenizer(folder: Path) -> None:
    """Name every id of the vocabulary that the tokenizer leaves unnamed."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    named = tokenizer["model"]["vocab"]
    taken = set(named.values()) | {added["id"] for added in tokenizer["added_tokens"]}
    named.update({f"<unused{i}>": i for i in range(size) if i not in taken})
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def ours_passes_ms(engine: Any) -> dict[int, float]:
    """Median times of passes of 1 and 5 rows at the same place."""
    from gemma_mtp_ros.engine.costs import measure

    costs = measure(engine.target, None, lambda: None, wide.CACHE, 5)
    return {n: costs.passes[n - 1] * 1e3 for n in ROWS}


def wide_rows(llama: Llama, threads: int, repeats: int, folder: Path, small: bool) -> list[Row]:
    """Passes of one and five rows, and rounds of four drafts, of the large model."""
    pair = wide.make_pair(folder / "wide", small)
    engines = {name: wide.load(pair, weights, threads) for name, weights in PRECISIONS}
    prompt = wide.prompt_of(engines["bf16"], wide.CACHE)
    text = folder / "prompt.txt"
    text.write_text(prompt, encoding="utf-8")
    models = {"bf16": llama.convert(pair[0], folder / "wide.gguf")}
    drafter = llama.convert(pair[1], folder / "wide-drafter.gguf")
    models["int8"] = folder / "wide-q8.gguf"
    llama.run("llama-quantize", str(models["bf16"]), str(models["int8"]), "q8_0")
    rows = []
    for name, _ in PRECISIONS:
        ms: dict[tuple[str, int], list[float]] = defaultdict(list)
        round_ms: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats):
            for n, times in llama.passes_ms(models[name], threads).items():
                ms["llama", n] += times
            for n, median in ours_passes_ms(engines[name]).items():
                ms["ours", n].append(median)
            _, finish = wide.answer(engines[name], prompt, DRAFTS, ANSWER)
            round_ms["ours"].append(finish.stats.decode_s / finish.stats.rounds * 1e3)
            _, a_round, _ = llama.drafted(models[name], drafter, text, threads, ANSWER)
            round_ms["llama"].append(a_round * 1e3)
        found = {key: statistics.median(times) for key, times in ms.items()}
        rounds = {key: statistics.median(times) for key, times in round_ms.items()}
        for who in ("llama", "ours"):
            for n in ROWS:
                rows.append(Row(f"llama.wide_{name}_{who}_{n}", found[who, n], "ms"))
            v5 = found[who, ROWS[1]] / found[who, 1]
            rows.append(Row(f"llama.wide_{name}_{who}_v5", v5, "ratio"))
            rows.append(Row(f"llama.wide_{name}_{who}_round", rounds[who], "ms"))
        for n in ROWS:
            ratio = found["llama", n] / found["ours", n]
            goal = (MORE, 1.0) if n == ROWS[1] else None
            rows.append(Row(f"llama.wide_{name}_row{n}", ratio, "ratio", goal))
        ratio = rounds["llama"] / rounds["ours"]
        rows.append(Row(f"llama.wide_{name}_drafts{DRAFTS}", ratio, "ratio", (MORE, 1.0)))
    return rows


def pair_rows(llama: Llama, repeats: int, prompts: int, folder: Path) -> list[Row]:
    """Drafted answers of the embedded pair, one thread, which suits both best."""
    from gemma_mtp_ros.demo.corpus import held_out
    from gemma_mtp_ros.engine.decode import Engine, RoundControl

    files = []
    for name, source in (("target", TARGET_DIR), ("drafter", DRAFTER_DIR)):
        shutil.copytree(source, folder / name)
        files.append(llama.convert(folder / name, folder / f"{name}.gguf"))
    config = EngineConfig(
        model=str(TARGET_DIR),
        drafter=str(DRAFTER_DIR),
        device="cpu",
        weights="bfloat16",
        threads=1,
        max_context=1024,
    )
    engine = Engine.load(config, lambda stage, fraction: None)
    control = RoundControl(draft_cap=DRAFTS)
    rates: dict[str, list[float]] = defaultdict(list)
    same = 0
    text = folder / "prompt.txt"
    for example in held_out(prompts):
        messages = (Message(role="user", content=example.instruction),)
        ids = engine.text.encode(messages, None)
        # llama.cpp puts the first token, which begins every text, there itself.
        prompt = engine.text.tokenizer.decode(ids[1:])
        text.write_text(prompt, encoding="utf-8")
        for repeat in range(repeats):
            request = Request(
                id="llama",
                messages=messages,
                sampling=SamplingParams(temperature=0.0, max_new_tokens=128),
            )
            answer = ""
            for event in engine.generate(request, lambda: control):
                if isinstance(event, Piece):
                    answer += event.text
                elif isinstance(event, Finish):
                    rates["ours"].append(event.stats.tokens_per_second)
            rate, _, said = llama.drafted(files[0], files[1], text, 1, 128)
            rates["llama"].append(rate)
            same += repeat == 0 and answer.strip() in said
    found = {who: statistics.median(values) for who, values in rates.items()}
    return [
        Row("llama.pair_mtp4_llama", found["llama"], "tokens/s"),
        Row("llama.pair_mtp4_ours", found["ours"], "tokens/s"),
        Row("llama.pair_mtp4", found["ours"] / found["llama"], "ratio"),
        Row("llama.pair_same_text", same / prompts, "share"),
    ]


def main() -> None:
    """Measure and report."""
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--llama", type=Path, required=True, help="checkout of llama.cpp")
    options.add_argument("--programs", type=Path, help="default: build/bin of the checkout")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--prompts", type=int, default=6)
    options.add_argument("--small", action="store_true", help="a tiny model, to try the script")
    chosen = options.parse_args()
    llama = Llama(chosen.llama, chosen.programs or chosen.llama / "build" / "bin")
    for needed in (llama.source / "convert_hf_to_gguf.py", llama.programs / "llama-bench"):
        if not needed.is_file():
            sys.exit(f"{needed} is missing; give --llama the folder of a built llama.cpp")

    import torch
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with Console(stderr=True).status("measuring") as status, tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        with torch.inference_mode():
            status.update("a large model in llama.cpp and here")
            rows = wide_rows(llama, chosen.threads, chosen.repeats, folder, chosen.small)
            status.update("the embedded pair in llama.cpp and here")
            rows += pair_rows(llama, chosen.repeats, chosen.prompts, folder)
    report(
        "Beside llama.cpp (ratios: above 1, this engine is faster)",
        rows,
        chosen.threads,
        chosen.json,
        notes=[
            "A row is of a target pass behind 200 cached positions; llama.cpp computes the last "
            "row's logits alone. A round is four drafts and a pass of five rows.",
            "The embedded pair: one thread, drafts of 4, decoding alone.",
        ],
    )


if __name__ == "__main__":
    main()
