"""`ENGINE=vllm bash scripts/disagg.sh`, as a user would start it: vLLM's workers behind our proxy
and master, who must place every request, by what vLLM's cache events tell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from PIL import Image

from benchmarks.common.processes import free_port
from scripts.interop import cases
from scripts.interop.shared import Site
from scripts.interop.topologies import answers
from scripts.interop.vllm import ENVIRONMENT, START_S, STOP_S, metric
from tests.support.conversations import asking
from tests.support.reference import Messages, reference_generate

SHAPES: Mapping[str, Mapping[str, int]] = {
    "E+P+D": {"NUM_E": 1, "NUM_P": 1, "NUM_D": 1},
    "E+2PD": {"NUM_E": 1, "NUM_P": 0, "NUM_D": 2},
}
NONE: Mapping[str, str] = MappingProxyType({})
_SERVING = "Serving at"
_PORTS = ("ENCODE_PORT", "PREFILL_PORT", "DECODE_PORT", "PROXY_PORT", "MASTER_PORT")
_BLOCK = 128  # tokens of a KV block of vLLM on a CPU
_BLOCKS = 2  # that two prompts with the same beginning share, at least
_SETTLE_S = 1.0


@dataclass(frozen=True)
class Launched:
    """URLs of what a launch script has started."""

    proxy: str
    master: str
    encode: str
    prefill: list[str]
    decode: list[str]

    def placed(self) -> Mapping[str, int]:
        """Requests by who placed them."""
        name = "triptych_proxy:placements_total"
        return {by: round(metric(self.proxy, f'{name}{{by="{by}"}}')) for by in ("master", "proxy")}

    def foreseen(self) -> float:
        """Prompt tokens that the master took to be cached where it placed a request."""
        return metric(self.master, "triptych_master:hit_tokens_total")

    def hits(self) -> list[float]:
        """Prompt tokens that each decode worker found in its prefix cache."""
        return [metric(url, "vllm:prefix_cache_hits_total") for url in self.decode]


@contextlib.contextmanager
def launched(
    site: Site, shape: str, numbers: Mapping[str, int], settings: Mapping[str, str] = NONE
) -> Iterator[Launched]:
    """The script with KEEP_RUNNING, once it serves; its own questions and benchmark included.
    `settings` are further variables of the script."""
    logs = site.root / f"launched-{shape}"
    ports = dict(zip(_PORTS, _port_ranges(), strict=True))
    environment = {
        **os.environ, **ENVIRONMENT, "ENGINE": "vllm", "VLLM": str(site.venv / "bin" / "vllm"),
        "VLLM_FLAGS": f"--dtype float32 --max-model-len 2048 --served-model-name {site.model} tiny",
        "VLLM_KV_BUFFER_DEVICE": "cpu",
        "MODEL": str(site.model), "MAX_NUM_SEQS": "8", "NUM_PROMPTS": "20", "KEEP_RUNNING": "1",
        "EC_SHARED_STORAGE_PATH": str(site.storage), "LOG_PATH": str(logs),
        "EVENTS_PORT": str(ports["MASTER_PORT"] + 10), "SIDE_PORT": str(ports["MASTER_PORT"] + 30),
        **{name: str(port) for name, port in ports.items()},
        **{name: str(number) for name, number in numbers.items()}, **settings,
    }  # fmt: skip
    log = site.root / f"launched-{shape}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "scripts/disagg.sh"], env=environment, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(process, log)
        local = "http://127.0.0.1"
        prefill = [f"{local}:{ports['PREFILL_PORT'] + i}" for i in range(numbers["NUM_P"])]
        decode = [f"{local}:{ports['DECODE_PORT'] + i}" for i in range(numbers["NUM_D"])]
        yield Launched(
            f"{local}:{ports['PROXY_PORT']}",
            f"{local}:{ports['MASTER_PORT']}",
            f"{local}:{ports['ENCODE_PORT']}",
            prefill,
            decode,
        )
    finally:
        process.send_signal(signal.SIGTERM)  # the script ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _port_ranges() -> list[int]:
    """First ports of ranges of ten; the last one is wider."""
    first = free_port(100)
    return [first + 10 * i for i in range(len(_PORTS))]


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while _SERVING not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the launch script does not serve:\n{text[-3000:]}")
        time.sleep(0.5)


def check(site: Site, shape: str, numbers: Mapping[str, int]) -> None:
    """Right answers, every request placed by the master, and prompts where their beginning is."""
    with launched(site, shape, numbers) as stack:
        answers(site, stack.proxy, (), ways=("one by one",))
        placed = stack.placed()
        site.table.add("every request placed by the master", not placed["proxy"], placed)
        if numbers["NUM_P"]:
            _raw_picture(site, stack.prefill[0])
            return
        gained, known = _repeated(stack)
        # The first request of each of two beginnings finds nothing; two further ones do.
        enough = sum(gained) >= 4 * _BLOCKS * _BLOCK
        site.table.add("vLLM's prefix hits where the master sent them", enough, gained)
        site.table.add("hits that the master foresaw, as vLLM had them", known == gained, known)


def _raw_picture(site: Site, prefill: str) -> None:
    """A prefill worker encodes a picture that no encoder has: the master lists it as one that
    does."""
    pixels = np.random.default_rng(1).integers(0, 255, (84, 84, 3), dtype=np.uint8)
    messages = asking(Image.fromarray(pixels), "What is in this image?")
    found = cases.ask(prefill, messages, False)
    truth = reference_generate(site.model, messages, cases.TOKENS, ignore_eos=True)
    same = list(found.token_ids) == truth
    lead = f"closest call {min(found.leads):.3f}"
    site.table.add("prefill: a picture of its own, as transformers", same, lead)


def _repeated(stack: Launched) -> tuple[list[float], list[float]]:
    """Tokens that vLLM's workers found cached, and that the master foresaw, for each of six
    requests."""
    gained, known = [], []
    for i in range(6):
        time.sleep(_SETTLE_S)  # vLLM tells of its blocks, and counts them, when a step ends
        before, foreseen = sum(stack.hits()), stack.foreseen()
        cases.ask(stack.proxy, _long(i), False)
        time.sleep(_SETTLE_S)
        gained.append(sum(stack.hits()) - before)
        known.append(stack.foreseen() - foreseen)
    return gained, known


def _long(number: int) -> Messages:
    """Two beginnings of more than two blocks in turn, a question of its own at the end."""
    beginning = json.dumps([f"{number % 2} fact {i} of the world" for i in range(60)])
    return asking(f"{beginning} question {number}")
