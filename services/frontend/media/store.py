"""Media that are kept: bytes of requests under way, in memory up to a bound and beyond it in files
that have no name; and what a client may refer to by its uuid instead of sending it again.
"""

from __future__ import annotations

import mmap
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import cast

from protocol.errors import Unavailable
from services.frontend.families import Extent


class MediaStore:
    """Bytes stay readable for as long as a caller holds what `keep` gave, then they are freed.

    Above `memory_bytes` in all they are written to unlinked files of `folder` (None: the system's
    place for temporary files) and mapped, so that the kernel may take their memory back.
    """

    def __init__(self, memory_bytes: int, folder: Path | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._lock = RLock()  # the collector may end a view within `keep`
        self.in_memory = 0
        self.in_files = 0

    def keep(self, data: bytes) -> bytes:
        """A view of the same bytes. Raises `Unavailable` if they fit neither place."""
        with self._lock:
            small = self.in_memory + len(data) <= self._memory_bytes
            if small:
                self.in_memory += len(data)
            else:
                self.in_files += len(data)
        # A view in both cases: `bytes` take no weak reference, which tells when they may go.
        view = memoryview(data) if small else self._filed(data)
        # Who holds the view last is not known here: pipelines and retries share it.
        weakref.finalize(view, self._gone, len(data), small).atexit = False
        return cast(bytes, view)

    def _filed(self, data: bytes) -> memoryview:
        try:
            with tempfile.TemporaryFile(dir=self._folder, prefix="media-") as file:
                file.write(data)
                file.flush()
                # The file has no name: its blocks are free once the mapping is gone, also after a
                # crash.
                return memoryview(mmap.mmap(file.fileno(), len(data), prot=mmap.PROT_READ))
        except OSError as error:
            self._gone(len(data), small=False)
            raise Unavailable(
                f"media cannot be stored: {error.strerror} (--media-spill-path)"
            ) from None

    def _gone(self, size: int, small: bool) -> None:
        with self._lock:
            if small:
                self.in_memory -= size
            else:
                self.in_files -= size


_Name = tuple[str, str, Hashable]


@dataclass(frozen=True)
class KnownMedia:
    mm_hash: str
    extent: Extent


class ReferenceBook:
    """The last `capacity` items by cache salt, uuid and form: one tenant cannot name another's, and
    a picture of another size is another picture. `form`: the kind, and what becomes of it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: OrderedDict[_Name, KnownMedia] = OrderedDict()

    def remember(self, salt: str, uuid: str, media: KnownMedia, form: Hashable) -> None:
        self._known[salt, uuid, form] = media
        self._known.move_to_end((salt, uuid, form))
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    def find(self, salt: str, uuid: str, form: Hashable) -> KnownMedia | None:
        media = self._known.get((salt, uuid, form))
        if media is not None:
            self._known.move_to_end((salt, uuid, form))
        return media
