"""What consumers and encoders tell each other beside embeddings on shared storage: empty files.

`{mm_hash}/.kept-…`   the entry is kept for a request, whose consumer takes the mark away
`.done-{mm_hash}.…`   a request was done with an entry before the encoder heard of the request
`.want/{mm_hash}.…`   a consumer waits for an entry that is not there
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from pathlib import Path

from blake3 import blake3

from connectors.owners import is_there

_KEPT = ".kept-"
_DONE = ".done-"
_WANT = ".want"
_SWEEP_S = 5.0
_TRIES = 3
_SHORT = re.compile(r"[0-9a-f]{32}")


def short(holder: str) -> str:
    """A request's name in marks, which stands for itself."""
    if _SHORT.fullmatch(holder):
        return holder
    return blake3(holder.encode()).hexdigest()[:32]


class LeaseFiles:
    """Those below `root`. What is not taken away goes `longest_s` after it was first seen here: no
    two clocks need to agree."""

    def __init__(self, root: Path, longest_s: float) -> None:
        self._root = root
        self._longest_s = longest_s
        self._next_sweep = 0.0
        self._seen: dict[Path, float] = {}
        self._wanted: set[str] | None = None

    def kept(self, mm_hash: str) -> set[str]:
        """The requests, by short name, that an entry of any instance is kept for."""
        return kept_in(self._root / mm_hash)

    def keep(self, mm_hash: str, holder: str) -> bool:
        """Keep an entry for a request; False if that was done with it before, or the disk is
        full.

        The mark is there before it is seen whether the request was done, and `done` looks in the
        other order: the second of the two sees the first.
        """
        kept, done = self._kept(mm_hash, holder), self._done(mm_hash, holder)
        try:
            kept.touch()
        except OSError:
            drop(done)
            return False
        if is_there(done):
            drop(done)
            drop(kept)
            return False
        return True

    def lapse(self, mm_hash: str, holder: str) -> None:
        """A request is not waited for any more."""
        drop(self._kept(mm_hash, holder))

    def done(self, mm_hash: str, holder: str) -> None:
        """A request does not need an entry any more."""
        kept, done = self._kept(mm_hash, holder), self._done(mm_hash, holder)
        with contextlib.suppress(OSError):
            kept.unlink()
            return
        with contextlib.suppress(OSError):
            # The entry may have been kept since the first look. If it was not, the second one fails
            # and leaves the mark to a `keep` that comes later.
            done.touch()
            kept.unlink()
            done.unlink()

    def _kept(self, mm_hash: str, holder: str) -> Path:
        return self._root / mm_hash / f"{_KEPT}{short(holder)}"

    def _done(self, mm_hash: str, holder: str) -> Path:
        return self._root / f"{_DONE}{mm_hash}.{short(holder)}"

    def want(self, mm_hash: str) -> Path | None:
        """A new mark of a consumer that waits, which is the consumer's to remove; None if the disk
        is full."""
        path = self._root / _WANT / f"{mm_hash}.{uuid.uuid4().hex}"
        for _ in range(_TRIES):  # the last instance that ends may remove the folder at this moment
            with contextlib.suppress(OSError):
                path.parent.mkdir(exist_ok=True)
                path.touch()
                return path
        return None

    def wanted(self, mm_hash: str) -> bool:
        """Whether a consumer waits for an entry, or did when this was first asked after `sweep`."""
        if self._wanted is None:
            self._wanted = {name.partition(".")[0] for name in _names(self._root / _WANT)}
        return mm_hash in self._wanted

    def sweep(self) -> None:
        """Look anew; now and then, remove what was left by requests that never came and readers
        that died."""
        self._wanted = None
        now = time.monotonic()
        if now < self._next_sweep:
            return
        self._next_sweep = now + _SWEEP_S
        self._seen = {path: self._seen.get(path, now) for path in self._waiting()}
        for path in [path for path, seen in self._seen.items() if now - seen > self._longest_s]:
            drop(path)

    def _waiting(self) -> list[Path]:
        want = self._root / _WANT
        done = [name for name in _names(self._root) if name.startswith(_DONE)]
        return [self._root / name for name in done] + [want / name for name in _names(want)]

    def clear(self) -> None:
        """Remove what no instance is there for."""
        for path in self._waiting():
            drop(path)
        with contextlib.suppress(OSError):
            (self._root / _WANT).rmdir()


def kept_in(folder: Path) -> set[str]:
    """The requests, by short name, that the entry in a folder is kept for."""
    return {name.removeprefix(_KEPT) for name in _names(folder) if name.startswith(_KEPT)}


def drop(path: Path) -> None:
    """Remove a mark or a file, if that can be done."""
    with contextlib.suppress(OSError):
        path.unlink()


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
