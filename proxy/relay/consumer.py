"""The worker that computes with a request's embeddings, where encoders have to know it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.encoder_cache import RANK_HEADER
from protocol.types import Role
from proxy.fleet.worker import Instance


@dataclass(frozen=True)
class Consumer:
    """One request's consumer.

    `stage`: what it is asked to do with the embeddings.
    `rank`: its data-parallel rank that has the request.
    `address`: where encoders push embeddings to; "": it fetches them.
    `header`: the header line that binds the request to the rank, empty if there is one rank.
    """

    instance: Instance
    stage: Role
    rank: int = 0
    address: str = ""
    header: bytes = b""

    @staticmethod
    def bound(instance: Instance, stage: Role) -> Consumer:
        """With the rank that has the fewest requests, which counts this one until `leave`."""
        addresses = instance.ec_zmq_addrs
        if not addresses:
            return Consumer(instance, stage)
        rank = instance.enter_rank()
        header = f"{RANK_HEADER}: {rank}\r\n".encode() if len(addresses) > 1 else b""
        return Consumer(instance, stage, rank, addresses[rank], header)

    def leave(self) -> None:
        """The attempt has ended."""
        if self.address:
            self.instance.leave_rank(self.rank)
