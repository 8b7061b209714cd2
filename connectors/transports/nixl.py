"""NIXL: peers read each other's registered memory through UCX (RDMA, shared memory or TCP).

A transfer that has not ended keeps its NIXL handle, also after cancellation or a timeout, because
NIXL would let go of it while bytes still arrive. For the same reason an agent that is not wanted
any more is forgotten only when the last read from it has ended.
"""

from __future__ import annotations

import atexit
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from connectors.transports.base import Range, Transfer, Transport, check_ranges, zeros
from connectors.transports.nixl_agent import Agent, NixlDescription, Place
from connectors.transports.nixl_read import NixlPeer, NixlRead
from protocol.errors import ConfigError, TransferError

# How long `close` waits for reads to end. Over TCP, UCX emulates a read in the process that is
# read, and aborts that process ("unexpected error: Endpoint timeout", or an assertion in stubs.c)
# if it comes to serve a reader that has gone. A peer that runs ends its reads within this time; one
# that is stopped (SIGSTOP, a paused machine) under the reads of a process that ends dies when it
# goes on. No bound rules that out, as it may be stopped for any time; and a reader that is killed
# does the same to it.
_LINGER_S = 3.0


@dataclass
class _Region:
    memory: torch.Tensor
    place: Place
    registration: Any


class NixlTransport(Transport):
    """Creating one takes about half a second, and the first in a process loads NIXL besides.

    `read_timeout_s` bounds a read from a peer that stalls: UCX notices a dead process at once but
    a stopped one never.
    """

    name = "nixl"

    def __init__(self, instance_id: str, read_timeout_s: float = 20.0) -> None:
        # A new name at each start: NIXL refuses a known agent that has another address.
        self._agent: Agent | None = Agent(f"{instance_id}/{uuid.uuid4().hex[:8]}")
        self._read_timeout = read_timeout_s
        self._regions: dict[str, _Region] = {}
        self._peers: dict[str, NixlPeer] = {}
        self._retired: list[NixlPeer] = []
        atexit.register(self.close)

    @property
    def _live(self) -> Agent:
        if self._agent is None:
            raise TransferError("nixl: the transport is closed")
        return self._agent

    def takes(self, device: str) -> bool:
        kind = torch.device(device).type
        return kind == "cpu" or (kind == "cuda" and torch.cuda.is_available())

    def allocate(
        self, region: str, nbytes: int, device: str, *, sparse: bool = False, granule: int = 0
    ) -> torch.Tensor:
        if not self.takes(device):
            raise ConfigError(f"nixl: memory on {device} cannot be registered")
        if region in self._regions or nbytes <= 0:
            raise ConfigError(f"nixl: region '{region}' exists already or has no bytes ({nbytes})")
        try:
            memory = zeros(nbytes, device)
        except (MemoryError, RuntimeError) as error:
            raise ConfigError(
                f"nixl: cannot allocate {nbytes} bytes on {device}: {error}"
            ) from None
        # Zeros are written by a kernel, on a stream that NIXL does not wait for.
        if memory.is_cuda:
            torch.cuda.synchronize(memory.device)
        place = Place.of(memory)
        self._regions[region] = _Region(memory, place, self._live.register(place))
        return memory

    def describe(self, region: str) -> bytes:
        ours = self._regions[region]
        metadata = self._live.metadata(ours.registration)
        return NixlDescription(self._live.name, ours.place, metadata).encode()

    def connect(self, peer: str, region: str, description: bytes) -> None:
        wanted = NixlDescription.decode(description)
        if wanted.agent.rpartition("/")[0] != peer:
            raise TransferError(f"nixl: the description is of {wanted.agent[:80]}, not of {peer}")
        known = self._peers.get(peer)
        if known is not None and known.regions.get(region) == wanted:
            return
        if known is not None and known.agent != wanted.agent:
            self._retire(peer, "has restarted")
        self._live.add(wanted.metadata)
        remote = self._peers.get(peer) or self._take_back(wanted.agent) or NixlPeer(wanted.agent)
        remote.regions[region] = wanted
        self._peers[peer] = remote

    def _take_back(self, agent: str) -> NixlPeer | None:
        """An agent that was retired and that NIXL has not forgotten yet."""
        for remote in self._retired:
            if remote.agent == agent:
                self._retired.remove(remote)
                return remote
        return None

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        local = self._regions[region].place
        remote = self._peers.get(peer)
        if remote is None or region not in remote.regions:
            raise TransferError(f"nixl: instance {peer} is not connected")
        place = remote.regions[region].place
        problem = check_ranges(ranges, place.nbytes, local.nbytes)
        if problem is not None or not ranges:
            raise TransferError(f"nixl: {problem or 'there is nothing to read'}")
        if remote.broken:
            self._reconnect(remote)
        try:
            handle = self._live.read(remote.agent, place, local, ranges)
        except TransferError:
            remote.broken = True
            raise
        read = NixlRead(self._live, remote, handle, self._read_timeout)
        if not read.settled:
            remote.reads.append(read)
        return read

    def _reconnect(self, remote: NixlPeer) -> None:
        """A connection that broke stays broken until NIXL has forgotten the agent."""
        remote.advance()
        if remote.reads:
            raise TransferError(f"nixl: the connection to {remote.agent} broke")
        self._live.forget(remote.agent)
        for description in remote.regions.values():
            self._live.add(description.metadata)
        remote.broken = False

    def disconnect(self, peer: str) -> None:
        if peer in self._peers:
            self._retire(peer, "was disconnected")
            self.poll()

    def _retire(self, peer: str, reason: str) -> None:
        remote = self._peers.pop(peer)
        remote.fail(f"nixl: instance {peer} {reason}")
        remote.regions.clear()
        self._retired.append(remote)

    def poll(self) -> None:
        for remote in (*self._peers.values(), *self._retired):
            remote.advance()
        for remote in [remote for remote in self._retired if not remote.reads]:
            self._live.forget(remote.agent)
            self._retired.remove(remote)

    def close(self) -> None:
        if self._agent is None:
            return
        remotes = (*self._peers.values(), *self._retired)
        deadline = time.monotonic() + _LINGER_S
        while any(remote.reads for remote in remotes) and time.monotonic() < deadline:
            self.poll()
        # Bytes of these may come until the agent has ended: only after it the memory is let go.
        for read in [read for remote in remotes for read in remote.reads]:
            read.fail("nixl: the transport was closed")
            read.release()
        for remote in (*self._peers.values(), *self._retired):
            self._agent.forget(remote.agent)
        for region in self._regions.values():
            self._agent.deregister(region.registration)
        self._agent.close()
        self._agent = None
        self._peers.clear()
        self._retired.clear()
        self._regions.clear()
        atexit.unregister(self.close)

    def check_integrity(self) -> list[str]:
        remotes = (*self._peers.values(), *self._retired)
        reads = sum(not read.settled for remote in remotes for read in remote.reads)
        problems = [f"nixl: {reads} reads are still running"] if reads else []
        return problems + [f"nixl: agent {r.agent} is still connected" for r in self._retired]
