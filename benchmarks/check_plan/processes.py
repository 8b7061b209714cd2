"""A fleet that is run for real: mock workers as a profile says, a master, a proxy."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.check_plan.asks import WORDS
from benchmarks.common.processes import (
    call,
    ending,
    free_port,
    mock_workers,
    processor_s,
    wait_ready,
)
from benchmarks.simulate.profile import Profile
from protocol.registry import StageRole

NAME = "checked"
_POSITIONS = 1 << 18
_REGISTERED_S = 20.0
_ADMIN_KEY = "checking-plans"
_MOST_PIXELS, _LEAST_PIXELS = 1 << 24, 28 * 28


@dataclass(frozen=True)
class Fleet:
    """`url`: of the proxy; `pids`: of all processes, by what they are."""

    url: str
    pids: Mapping[str, int]

    def processor_s(self) -> dict[str, float]:
        """Seconds of processor time that each process has used, and this one as "client"."""
        pids = {**self.pids, "client": os.getpid()}
        return {name: processor_s(pid) for name, pid in pids.items()}


def model_copy(source: Path, folder: Path) -> Path:
    """The demo model for prompts and pictures of any size: mocks compute nothing with it."""
    copy = folder / NAME
    shutil.copytree(source, copy)
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = _POSITIONS
    (copy / "config.json").write_text(json.dumps(config))
    pictures = json.loads((copy / "preprocessor_config.json").read_text())
    pictures["size"] = {"longest_edge": _MOST_PIXELS, "shortest_edge": _LEAST_PIXELS}
    (copy / "preprocessor_config.json").write_text(json.dumps(pictures))
    return copy


def worker_flags(profile: Profile, role: str) -> list[str]:
    """A mock worker's, exactly as simulated workers of this role are."""
    blocks = profile.decode_blocks if role in ("decode", "any") else profile.prefill_blocks
    encodes = role in ("encode", "any")
    held = profile.encoder_bytes if encodes else profile.prefill_media_bytes
    values: dict[str, object] = {
        "block-size": profile.block_size,
        "num-gpu-blocks-override": blocks,
        "max-model-len": blocks * profile.block_size,
        "max-num-seqs": profile.max_running,
        "max-num-batched-tokens": profile.step_tokens,
        "max-prefill-beside-decode": profile.max_prefill_beside_decode,
        "max-encoder-patches": profile.max_patches,
        "embedding-cache-bytes": held,
        "embedding-row-bytes": profile.row_bytes,
        "kv-bytes-per-token": profile.kv_bytes_per_token,
        "kv-lease": 600,
        "heartbeat-interval": profile.heartbeat_s,
        "jitter": profile.jitter,
        "first-token": WORDS.first,
        "num-tokens": WORDS.count,
    }
    timing = {
        name.replace("_", "-"): getattr(profile.timing, name)
        for name in profile.timing.__dataclass_fields__
    }
    return [word for name, value in (values | timing).items() for word in (f"--{name}", str(value))]


@contextlib.contextmanager
def fleet(
    profile: Profile, counts: Mapping[str, int], begins: Sequence[StageRole], model: Path,
    logs: Path, seed: int,
) -> Iterator[Fleet]:  # fmt: skip
    """One process for each role's workers: `counts`, encoders first. `begins`: which roles those of
    the role any serve at first. `logs`: folder of what they print."""
    with contextlib.ExitStack() as stack:
        port = free_port(2)
        master, url = f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port}"
        flags = ["--seed", str(seed), "--admin-api-key", _ADMIN_KEY]
        pids = {"master": _served(stack, "services.master", master, logs, flags)}
        encoders: list[str] = []
        for role, count in counts.items():
            flags = [
                "--role", role, "--model", str(model), "--served-model-name", NAME,
                "--master-url", master, "--seed", str(seed + count),
                "--encode-servers-urls", ",".join(encoders) or "none",
                *worker_flags(profile, role),
            ]  # fmt: skip
            if count:
                pids[role], urls = stack.enter_context(mock_workers(flags, count, logs / role))
                encoders += urls if role == "encode" else []
                if role == "any":
                    _serve(master, dict(zip(urls, begins, strict=True)))
        flags = ["--model", str(model), "--served-model-name", NAME, "--master-url", master]
        pids["proxy"] = _served(stack, "proxy", url, logs, flags)
        yield Fleet(url, pids)


def _serve(master: str, roles: Mapping[str, StageRole]) -> None:
    """Have workers, by their URLs, serve these roles, once they are registered."""
    headers = {"content-type": "application/json", "x-api-key": _ADMIN_KEY}
    deadline = time.monotonic() + _REGISTERED_S
    for url, role in roles.items():
        body = json.dumps({"url": url, "role": role})
        while True:
            try:
                call("POST", master, "/instances/role", body, headers)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def _served(
    stack: contextlib.ExitStack, module: str, url: str, logs: Path, flags: Sequence[str]
) -> int:
    command = [sys.executable, "-m", module, "--port", url.rpartition(":")[2], *flags]
    log = logs / module
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    stack.enter_context(ending(process))
    wait_ready(process, url, log=log)
    return process.pid
