"""What `bench_fleet` starts: workers of one shape, and one contender at a time before them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.processes import (
    add_to_master,
    call,
    ending,
    free_port,
    mock_workers,
    wait_ready,
)

TTFT_S, TPOT_S = 1.0, 0.03
ADMIN_KEY = "bench"
PICTURE_BYTES = 1 << 20  # of a mock's embeddings of one
# A vision tower takes 0.35 s a picture: two of them one after the other still meet the objective,
# and round robin sustains about what it was measured to before (4.4 requests/s). Prefill takes
# 0.15 ms a token, a decode step 10 ms and 1 ms a request.
TIMING = (
    "--media-tokens", "256", "--encode-base-ms", "5", "--encode-patch-ms", "0.34",
    "--prefill-base-ms", "5", "--prefill-token-ms", "0.15", "--prefill-cached-ms", "0",
    "--decode-base-ms", "10", "--decode-request-ms", "1", "--decode-context-ms", "0",
    "--kv-block-ms", "0.01", "--num-gpu-blocks-override", "2048",
)  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """URLs of the workers."""

    encode: list[str]
    prefill: list[str]
    decode: list[str]

    @property
    def all(self) -> list[str]:
        return [*self.encode, *self.prefill, *self.decode]

    def reset(self) -> None:
        """Empty caches."""
        for url in self.all:
            for path in ("/reset_prefix_cache", "/reset_encoder_cache"):
                call("POST", url, path)

    def counters(self) -> dict[str, float]:
        """Sums over the workers that do the work: encoders' items, prefill workers' tokens, and
        items too where these encode. One that a prefill worker encodes for busy encoders is a miss.
        """
        items, tokens = _summed(self.encode), _summed(self.prefill)
        kind, encoding = ("mm_cache", items) if self.encode else ("embedding", tokens)
        helped = tokens.get("mm_encoded", 0.0) if self.encode else 0.0
        return {
            "items": encoding.get(f"{kind}_queries", 0.0) + helped,
            "item_hits": encoding.get(f"{kind}_hits", 0.0),
            "bytes": items.get("mm_received_bytes", 0.0),
            "tokens": tokens.get("prompt_tokens", 0.0),
            "token_hits": tokens.get("cached_tokens", 0.0),
        }


def _summed(urls: Sequence[str]) -> dict[str, float]:
    total: dict[str, float] = {}
    for url in urls:
        report = json.loads(call("GET", url, "/integrity"))
        for name, value in report["counters"].items():
            total[name] = total.get(name, 0.0) + value
    return total


@contextlib.contextmanager
def fleet(encode: int, prefill: int, decode: int, cache_pictures: int) -> Iterator[Fleet]:
    """Mock workers that speak vLLM's protocol, one process for each role. A cache of embeddings
    has room for `cache_pictures`."""
    with contextlib.ExitStack() as stack:
        urls = [
            stack.enter_context(workers(role, count, cache_pictures))
            for role, count in (("encode", encode), ("prefill", prefill), ("decode", decode))
        ]
        yield Fleet(*urls)


@contextlib.contextmanager
def workers(role: str, count: int, cache_pictures: int) -> Iterator[list[str]]:
    flags = [
        "--role", role, "--dialect", "openai", "--log-level", "warning", *TIMING,
        "--embedding-cache-bytes", str(cache_pictures * PICTURE_BYTES),
    ]  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as folder,
        mock_workers(flags, count, Path(folder, "log")) as (_, urls),
    ):
        yield urls


@contextlib.contextmanager
def round_robin(workers: Fleet) -> Iterator[str]:
    with _serving("benchmarks.bench_fleet.round_robin", [
        "--encode", ",".join(workers.encode), "--prefill", ",".join(workers.prefill),
        "--decode", ",".join(workers.decode),
    ]) as url:  # fmt: skip
        yield url


@contextlib.contextmanager
def router(binary: Path, workers: Fleet) -> Iterator[str]:
    """vllm-router with its defaults, P+D: it never encodes, so that its prefill workers get the
    pictures themselves."""
    port = free_port(2)
    flags = ["--vllm-pd-disaggregation", "--kv-connector", "nixl", "--port", str(port)]
    for url in workers.prefill:
        flags += ["--prefill", url]
    for url in workers.decode:
        flags += ["--decode", url]
    flags += ["--prometheus-port", str(port + 1), "--log-level", "error"]
    with _running([str(binary), *flags], port) as url:
        yield url


@contextlib.contextmanager
def ours(workers: Fleet) -> Iterator[str]:
    """Our proxy alone."""
    flags = ["--dialect", "openai", "--log-level", "error", *_static(workers)]
    with _serving("proxy", flags) as url:
        yield url


@contextlib.contextmanager
def ours_with_master(workers: Fleet) -> Iterator[str]:
    """Our proxy and master; the workers are added to the master by hand, as vLLM's are."""
    flags = [
        "--admin-api-key", ADMIN_KEY, "--probe-interval", "0.5", "--log-level", "error",
        "--ttft-slo", str(TTFT_S), "--tpot-slo", str(TPOT_S),
    ]  # fmt: skip
    with _serving("services.master", flags) as master:
        roles = {"encode": workers.encode, "prefill": workers.prefill, "decode": workers.decode}
        add_to_master(master, ADMIN_KEY, roles)
        flags = ["--dialect", "openai", "--master-url", master, "--log-level", "error"]
        with _serving("proxy", [*flags, *_static(workers)]) as url:
            yield url


def _static(workers: Fleet) -> list[str]:
    return [
        "--encode-servers-urls", ",".join(workers.encode),
        "--prefill-servers-urls", ",".join(workers.prefill),
        "--decode-servers-urls", ",".join(workers.decode),
    ]  # fmt: skip


@contextlib.contextmanager
def _serving(module: str, flags: Sequence[str]) -> Iterator[str]:
    port = free_port()
    with _running([sys.executable, "-m", module, "--port", str(port), *flags], port) as url:
        yield url


@contextlib.contextmanager
def _running(command: Sequence[str], port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ending(process):
        wait_ready(process, url)
        yield url
