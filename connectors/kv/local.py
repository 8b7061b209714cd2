"""The KV connector of a worker without peers: plain memory, nothing published, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from connectors.base import BlockCopy, KVConnector, KVLoad
from protocol.errors import IncompatiblePeer, TransferError
from protocol.refs import KVRef


class LocalKV(KVConnector):
    def __init__(self, device: str) -> None:
        self._device = device

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_blocks, elements, dtype=dtype, device=self._device)

    def publish(
        self, request_id: str, blocks: Sequence[int], num_tokens: int, rope_delta: int
    ) -> KVRef:
        raise TransferError("this worker has no KV connector: it cannot hand a request over")

    def withdraw(self, request_id: str) -> None:
        pass

    def fetch(self, ref: KVRef, copies: Sequence[BlockCopy]) -> KVLoad:
        raise IncompatiblePeer("this worker has no KV connector: it cannot fetch KV blocks")

    def decline(self, ref: KVRef) -> None:
        pass

    def poll(self) -> list[str]:
        return []

    def close(self) -> None:
        pass

    def check_integrity(self) -> list[str]:
        return []
