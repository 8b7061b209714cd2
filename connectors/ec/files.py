"""EC over shared storage, in vLLM's layout: `{root}/{mm_hash}/encoder_cache.safetensors`.

A file appears complete, by rename, and never changes; its checksum is verified on reading. Beside
it lie the name of the instance that answers for it (`.owner`) and a mark for every request that it
is kept for (`.kept-…`), which the consumer takes away. Entries of an instance that died are taken
over by the next one that starts.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from connectors.base import EC_TENSOR, ECConnector, ECLoad, Tensors
from connectors.base import Entry as NewEntry
from connectors.ec import file_format
from connectors.meter import Meter, TransferStats
from connectors.owners import LIVE, Owner
from protocol.errors import InvalidRequest, TransferError, TransferTimeout

FILE_NAME = "encoder_cache.safetensors"
_OWNER = ".owner"
_KEPT = ".kept-"
_WANT = ".want-"
_DONE = ".done-"
_SWEEP_S = 5.0
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True)
class FileStoreOptions:
    """`capacity` in bytes bounds what this instance answers for; `lease_s` how long an entry is
    kept for a request; `load_timeout_s` how long a consumer waits for an entry."""

    root: Path
    capacity: int
    load_timeout_s: float
    lease_s: float


@dataclass
class _Entry:
    """`size` on disk in bytes; `holders`: for which requests it is kept, and until when."""

    size: int
    params: dict[str, Any]
    holders: dict[str, float] = field(default_factory=dict)


class FileEC(ECConnector):
    def __init__(self, options: FileStoreOptions) -> None:
        self.meter = Meter("ec", "shared_storage")
        self._options = options
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0
        self._next_sweep = 0.0
        self._seen: dict[Path, float] = {}
        self.lapsed = 0
        self.evictions = 0
        options.root.mkdir(parents=True, exist_ok=True)
        self._owner = Owner(options.root)
        self._adopt()

    def _adopt(self) -> None:
        """Answer for what dead instances left, oldest first."""
        found = []
        for path in self._options.root.glob(f"*/{FILE_NAME}"):
            with contextlib.suppress(OSError):
                owner = (path.parent / _OWNER).read_text()
                if not self._owner.alive(owner):
                    stat = path.stat()
                    found.append((stat.st_mtime, path.parent.name, stat.st_size))
        for _, name, size in sorted(found):
            with contextlib.suppress(TransferError, OSError, KeyError):
                tensors = file_format.load(self._path(name))
                (self._path(name).parent / _OWNER).write_text(self._owner.name)
                self._record(name, _Entry(size, _params(tensors)))

    def check_name(self, mm_hash: str) -> None:
        if not _NAME.fullmatch(mm_hash):
            raise InvalidRequest(f"'{mm_hash[:64]}' cannot name a media item", param="mm_hash")

    def _path(self, mm_hash: str) -> Path:
        self.check_name(mm_hash)
        return self._options.root / mm_hash / FILE_NAME

    def put(self, mm_hash: str, entry: NewEntry) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, None)

    def wanted(self, mm_hash: str) -> bool:
        named = _NAME.fullmatch(mm_hash) is not None
        return named and any(self._options.root.glob(f"{_WANT}{mm_hash}.*"))

    def swap(
        self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry]
    ) -> dict[str, Any] | None:
        return self._put(mm_hash, entry, left)

    def _put(
        self, mm_hash: str, entry: NewEntry, left: dict[str, NewEntry] | None
    ) -> dict[str, Any] | None:
        """`left` takes what is pushed out although it is kept for somebody."""
        path = self._path(mm_hash)
        if mm_hash not in self._entries:
            size = sum(tensor.nbytes for tensor in entry.tensors.values())
            if size > self._options.capacity:
                raise TransferError(f"media item {mm_hash[:16]}: {size} bytes exceed the EC store")
            if not self._make_room(size) and (left is None or not self._push_out(size, left)):
                return None
            stored = file_format.save(path, entry.tensors)
            with contextlib.suppress(OSError):
                (path.parent / _OWNER).write_text(self._owner.name)
            self._record(mm_hash, _Entry(stored, _params(entry.tensors)))
        for holder in entry.holders:
            self._keep(mm_hash, holder)
        return self._entries[mm_hash].params

    def _make_room(self, size: int) -> bool:
        for mm_hash in list(self._entries):
            if self._size + size <= self._options.capacity:
                break
            if not self._pinned(mm_hash):
                self.evictions += 1
                self._remove(mm_hash)
        return self._size + size <= self._options.capacity

    def _push_out(self, size: int, left: dict[str, NewEntry]) -> bool:
        """Make room with entries that are kept for somebody, least recently used first."""
        for mm_hash in list(self._entries):
            if self._size + size <= self._options.capacity:
                break
            with contextlib.suppress(TransferError):
                tensors = file_format.load(self._path(mm_hash))
                left[mm_hash] = NewEntry(tensors, tuple(self._entries[mm_hash].holders))
            self._remove(mm_hash)
        return self._size + size <= self._options.capacity

    def _pinned(self, mm_hash: str) -> bool:
        """Whether an entry is kept for somebody, whose mark is still there."""
        entry, now = self._entries[mm_hash], time.monotonic()
        for holder, until in list(entry.holders.items()):
            mark = self._mark(mm_hash, holder)
            if until <= now or not mark.exists():
                self.lapsed += mark.exists()
                mark.unlink(missing_ok=True)
                del entry.holders[holder]
        return bool(entry.holders)

    def _mark(self, mm_hash: str, holder: str) -> Path:
        return self._path(mm_hash).with_name(f"{_KEPT}{_short(holder)}")

    def _done(self, mm_hash: str, holder: str) -> Path:
        """Says that a request was done with an entry before the encoder heard of the request."""
        return self._options.root / f"{_DONE}{mm_hash}.{_short(holder)}"

    def _record(self, mm_hash: str, entry: _Entry) -> None:
        self._entries[mm_hash] = entry
        self._size += entry.size
        self.changed(mm_hash, entry.params["shape"][0], entry.size)

    def _forget(self, mm_hash: str) -> None:
        self._size -= self._entries.pop(mm_hash).size
        self.changed(mm_hash, 0, 0)

    def _keep(self, mm_hash: str, holder: str) -> None:
        self._entries.move_to_end(mm_hash)
        done = self._done(mm_hash, holder)
        if done.exists():
            done.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):
            self._mark(mm_hash, holder).touch()
            until = time.monotonic() + self._options.lease_s
            self._entries[mm_hash].holders[holder] = until

    def find(self, mm_hash: str, holder: str) -> dict[str, Any] | None:
        if mm_hash in self._entries and not self._path(mm_hash).exists():
            self._forget(mm_hash)
        self.meter.asked(hit=mm_hash in self._entries)
        if mm_hash not in self._entries:
            return None
        self._keep(mm_hash, holder)
        return self._entries[mm_hash].params

    def get(self, mm_hash: str, params: dict[str, Any] | None) -> ECLoad:
        want = self._options.root / f"{_WANT}{mm_hash}.{uuid.uuid4().hex[:16]}"
        deadline = time.monotonic() + self._options.load_timeout_s
        return _FileLoad(self._path(mm_hash), want, deadline, self.meter)

    def forget(self, mm_hash: str, params: dict[str, Any] | None, holder: str) -> None:
        try:
            self._mark(mm_hash, holder).unlink()
        except OSError:
            with contextlib.suppress(OSError):
                self._done(mm_hash, holder).touch()

    def poll(self) -> None:
        """Now and then, remove what was left by requests that never came and readers that died.

        Marks age from when they were first seen here: no two clocks need to agree.
        """
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_S
        longest_s = max(self._options.lease_s, self._options.load_timeout_s)
        marks = [path for kind in (_DONE, _WANT) for path in self._options.root.glob(f"{kind}*")]
        self._seen = {path: self._seen.get(path, now) for path in marks}
        for path in [path for path, seen in self._seen.items() if now - seen > longest_s]:
            path.unlink(missing_ok=True)

    def _remove(self, mm_hash: str) -> None:
        """Forget an entry, and remove its folder unless another writer has taken it over."""
        self._forget(mm_hash)
        folder = self._path(mm_hash).parent
        with contextlib.suppress(OSError):
            if (folder / _OWNER).read_text() == self._owner.name:
                shutil.rmtree(folder, ignore_errors=True)

    def stats(self) -> TransferStats:
        return self.meter.snapshot(
            leases_expired=self.lapsed, bytes_held=self._size, evictions=self.evictions
        )

    def clear(self) -> None:
        for mm_hash in list(self._entries):
            self._remove(mm_hash)

    def close(self) -> None:
        """Remove this instance's entries, and the marks if nobody else is there."""
        self.clear()
        self._owner.close()
        if not any(self._options.root.glob(f"{LIVE}*")):
            for pattern in (f"{_DONE}*", f"{_WANT}*"):
                for path in self._options.root.glob(pattern):
                    path.unlink(missing_ok=True)

    def check_integrity(self) -> list[str]:
        missing = [name for name in self._entries if not self._path(name).exists()]
        problems = [f"EC file of {name[:16]} is gone" for name in missing]
        total = sum(entry.size for entry in self._entries.values())
        if total != self._size:
            problems.append(f"EC files sum to {total} bytes, books say {self._size}")
        return problems


def _params(tensors: Tensors) -> dict[str, Any]:
    size = sum(tensor.nbytes for tensor in tensors.values())
    return {"size_bytes": size, "shape": list(tensors[EC_TENSOR].shape)}


def _short(holder: str) -> str:
    return blake3(holder.encode()).hexdigest()[:32]


class _FileLoad(ECLoad):
    """Waits for a file to appear; until then a file of the name `want` says that it does."""

    def __init__(self, path: Path, want: Path, deadline: float, meter: Meter) -> None:
        self._path = path
        self._meter = meter
        self._want = want
        self._deadline = deadline
        self._done = False
        if not path.exists():
            with contextlib.suppress(OSError):
                want.touch()

    def poll(self) -> Tensors | None:
        if self._path.exists():
            begun = time.monotonic()
            try:
                tensors = file_format.load(self._path)
            except TransferError:
                if not self._path.exists():
                    return None  # evicted at this moment
                self._path.unlink(missing_ok=True)  # so that it is made again
                raise
            self.cancel()
            size = sum(tensor.nbytes for tensor in tensors.values())
            self._meter.moved(size, time.monotonic() - begun)
            return tensors
        if time.monotonic() > self._deadline:
            name = self._path.parent.name[:16]
            raise TransferTimeout(f"no embedding for media item {name} in time")
        return None

    def cancel(self) -> None:
        if not self._done:
            self._done = True
            self._want.unlink(missing_ok=True)
