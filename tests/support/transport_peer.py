"""A process that holds one transport and does what lines of JSON say.

Each line is {"op": name, ...arguments}; each answer {"value": …} or {"error": class, "message": …}.
End of input closes the transport and ends the process.
"""

from __future__ import annotations

import base64
import json
import os
import select
import time
from pathlib import Path
from typing import Any

import numpy as np

from connectors.transports.base import Range, Transfer, Transport
from protocol.errors import TriptychError

_POLL_S = 0.001
_GRANULE = 64 << 10


def make(transport: str, instance_id: str, directory: Path, read_timeout_s: float) -> Transport:
    """A name that ends in "-staged": copied through other memory on the way."""
    if transport.endswith("-staged"):
        from connectors.transports.staged import StagedTransport

        name = transport.removesuffix("-staged")
        inner = make(name, instance_id, directory, read_timeout_s)
        return StagedTransport(inner, everything=True)
    if transport == "shm":
        from connectors.transports.shm import ShmTransport

        return ShmTransport(directory, instance_id)
    if transport == "shared_storage":
        from connectors.transports.files import FilesTransport

        return FilesTransport(directory)
    if transport == "nixl":
        from connectors.transports.nixl import NixlTransport

        return NixlTransport(instance_id, read_timeout_s)
    if transport == "ucx":
        from connectors.transports.ucx import UcxTransport

        return UcxTransport(read_timeout_s=read_timeout_s)
    raise SystemExit(f"no transport '{transport}'")


def pattern(seed: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[nbytes] that differs at every shift and for every seed; seed 0 is all zeros."""
    factor = 2654435761 * seed
    first = np.arange(_GRANULE, dtype="<u4") * np.uint32(factor & 0xFFFFFFFF)
    numbers = np.empty_like(first)  # a piece at a time: one that is in the processor's cache
    found = np.empty(nbytes, np.uint8)
    for begin in range(0, nbytes, _GRANULE):
        np.add(first, np.uint32(factor * begin & 0xFFFFFFFF), out=numbers)
        piece = found[begin : begin + _GRANULE]
        piece[:] = numbers.view(np.uint8)[3::4][: piece.size]
    return found


class Peer:
    """The operations, by name."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.closed = False
        self._regions: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._transfers: list[Transfer] = []

    def allocate(self, region: str, nbytes: int, device: str = "cpu") -> bool:
        """Whether the memory is as large as asked for and zeroed."""
        memory = self.transport.allocate(region, nbytes, device, granule=_GRANULE).numpy()
        self._regions[region] = memory
        return memory.nbytes == nbytes and not memory.any()

    def fill(self, region: str, seed: int, publish: bool = True) -> None:
        size = self._regions[region].nbytes
        self._regions[region][:] = pattern(seed, size)
        ticket = self.transport.offer(region, [(0, size)]) if publish else None
        while ticket is not None and not ticket.poll():
            time.sleep(_POLL_S)

    def describe(self, region: str) -> str:
        return base64.b64encode(self.transport.describe(region)).decode()

    def connect(self, peer: str, region: str, description: str) -> None:
        connecting = self.transport.connect(peer, region, base64.b64decode(description))
        while connecting is not None and not connecting.poll():
            time.sleep(_POLL_S)

    def disconnect(self, peer: str) -> None:
        self.transport.disconnect(peer)

    def read(self, peer: str, region: str, ranges: list[list[int]]) -> int:
        """The transfer's number."""
        self._transfers.append(self.transport.read(peer, region, _ranges(ranges)))
        return len(self._transfers) - 1

    def poll(self, transfer: int) -> bool:
        return self._transfers[transfer].poll()

    def wait(self, transfer: int, timeout_s: float) -> bool:
        """Poll until all bytes are there."""
        deadline = time.monotonic() + timeout_s
        while not self._transfers[transfer].poll():
            if time.monotonic() > deadline:
                return False
            self.transport.poll()
            time.sleep(_POLL_S)  # a transport may have threads of its own
        return True

    def patience(self, seconds: float) -> None:
        """How long reads of UCX that begin from now on may take."""
        transport: Any = self.transport
        transport._reader._timeout = seconds

    def hammer(
        self, peer: str, region: str, ranges: list[list[int]], timeout_s: float, least: int = 0
    ) -> int:
        """Read the same again and again until it fails, `least` times even if that takes longer;
        the number of reads if it never does."""
        reads, deadline = 0, time.monotonic() + timeout_s
        while reads < least or time.monotonic() < deadline:
            transfer = self.read(peer, region, ranges)
            self.wait(transfer, 60.0)
            reads += 1
        return reads

    def cancel(self, transfer: int) -> None:
        self._transfers[transfer].cancel()
        self._transfers[transfer].cancel()

    def settle(self, transfers: list[int], timeout_s: float) -> bool:
        """Whether nothing is written any more within that time."""
        deadline = time.monotonic() + timeout_s
        while not all(self._transfers[t].settled for t in transfers):
            if time.monotonic() > deadline:
                return False
            self.transport.poll()
            time.sleep(_POLL_S)  # a transport may have threads of its own
        return True

    def wrong(self, region: str, pieces: list[tuple[int, list[list[int]]]]) -> int:
        """How many bytes differ from zeros with (seed, ranges) copied in."""
        memory = self._regions[region]
        expected = np.zeros_like(memory)
        for seed, ranges in pieces:
            source = pattern(seed, memory.nbytes)
            for remote, local, size in ranges:
                expected[local : local + size] = source[remote : remote + size]
        return int(np.count_nonzero(memory != expected))

    def integrity(self) -> list[str]:
        return self.transport.check_integrity()

    def close(self) -> None:
        self.closed = True
        self._regions.clear()
        self.transport.close()


def _ranges(ranges: list[list[int]]) -> list[Range]:
    return [Range(remote, local, size) for remote, local, size in ranges]


def _answer(peer: Peer, line: bytes) -> dict[str, Any]:
    arguments = json.loads(line)
    try:
        return {"value": getattr(peer, arguments.pop("op"))(**arguments)}
    except TriptychError as error:
        return {"error": type(error).__name__, "message": error.message}


def _serve(peer: Peer, commands: int, answers: int) -> None:
    waiting = b""
    while True:
        if not peer.closed:
            peer.transport.poll()
        if not select.select([commands], [], [], _POLL_S)[0]:
            continue
        data = os.read(commands, 1 << 16)
        if not data:
            return
        *lines, waiting = (waiting + data).split(b"\n")
        for line in lines:
            os.write(answers, json.dumps(_answer(peer, line)).encode() + b"\n")


def main(commands: int, answers: int, env: dict[str, str], what: tuple[Any, ...]) -> None:
    """Until no more commands come. `what`: transport, instance id, directory, read timeout (s)."""
    os.environ.clear()
    os.environ.update(env)
    peer = Peer(make(*what))
    _serve(peer, commands, answers)
    peer.close()
