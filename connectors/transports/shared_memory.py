"""Memory in an anonymous file. A process that holds its descriptor can map it.

The file is a memfd, which is bounded by the machine's memory and by the limits of the process's
control group. A file under /dev/shm would be bounded by the size of that mount instead, which is
64 MB in a container by default.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from connectors.host_memory import MemoryBudget
from protocol.errors import ConfigError, TransferError

_GRAIN = 1 << 20  # bytes of sparse memory without larger granules that are committed together
_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
Bytes = npt.NDArray[np.uint8]


class SharedMemory:
    """`nbytes` of zeroed memory, uint8; `tensor` and `view` are the same bytes.

    `view` is for copying: slices of a tensor cost as much as copying a small block does. What is
    `sparse` takes memory only where it was committed, in pieces of `granule` bytes.
    """

    def __init__(self, nbytes: int, budget: MemoryBudget, *, sparse: bool, granule: int) -> None:
        self._budget = budget
        self._grain = granule if granule >= mmap.PAGESIZE else _GRAIN
        self._committed = np.full(-(-nbytes // self._grain), not sparse)
        self.descriptor = _anonymous_file()
        try:
            # Asked first: what exceeds a control group is not refused by the kernel, which kills.
            if not sparse and not budget.allows(nbytes):
                raise ConfigError(f"shm: cannot allocate {nbytes} bytes: less memory is free")
            os.truncate(self.descriptor, nbytes)
            if not sparse:
                # A page that cannot be had is an error here, and a signal where it is first used.
                os.posix_fallocate(self.descriptor, 0, nbytes)
            # With a fixed size, no reader can touch a page beyond the end, which is a bus error.
            with contextlib.suppress(OSError):  # a plain file has no seals
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SIZE_SEALS)
            self.view: Bytes = np.frombuffer(mmap.mmap(self.descriptor, nbytes), np.uint8)
        except (OSError, ValueError) as error:
            os.close(self.descriptor)
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"shm: cannot allocate {nbytes} bytes: {reason}") from None
        except ConfigError:
            os.close(self.descriptor)
            raise
        self.tensor = torch.from_numpy(self.view)

    def commit(self, offset: int, size: int) -> None:
        """Give a range memory. `TransferError` if none is left."""
        first, end = offset // self._grain, -(-(offset + size) // self._grain)
        if self._committed[first:end].all():
            return  # asking the kernel again takes a quarter of the time that filling it does
        start = first * self._grain
        stop = min(end * self._grain, self.view.size)
        if self._take(start, stop - start):
            self._committed[first:end] = True
        # Too little for the neighbours that may come: just what is asked for.
        elif not self._take(offset, size):
            raise TransferError(f"shm: cannot allocate {size} bytes")

    def _take(self, offset: int, size: int) -> bool:
        if not self._budget.allows(size):
            return False
        try:
            os.posix_fallocate(self.descriptor, offset, size)
        except OSError:
            return False
        return True

    def discard(self, offset: int, size: int) -> None:
        """Give back what lies in pages that are all in the range, or keep it if that fails."""
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first >= end:
            return
        # The mapping takes a descriptor of its own, and there may be none left.
        with contextlib.suppress(OSError):
            # Through a mapping, as Python has no call to punch a hole into a file.
            with mmap.mmap(self.descriptor, end - first, offset=first) as pages:
                pages.madvise(mmap.MADV_REMOVE)
            self._committed[first // self._grain : -(-end // self._grain)] = False

    def reader_descriptor(self) -> int:
        """A new descriptor of the same file that allows reading only; the caller closes it.

        `ConfigError` if this process may open no more files.
        """
        try:
            # Opened anew: a duplicate could write, as ours can.
            return os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"shm: cannot open shared memory: {error.strerror}") from None

    def close(self) -> None:
        """Close the descriptor; memory that is mapped stays until nothing refers to it."""
        os.close(self.descriptor)


def map_for_reading(descriptor: int, nbytes: int) -> tuple[torch.Tensor, Bytes]:
    """Another process's memory as a tensor and as an array, uint8[nbytes], not writable.

    `TransferError` if the file has another size, or its owner could still cut it shorter.
    """
    try:
        if os.fstat(descriptor).st_size != nbytes or nbytes <= 0:
            raise TransferError(
                f"shm: the region's memory has {os.fstat(descriptor).st_size} bytes, "
                f"its description says {nbytes}"
            )
        if not _size_is_fixed(descriptor):
            raise TransferError("shm: the region's memory is not sealed against truncation")
        array: Bytes = np.frombuffer(
            mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ), dtype=np.uint8
        )
    except (OSError, ValueError) as error:
        raise TransferError(f"shm: the memory cannot be mapped: {error}") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no tensors that are read-only
        return torch.from_numpy(array), array


def _size_is_fixed(descriptor: int) -> bool:
    """True for a file that cannot be sealed too: an owner without memfd has no other. On tmpfs such
    a file says so by a seal, elsewhere by an error."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
        return bool(seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL))
    except OSError:
        return True


def _anonymous_file() -> int:
    """The descriptor of a memfd or, where the kernel or a sandbox has none, of a nameless file in
    the folder for temporary files, which is bounded by that file system."""
    with contextlib.suppress(OSError, AttributeError):
        return os.memfd_create("triptych", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        descriptor, path = tempfile.mkstemp(prefix="triptych-")
    except OSError as error:
        raise ConfigError(
            f"shm: neither memfd nor a temporary file can be opened: {error}"
        ) from None
    Path(path).unlink()
    return descriptor
