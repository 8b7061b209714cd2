"""What one load asks of the reader that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from connectors.ec.buffer_pool import BufferPool, Landing
from connectors.messages import ECDone, ECForget, ECWant
from connectors.meter import Meter
from connectors.node import Node
from connectors.side_client import Address
from connectors.transports.base import Transfer


class LoadOwner(Protocol):
    """`landing` is None where the transport maps a peer's memory."""

    node: Node
    landing: Landing | None
    pool: BufferPool
    load_timeout_s: float
    meter: Meter

    def producers(self) -> Sequence[Address]:
        """Side channels of all producers that can be found."""

    def ready(self, address: Address) -> str | None:
        """The instance at an address once it can be read."""

    def connection_number(self, address: Address) -> int | None:
        """Which connection to an address this is."""

    def check(self, address: Address) -> None:
        """Give up what is known of a producer if there is no connection to it."""

    def is_own(self, address: Address) -> bool:
        """Whether the store at an address is this engine's."""

    def send(self, address: Address, message: ECWant | ECDone | ECForget) -> None:
        """Tell a producer."""

    def view(self, address: Address, peer: str, offset: int, size: int) -> torch.Tensor:
        """uint8[size] of a producer's memory."""

    def settle(self, transfer: Transfer, then: Callable[[], None]) -> None:
        """Do `then` once nothing is read or written by a transfer any more."""

    def ended(self, query: int) -> None:
        """Forget a load that has succeeded, failed or been cancelled."""
