"""One embedding on its way from shared storage."""

from __future__ import annotations

import time
from pathlib import Path

from connectors.base import ECLoad, Tensors
from connectors.ec import file_format
from connectors.ec.folders import answered_for
from connectors.ec.lease_files import LeaseFiles, drop
from connectors.meter import Meter
from connectors.owners import is_there
from protocol.errors import TransferError, TransferTimeout


class FileLoad(ECLoad):
    """Waits for a file to appear, and says so until then."""

    def __init__(
        self,
        path: Path,
        lease_files: LeaseFiles,
        deadline: float,
        meter: Meter,
        *,
        unchecked: bool = False,
    ) -> None:
        """`unchecked` as of `file_format.load`."""
        self._path = path
        self._unchecked = unchecked
        self._lease_files = lease_files
        self._deadline = deadline
        self._meter = meter
        self._want: Path | None = None
        self._ask()

    def _ask(self) -> None:
        if self._want is None and not is_there(self._path):
            self._want = self._lease_files.want(self._path.parent.name)

    def _stored(self) -> bool:
        try:
            return self._path.exists()
        except OSError as error:
            name = self._path.parent.name[:16]
            raise TransferError(f"EC file {name} cannot be looked at: {error}") from error

    def poll(self) -> Tensors | None:
        if self._stored():
            return self._read()
        if time.monotonic() > self._deadline:
            name = self._path.parent.name[:16]
            raise TransferTimeout(f"no encoder stored the embedding of media item {name} in time")
        # Not done yet if the file was there until now, or the disk was full.
        self._ask()
        return None

    def _read(self) -> Tensors | None:
        begun = time.monotonic()
        try:
            tensors = file_format.load(self._path, unchecked=self._unchecked)
        except file_format.CorruptFile:
            # Ours, so that it is made again. Another engine may be writing its own at this moment,
            # and may end where one is gone that it has seen.
            if answered_for(self._path):
                drop(self._path)
            raise
        except TransferError:
            if not self._stored():
                return None  # evicted at this moment
            raise
        self.cancel()
        size = sum(tensor.nbytes for tensor in tensors.values())
        self._meter.moved(size, time.monotonic() - begun)
        return tensors

    def cancel(self) -> None:
        if self._want is not None:
            drop(self._want)
            self._want = None
