"""EC over shared storage, in vLLM's layout: `{root}/{mm_hash}/encoder_cache.safetensors`.

A file appears complete, by rename, and never changes; its checksum is verified on reading. Beside
it lie the name of the instance that answers for it (`.owner`) and a mark for every request that it
is kept for (see `lease_files`). Entries of an instance that died are taken over by the next one
that starts.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.base import EC_TENSOR, Changed, ECConnector, ECLoad, Tensors, no_listener
from connectors.base import Entry as NewEntry
from connectors.ec import file_format
from connectors.ec.file_load import FileLoad
from connectors.ec.folders import FILE_NAME, Folders
from connectors.ec.lease_files import LeaseFiles, kept_in, short
from connectors.meter import Meter, TransferStats
from protocol.errors import InvalidRequest, TransferError

__all__ = ["FILE_NAME", "FileEC", "FileStoreOptions"]
_LOOKS = 64
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class FileStoreOptions:
    """`capacity` in bytes bounds what this instance answers for; `lease_s` how long an entry is
    kept for a request; `load_timeout_s` how long a consumer waits for an entry. `load_unchecked`:
    take files without a checksum, which other engines write."""

    root: Path
    capacity: int
    load_timeout_s: float
    lease_s: float
    load_unchecked: bool = False


@dataclass
class _Entry:
    """`size` on disk in bytes; `holders`: for which requests it is kept, and until when."""

    size: int
    params: dict[str, Any]
    holders: dict[str, float] = field(default_factory=dict)


class FileEC(ECConnector):
    def __init__(self, options: FileStoreOptions, changed: Changed = no_listener) -> None:
        """`changed` is told at once of what is taken over from writers that died."""
        self._changed = changed
        self.meter = Meter("ec", "shared_storage")
        self._options = options
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0
        self._looked = 0
        self.lapsed = 0
        self.evictions = 0
        self._folders = Folders(options.root)
        # What is swept stood for a lease, or for a load that waits: it stays for the longer.
        self._lease_files = LeaseFiles(options.root, max(options.lease_s, options.load_timeout_s))
        self._adopt()

    def _adopt(self) -> None:
        for mm_hash in self._folders.left():
            adopted = self._folders.adopt(mm_hash)
            if adopted is not None:
                tensors, size = adopted
                self._record(mm_hash, _Entry(size, _params(tensors)))

    def check_name(self, mm_hash: str) -> None:
        if not _NAME.fullmatch(mm_hash):
            raise InvalidRequest(
                f"mm_hash: '{mm_hash[:64]}' is not the name of a media item", param="mm_hash"
            )

    def offer(self, mm_hash: str, entry: NewEntry) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, None)

    def wanted(self, mm_hash: str) -> bool:
        return self._lease_files.wanted(mm_hash)

    def swap(
        self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry]
    ) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, left)

    def _put(
        self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry] | None
    ) -> dict[str, Any] | None:
        """`left` takes what is pushed out although a request needs it."""
        self.check_name(mm_hash)
        if not self._holds(mm_hash):
            size = sum(tensor.nbytes for tensor in entry.tensors.values())
            if size > self._options.capacity:
                raise TransferError(
                    f"media item {mm_hash[:16]} needs {size} bytes, more than the EC "
                    "store holds: raise ec_buffer_size"
                )
            if not self._make_room(size) and (left is None or not self._push_out(size, left)):
                return None
            stored = self._folders.save(mm_hash, entry.tensors)
            self._record(mm_hash, _Entry(stored, _params(entry.tensors)))
        for holder in entry.holders:
            self._keep(mm_hash, holder, entry.deadlines.get(holder))
        return self._entries[mm_hash].params

    def _holds(self, mm_hash: str) -> bool:
        """Whether an entry is there; another instance may have removed it."""
        if mm_hash in self._entries and not self._folders.exists(mm_hash):
            self._forget(mm_hash)
        return mm_hash in self._entries

    def _fits(self, size: int) -> bool:
        return self._size + size <= self._options.capacity

    def _make_room(self, size: int) -> bool:
        """In a large store the marks of some entries are looked at, of others the next time."""
        for mm_hash in list(self._entries)[self._looked :][:_LOOKS]:
            if self._fits(size):
                break
            self._looked += 1
            if not self._pinned(mm_hash):
                self._looked -= 1
                self.evictions += 1
                self._remove(mm_hash)
        if self._fits(size) or self._looked >= len(self._entries):
            self._looked = 0
        return self._fits(size)

    def _push_out(self, size: int, left: dict[str, NewEntry]) -> bool:
        """Make room with entries that requests still need, least recently used first."""
        for mm_hash in list(self._entries):
            if self._fits(size):
                break
            holders = self._entries[mm_hash].holders
            self._forget(mm_hash)
            with self._folders.taken_away(mm_hash) as folder:
                if folder is None:
                    # Another instance answers for it by now; here it takes up no more room.
                    continue
                marks = kept_in(folder)
                still = {name: until for name, until in holders.items() if short(name) in marks}
                # A damaged one is gone: it is encoded again if a request asks for it.
                with contextlib.suppress(TransferError):
                    tensors = file_format.load(folder / FILE_NAME)
                    left[mm_hash] = NewEntry(tensors, tuple(still), still)
        return self._fits(size)

    def _pinned(self, mm_hash: str) -> bool:
        """Whether an entry is kept for a request whose mark is still there; requests that another
        instance keeps it for count from when their marks are first seen."""
        holders, now = self._entries[mm_hash].holders, time.monotonic()
        marks = self._lease_files.kept(mm_hash)
        for mark in marks - {short(holder) for holder in holders}:
            holders[mark] = now + self._options.lease_s
        for holder, until in list(holders.items()):
            if until <= now or short(holder) not in marks:
                self.lapsed += short(holder) in marks
                self._lease_files.lapse(mm_hash, holder)
                del holders[holder]
        return bool(holders)

    def _record(self, mm_hash: str, entry: _Entry) -> None:
        self._entries[mm_hash] = entry
        self._size += entry.size
        self._changed(mm_hash, entry.params["shape"][0], entry.size)

    def _forget(self, mm_hash: str) -> None:
        self._size -= self._entries.pop(mm_hash).size
        self._changed(mm_hash, 0, 0)

    def _keep(self, mm_hash: str, holder: str, until: float | None = None) -> None:
        """`until` if its lease has begun before."""
        self._entries.move_to_end(mm_hash)
        now = time.monotonic()
        until = now + self._options.lease_s if until is None else until
        if until <= now:
            self.lapsed += 1
        elif self._lease_files.keep(mm_hash, holder):
            self._entries[mm_hash].holders[holder] = until

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        held = self._holds(mm_hash)
        self.meter.asked(hit=held)
        if not held:
            return None
        self._keep(mm_hash, holder)
        return self._entries[mm_hash].params

    def fetch(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        self.check_name(mm_hash)
        deadline = time.monotonic() + self._options.load_timeout_s
        path, unchecked = self._folders.file(mm_hash), self._options.load_unchecked
        return FileLoad(path, self._lease_files, deadline, self.meter, unchecked=unchecked)

    def release(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        self.check_name(mm_hash)
        self._lease_files.done(mm_hash, holder)

    def poll(self, pending: Container[str] = ()) -> None:
        self._lease_files.sweep()

    def _remove(self, mm_hash: str) -> None:
        self._forget(mm_hash)
        self._folders.remove(mm_hash)

    @property
    def awaited(self) -> int:
        return sum(map(self._pinned, list(self._entries)))

    def stats(self) -> TransferStats:
        return self.meter.snapshot(
            leases_expired=self.lapsed, bytes_held=self._size, evictions=self.evictions
        )

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._remove(mm_hash)

    def close(self) -> None:
        """Remove this instance's entries, and the marks if no other instance is there."""
        self.clear()
        if self._folders.close():
            self._lease_files.clear()

    def check_integrity(self) -> list[str]:
        missing = [name for name in self._entries if self._folders.lost(name)]
        problems = [f"the EC file of media item {name[:16]} was removed" for name in missing]
        total = sum(entry.size for entry in self._entries.values())
        if total != self._size:
            problems.append(f"EC files have {total} bytes in all, {self._size} are accounted for")
        return problems


def _params(tensors: Tensors) -> dict[str, Any]:
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"size_bytes": size, "shape": list(tensors[EC_TENSOR].shape)}
