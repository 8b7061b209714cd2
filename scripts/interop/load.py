"""`vllm bench serve`, as a user would run it."""

import json
import os
import subprocess
from pathlib import Path

from scripts.interop.shared import Site
from scripts.interop.vllm import QUIET

_TIMEOUT_S = 600.0  # an upper bound, for a machine that has other work
PICTURES = (
    "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
    "--dataset-name", "random-mm",
    "--random-mm-base-items-per-request", "1",
    "--random-mm-num-mm-items-range-ratio", "0",
    "--random-mm-limit-mm-per-prompt", '{"image": 2, "video": 0}',
    "--random-mm-bucket-config", "{(96, 96, 1): 0.5, (160, 96, 1): 0.5}",
)  # fmt: skip
"""Chats of a random text and a random picture."""
COMPLETIONS = ("--backend", "openai", "--endpoint", "/v1/completions", "--dataset-name", "random")
"""Completions of a random text."""


def bench(
    site: Site, url: str, model: Path, served: str, prompts: int, load: tuple[str, ...] = PICTURES
) -> None:
    """Every request of a load must succeed.

    `model` has the tokenizer, `served` is its name in requests.
    """
    result = site.root / f"bench-{model.name}.json"
    command = [
        str(site.venv / "bin" / "vllm"), "bench", "serve", *load, "--base-url", url,
        "--model", str(model), "--served-model-name", served,
        "--num-prompts", str(prompts), "--seed", "0",
        "--random-input-len", "60", "--random-output-len", "16",
        "--max-concurrency", "8", "--ignore-eos", "--disable-tqdm",
        "--save-result", "--result-dir", str(result.parent), "--result-filename", result.name,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"vllm bench serve: {(done.stdout + done.stderr)[-2000:]}")
    found = json.loads(result.read_text())
    completed, failed = found["completed"], found["failed"]
    figures = (
        f"{completed} of {prompts}, {found['request_throughput']:.1f} requests/s, "
        f"TTFT p50 {found['median_ttft_ms']:.0f} ms, TPOT p50 {found['median_tpot_ms']:.0f} ms"
    )
    whole = completed == prompts and not failed
    site.table.add("vllm bench serve without a failed request", whole, figures)
