"""What every part of a run shares: the model, the workers that are up, the results."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from scripts.interop.table import Table
from scripts.interop.vllm import Transfers, Worker
from tests.support.stack import Process, Stack, running

# Folder of the model, part in EC, KV or not. `whole` does it all, and prefills where asked to.
KINDS: Mapping[str, tuple[str, str, bool]] = MappingProxyType(
    {
        "whole": ("seeing", "", True),
        "encode": ("seeing", "ec_producer", False),
        "prefill": ("blind", "ec_consumer", True),
        "decode": ("blind", "ec_consumer", True),
    }
)


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
                folder, ec, kv = KINDS[name]
                transfers = Transfers(self.storage, ec, kv)
                self.workers[name] = Worker(name, self.venv, self.root, folder, transfers)
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
        with running(model or self.model) as stack:
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
