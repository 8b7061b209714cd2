"""The folders of embeddings on shared storage: one for each entry, with its file and the name of
the instance that answers for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from connectors.base import Tensors
from connectors.ec import file_format
from connectors.ec.lease_files import drop
from connectors.owners import Owner, is_there
from protocol.errors import TransferError

FILE_NAME = "encoder_cache.safetensors"
_OWNER = ".owner"
_TRIES = 100


class Folders:
    """Those below `root`, for an instance that writes some of them."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._owner = Owner(root)

    def file(self, mm_hash: str) -> Path:
        return self._root / mm_hash / FILE_NAME

    def exists(self, mm_hash: str) -> bool:
        return is_there(self.file(mm_hash))

    def left(self) -> list[str]:
        """The entries of instances that died, oldest first."""
        found = []
        # A folder whose name begins with a dot is an entry that is being removed.
        for owner in self._root.glob(f"[!.]*/{_OWNER}"):
            with contextlib.suppress(OSError, ValueError):
                if not self._owner.alive(owner.read_text()):
                    found.append((owner.stat().st_mtime, owner.parent.name))
        return [name for _, name in sorted(found)]

    def adopt(self, mm_hash: str) -> tuple[Tensors, int] | None:
        """Answer for an entry of an instance that died: its tensors, and its size on disk in bytes.
        None if it is of no use, when it is removed, if another engine has written its file anew, if
        it cannot be read now, or if the disk is full."""
        try:
            tensors = file_format.load(self.file(mm_hash))
            self._claim(self._root / mm_hash)
            return tensors, self.file(mm_hash).stat().st_size
        except (TransferError, OSError) as error:
            if isinstance(error, file_format.CorruptFile) or _gone(self.file(mm_hash)):
                shutil.rmtree(self._root / mm_hash, ignore_errors=True)
            return None

    def save(self, mm_hash: str, tensors: Tensors) -> int:
        """The size in bytes of the entry's file, whose owner is written down before it appears.
        `TransferError` if the disk does not take it."""
        folder, temporary = self._root / mm_hash, self._owner.temporary()
        try:
            size = file_format.save(temporary, tensors)
            for _ in range(_TRIES):  # another writer may be removing the folder at this moment
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    folder.mkdir(exist_ok=True)
                    self._claim(folder)
                    temporary.replace(folder / FILE_NAME)
                    return size
        except OSError as error:
            raise TransferError(f"media item {mm_hash[:16]} cannot be written: {error}") from error
        finally:
            drop(temporary)
        raise TransferError(
            f"another process keeps removing the EC folder of media item {mm_hash[:16]}"
        )

    def _claim(self, folder: Path) -> None:
        """Answer for an entry from here on."""
        temporary = self._owner.temporary()
        try:
            # Renamed into place, so that no instance reads half a name.
            temporary.write_text(self._owner.name)
            temporary.replace(folder / _OWNER)
        except OSError:
            drop(temporary)
            with contextlib.suppress(OSError):
                folder.rmdir()  # if it was made for this
            raise

    def remove(self, mm_hash: str) -> None:
        """Remove an entry, unless another writer has taken it over."""
        with self.taken_away(mm_hash):
            pass

    @contextlib.contextmanager
    def taken_away(self, mm_hash: str) -> Iterator[Path | None]:
        """The folder of an entry that is being removed, None if that is not ours to do. It goes in
        one piece: who writes the entry at this moment makes a folder of its own, and no marks
        change in this one."""
        folder, away = self._root / mm_hash, self._owner.temporary()
        if not self._ours(folder):
            yield None
            return
        gone = False
        with contextlib.suppress(OSError):
            folder.rename(away)
            # Looked at again: another writer may have claimed the entry just before it was moved.
            gone = self._ours(away)
            if not gone:
                away.rename(folder)
        try:
            yield away if gone else None
        finally:
            shutil.rmtree(away, ignore_errors=True)

    def _ours(self, folder: Path) -> bool:
        """Whether this instance answers for an entry that it has put. Without a name, another
        engine has made the folder since."""
        try:
            return (folder / _OWNER).read_text() == self._owner.name
        except (OSError, ValueError):
            return False

    def lost(self, mm_hash: str) -> bool:
        """Whether the file of an entry that is ours is gone, other than with the whole entry."""
        folder = self._root / mm_hash
        return _gone(self.file(mm_hash)) and is_there(folder) and self._ours(folder)

    def close(self) -> bool:
        """Write no more; whether no other instance does."""
        self._owner.close()
        return self._owner.alone()


def answered_for(file: Path) -> bool:
    """Whether an instance, which may be dead, has put the file of an entry; those of other engines
    have no name beside them."""
    return is_there(file.parent / _OWNER)


def _gone(path: Path) -> bool:
    """Whether a file is not there for certain: one that cannot be looked at may be."""
    try:
        return not path.exists()
    except OSError:
        return False
