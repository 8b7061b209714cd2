"""What `bench_engine` asks: prompts of one length, so many at once, by `benchmarks.serve`."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from benchmarks.bench_engine.contenders import SERVED

PIXELS = 448  # side of a picture
SEED = 7
# Both servers send a chunk for each token then. Without it ours keeps tokens that make no text yet,
# such as half of a character, for the next chunk; vLLM sends an empty one.
SHOWN: Mapping[str, object] = {"return_token_ids": True}
_PATIENCE_S = 1800.0
_LEAST_REQUESTS = 2


@dataclass(frozen=True)
class Load:
    """In each turn `at_once` requests of so many tokens, each with so many `pictures`."""

    prompt: int
    output: int
    at_once: int
    pictures: int = 0

    @property
    def name(self) -> str:
        what = f"text {self.prompt}/{self.output}"
        if self.pictures:
            what = f"picture of {PIXELS}², {self.prompt}/{self.output}"
        return f"{what}, {self.at_once} at once"

    def seed(self, turn: int) -> int:
        """Of its prompts: no other load or turn has the same, which caches would hold."""
        return zlib.crc32(f"{SEED} {self.name} {turn}".encode())

    @property
    def requests(self) -> int:
        return max(_LEAST_REQUESTS, self.at_once)


@dataclass(frozen=True)
class Figures:
    """Output tokens/s of all; medians of ms to the first token and for each further one."""

    tokens_s: float
    ttft_ms: float
    tpot_ms: float


LOADS = (
    *(Load(512, 64, at_once) for at_once in (1, 8, 32)),
    *(Load(64, 256, at_once) for at_once in (1, 8, 32)),
    *(Load(32, 64, at_once, pictures=1) for at_once in (1, 4)),
)
QUICK_LOADS = (Load(64, 8, 1), Load(32, 8, 1, pictures=1))


def typical(turns: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    columns = zip(*(astuple(one) for one in turns), strict=True)
    return Figures(*(statistics.median(column) for column in columns))


def measure(url: str, model: Path, load: Load, turn: int, file: Path) -> Figures:
    """Of one turn, whose prompts no cache holds yet; `RuntimeError` if a request fails."""
    dataset = "random-mm" if load.pictures else "random"
    command = [
        sys.executable, "-m", "benchmarks.serve", "--base-url", url, "--model", SERVED,
        "--tokenizer", str(model), "--dataset-name", dataset, "--seed", str(load.seed(turn)),
        "--random-input-len", str(load.prompt), "--random-output-len", str(load.output),
        "--num-prompts", str(load.requests), "--max-concurrency", str(load.at_once),
        "--num-warmups", str(min(2, load.at_once)), "--disable-tqdm", "--json", str(file),
        "--extra-body", json.dumps(dict(SHOWN)),
    ]  # fmt: skip
    if load.pictures:
        command += [
            "--random-mm-base-items-per-request", str(load.pictures),
            "--random-mm-bucket-config", f"{{({PIXELS}, {PIXELS}, 1): 1.0}}",
        ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S)
    found = json.loads(file.read_text()) if done.returncode == 0 else {}
    if not found or found["failed"]:
        raise RuntimeError(f"{load.name} at {url}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return Figures(found["output_throughput"], found["median_ttft_ms"], found["median_tpot_ms"])
