"""How much memory a region of the shared-memory transport takes."""

import os

from connectors.transports.shared_memory import SharedMemory
from connectors.transports.shm import ShmTransport


def allocated_bytes(memory: SharedMemory) -> int:
    return os.fstat(memory.descriptor).st_blocks * 512


def committed_bytes(transport: ShmTransport, region: str) -> int:
    return allocated_bytes(transport._regions[region].memory)
