"""A transport: `--kv-transfer-config logged_shm`, `--ec-transfer-config logged_shm`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from connectors.config import ECConfig, KVConfig
from connectors.transports.base import Range, Transfer
from connectors.transports.shm import ShmTransport

logger = logging.getLogger(__name__)


class LoggedShm(ShmTransport):
    """Shared memory that logs what is read; a transport of its own is a subclass of
    `connectors.transports.base.Transport`."""

    name = "logged_shm"

    def __init__(self, instance_id: str, config: ECConfig | KVConfig) -> None:
        """`instance_id` is unique in the fleet; `config` is what the worker's flag says."""
        super().__init__(Path(config.path), instance_id)

    def view(self, peer: str, region: str, offset: int, size: int) -> torch.Tensor:
        logger.info("%d bytes of %s are read from %s", size, region, peer)
        return super().view(peer, region, offset, size)

    def read(self, peer: str, region: str, ranges: Sequence[Range]) -> Transfer:
        nbytes = sum(one.size for one in ranges)
        logger.info("%d bytes of %s are read from %s", nbytes, region, peer)
        return super().read(peer, region, ranges)
