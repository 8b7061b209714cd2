"""A UCX transport in the test's own process, and processes it talks to."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors.transports.base import Range, Transfer
from connectors.transports.ucx import UcxTransport
from connectors.transports.ucx_reader import UcxRead
from connectors.transports.ucx_wire import open_description
from protocol.errors import TransferError
from tests.support.transport_harness import KINDS, PeerProcess

UCX = pytest.mark.skipif(not KINDS["ucx"].installed, reason="ucxx is not installed")
SIZE = 40 << 20
BOUND_S = 20.0
BLOCK = 64 << 10


def until(done: Callable[[], bool], *transports: UcxTransport, bound_s: float = BOUND_S) -> None:
    deadline = time.monotonic() + bound_s
    while not done():
        assert time.monotonic() < deadline
        for transport in transports:
            transport.poll()
        time.sleep(0.0005)


@contextmanager
def polling(transport: UcxTransport) -> Iterator[None]:
    """Something else polls it meanwhile, while the test waits for a process."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(0.0005):
            transport.poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def start(tmp_path: Path, name: str, seed: int, nbytes: int = SIZE) -> PeerProcess:
    """Its region holds the pattern `seed`, 0 for zeros."""
    process = PeerProcess(KINDS["ucx"], name, tmp_path, read_timeout_s=BOUND_S)
    process.call("allocate", region="kv", nbytes=nbytes)
    if seed:
        process.call("fill", region="kv", seed=seed)
    return process


class Local:
    """A transport in this process, with a region of zeros."""

    def __init__(self, nbytes: int = SIZE, read_timeout_s: float = BOUND_S) -> None:
        self.transport = UcxTransport(read_timeout_s=read_timeout_s)
        self.bytes = self.transport.allocate("kv", nbytes, "cpu").numpy()

    def read(self, peer: str, *ranges: tuple[int, int, int]) -> UcxRead:
        read = self.transport.read(peer, "kv", [Range(*r) for r in ranges])
        assert isinstance(read, UcxRead)
        return read

    def fetch(self, peer: str, *ranges: tuple[int, int, int]) -> None:
        until(self.read(peer, *ranges).poll, self.transport)

    def fails(self, transfer: Transfer, error: type[TransferError], match: str) -> None:
        with pytest.raises(error, match=match):
            until(transfer.poll, self.transport)

    @property
    def address(self) -> bytes:
        return open_description(self.transport.describe("kv")).address
