"""The KV connector of a worker without peers: plain memory, nothing offered, nothing fetched."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from connectors.kv.base import Fence, KVConnector, KVLoad
from connectors.meter import Meter
from protocol.errors import IncompatiblePeer, TransferError
from protocol.refs import KVRef


class LocalKV(KVConnector):
    shares = False

    def __init__(self, device: str) -> None:
        self.meter = Meter("kv", "local")
        self._device = device

    def allocate(self, num_blocks: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_blocks, elements, dtype=dtype, device=self._device)

    def offer(self, request_id: str) -> None:
        raise TransferError(
            "this worker has no KV connector and cannot hand over KV: set --kv-transfer-config"
        )

    def advance(self, request_id: str, blocks: Sequence[int], written: Fence | None = None) -> None:
        raise AssertionError("nothing is open")

    def restart(self, request_id: str) -> None:
        raise AssertionError("nothing is open")

    def seal(
        self, request_id: str, num_tokens: int, rope_delta: int, outputs: dict[int, list[int]]
    ) -> KVRef:
        raise AssertionError("nothing is open")

    def release(self, request_id: str, reason: str) -> None:
        pass

    def fetch(self, ref: KVRef, num_blocks: int) -> KVLoad:
        raise IncompatiblePeer(
            "this worker has no KV connector and cannot fetch KV: set --kv-transfer-config"
        )

    def poll(self) -> list[str]:
        return []

    def close(self) -> None:
        pass

    def check_integrity(self) -> list[str]:
        return []
