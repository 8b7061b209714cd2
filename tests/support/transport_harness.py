"""Processes that hold transports, driven by tests; see tests/support/transport_peer.py."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import select
import signal
import subprocess
import tempfile
import uuid
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import protocol.errors
from tests.support import transport_peer
from tests.support.forked import Forked

ANSWER_S = 90.0
Ranges = list[list[int]]


@dataclass(frozen=True)
class Kind:
    """A transport and how UCX is to carry it. `outlives`: its memory outlives who allocated it."""

    transport: str
    environment: dict[str, str] = field(default_factory=dict)
    package: str | None = None
    outlives: bool = False

    @property
    def installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None


KINDS = {
    "shm": Kind("shm", outlives=True),
    "shared_storage": Kind("shared_storage", outlives=True),
    "nixl": Kind("nixl", package="nixl"),
    "nixl-tcp": Kind("nixl", {"UCX_TLS": "tcp"}, package="nixl"),
    "ucx": Kind("ucx", package="ucxx"),
    "shm-staged": Kind("shm-staged", outlives=True),
    "shared_storage-staged": Kind("shared_storage-staged", outlives=True),
    "ucx-staged": Kind("ucx-staged", package="ucxx"),
}


class PeerProcess:
    """Answers come back from methods; an error over there is raised here as the same class."""

    def __init__(
        self, kind: Kind, instance_id: str, directory: Path, read_timeout_s: float = 20.0
    ) -> None:
        self.kind = kind
        self.instance_id = instance_id
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._process = Forked(
            transport_peer.main,
            {**os.environ, "UCX_NET_DEVICES": "lo", **kind.environment},
            (kind.transport, instance_id, directory, read_timeout_s),
            descriptors=[commands, answers],
        )
        # Where a test fails before it ends it: one that was stopped would stay for ever.
        self._unended = weakref.finalize(self, self._process.kill)
        os.close(commands)
        os.close(answers)
        self._lines = os.fdopen(self._answers, "rb", buffering=0)

    def send(self, op: str, **arguments: Any) -> None:
        os.write(self._commands, json.dumps({"op": op, **arguments}).encode() + b"\n")

    def receive(self) -> Any:
        if not select.select([self._answers], [], [], ANSWER_S)[0]:
            raise AssertionError(f"{self.instance_id}: no answer within {ANSWER_S} s")
        answer = json.loads(self._lines.readline() or b'{"error": "dead"}')
        if "error" in answer:
            kind = getattr(protocol.errors, answer["error"], AssertionError)
            raise kind(answer.get("message", f"{self.instance_id} has ended"))
        return answer["value"]

    def call(self, op: str, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.receive()

    def describe(self, region: str) -> bytes:
        return base64.b64decode(self.call("describe", region=region))

    def connect(self, peer: str, region: str, description: bytes) -> None:
        encoded = base64.b64encode(description).decode()
        self.call("connect", peer=peer, region=region, description=encoded)

    def join(self, peer: PeerProcess, region: str) -> None:
        """Make a region of `peer` readable here."""
        self.connect(peer.instance_id, region, peer.describe(region))

    def fetch(self, peer: PeerProcess, region: str, ranges: Ranges) -> None:
        """Read to the end."""
        transfer = self.call("read", peer=peer.instance_id, region=region, ranges=ranges)
        assert self.call("wait", transfer=transfer, timeout_s=60)

    def wrong(self, region: str, *pieces: tuple[int, Ranges]) -> int:
        wrong: int = self.call("wrong", region=region, pieces=pieces)
        return wrong

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._unended.detach()
        self._process.kill()
        self._process.wait()
        self._leave()

    def _leave(self) -> None:
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    def exit(self) -> int:
        """Let it end by itself; its exit status, which is not 0 if it had to be killed."""
        self._leave()
        try:
            status = self._process.wait(timeout=30)
            self._unended.detach()
            return status
        except subprocess.TimeoutExpired:
            self.kill()
            return -1


class Network:
    """A reader and a source that stay for all tests of a transport, and others that come and go."""

    KV = 9 << 20
    EC = 1_000_001

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.directory = Path(tempfile.gettempdir()) / f"triptych-test-{uuid.uuid4().hex}"
        self._started: list[PeerProcess] = []
        self.reader = self.start("reader", 0)
        self.source = self.start("source", 1)
        self.reader.join(self.source, "kv")

    def start(self, instance_id: str, seed: int, read_timeout_s: float = 20.0) -> PeerProcess:
        """A process whose region "kv" holds the pattern `seed`."""
        process = PeerProcess(self.kind, instance_id, self.directory, read_timeout_s)
        self._started.append(process)
        assert process.call("allocate", region="kv", nbytes=self.KV)
        process.call("fill", region="kv", seed=seed)
        return process

    def kill(self, process: PeerProcess) -> None:
        self._started.remove(process)
        process.kill()

    def close(self, process: PeerProcess) -> None:
        self._started.remove(process)
        assert process.exit() == 0

    def end(self) -> list[int]:
        """Exit statuses of all that still ran."""
        return [process.exit() for process in self._started]

    def remove(self) -> None:
        if self.directory.exists():
            self.directory.rmdir()
