"""Which library lies beneath a transport."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench_transport.raw.base import Raw
from benchmarks.bench_transport.raw.files import RawFiles
from benchmarks.bench_transport.raw.nixl_agent import RawNixl
from benchmarks.bench_transport.raw.shm import RawShm
from benchmarks.bench_transport.raw.ucx_worker import RawUcx


def make(transport: str, folder: Path, nbytes: int) -> Raw:
    """The library beneath a transport, with the settings that the transport gives it."""
    if transport == "shm":
        return RawShm(folder, nbytes)
    if transport == "shared_storage":
        return RawFiles(folder, nbytes)
    if transport == "nixl":
        from connectors.transports.nixl_agent import PROGRESS_DELAY_US

        return RawNixl(nbytes, PROGRESS_DELAY_US)
    from connectors.transports import ucx_settings

    return RawUcx(nbytes, ucx_settings.settings("127.0.0.1"), *ucx_settings.load())
