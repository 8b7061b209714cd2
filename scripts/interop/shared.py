"""What every part of a run shares: the model, the workers that are up, the results."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from scripts.interop import model
from scripts.interop.table import Table
from scripts.interop.vllm import Transfers, Worker
from tests.support.stack import Process, Stack, running

_DRAFTING = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3,
}  # fmt: skip


@dataclass(frozen=True)
class WorkerKind:
    """How a vLLM worker is started."""

    folder: str  # that holds its model
    ec: str = ""  # its part in EC, "" for none
    kv: bool = False  # whether it has a KV connector
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


KINDS: Mapping[str, WorkerKind] = MappingProxyType(
    {
        "whole": WorkerKind("seeing", kv=True),  # does it all, and prefills where asked to
        "encode": WorkerKind("seeing", "ec_producer"),
        "prefill": WorkerKind("blind", "ec_consumer", kv=True),
        "decode": WorkerKind("blind", "ec_consumer", kv=True),
        "rest": WorkerKind("seeing", "ec_consumer"),  # encodes by itself what comes as bytes
        "hearing-encode": WorkerKind("hearing", "ec_producer"),
        "hearing": WorkerKind("hearing", "ec_consumer"),
        "two-ranks": WorkerKind("seeing", "ec_consumer", flags=("--tensor-parallel-size", "2")),
        "two-engines": WorkerKind(
            "seeing", flags=("--data-parallel-size", "2", "--api-server-count", "1")
        ),
        "drafting": WorkerKind("seeing", flags=("--speculative-config", json.dumps(_DRAFTING))),
        "adapted": WorkerKind(
            "seeing",
            flags=(
                "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
                "--lora-modules", f"one={model.ADAPTERS[0]}",
            ),
            env=MappingProxyType({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}),
        ),
        "int8": WorkerKind("int8"),
    }
)  # fmt: skip


@dataclass
class Site:
    """`root` has the models, the embeddings in `storage`, and all logs."""

    venv: Path
    root: Path
    model: Path
    table: Table
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def storage(self) -> Path:
        return self.root / "ec"

    def vllm(self, *names: str) -> list[Worker]:
        """vLLM workers of these KINDS, ready, with nothing in caches and storage; what is up and
        not named is stopped first, as memory is for three."""
        for name in set(self.workers) - set(names):
            self.workers.pop(name).stop()
        for name in names:
            if name not in self.workers:
                kind = KINDS[name]
                flags = [*Transfers(self.storage, kind.ec, kind.kv).flags(), *kind.flags]
                self.workers[name] = Worker(
                    name, self.venv, self.root, kind.folder, flags, kind.env
                )
        found = [self.workers[name] for name in names]
        for worker in found:
            worker.wait_ready()
            worker.forget()
        shutil.rmtree(self.storage, ignore_errors=True)
        self.storage.mkdir()
        return found

    def close(self) -> None:
        while self.workers:
            self.workers.popitem()[1].stop()

    @contextmanager
    def services(self, model: Path | None = None) -> Iterator[Stack]:
        """For services of ours; their logs stay beside vLLM's."""
        # Not forked: a proxy alone starts sooner than what tests fork their engines from.
        with running(model or self.model, forked=False) as stack:
            try:
                yield stack
            finally:
                for index, process in enumerate(stack.processes):
                    name = f"ours-{self.table.part}-{index}-{process.module}.log".replace(" ", "-")
                    (self.root / name).write_text("".join(process.log))


def before_vllm(stack: Stack, encode: str, prefill: str, decode: str, *flags: str) -> Process:
    """Our proxy before workers by URL; "" for none of a role."""
    process = stack.start(
        "proxy",
        "--encode-servers-urls", encode or "none",
        "--prefill-servers-urls", prefill or "none",
        "--decode-servers-urls", decode,
        *flags,
    )  # fmt: skip
    process.wait_ready()
    return process
