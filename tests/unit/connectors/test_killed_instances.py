"""What killed instances leave in a folder goes, and nothing of living ones does."""

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.transports.files import FilesTransport
from connectors.transports.shm import ShmTransport
from protocol.errors import ConfigError
from tests.support.ec_folders import arrived, entry, store
from tests.support.forked import die, killed, left

_NOBODY = 65534


def die_writing(root: Path) -> None:
    from connectors.ec import file_format

    ec = store(root)

    def half(tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half of it")
        die()

    file_format.save_file = half  # type: ignore[attr-defined]
    ec.offer("a", entry(1))


def die_between(root: Path) -> None:
    """With the owner written down, and the file not there yet."""
    ec = store(root)
    moving, moved = Path.replace, list[Path]()

    def replace(path: Path, target: Path) -> Path:
        if moved:
            die()
        moved.append(path)
        return moving(path, target)

    Path.replace = replace  # type: ignore[method-assign, assignment]
    ec.offer("a", entry(1))


def die_removing(root: Path) -> None:
    import shutil

    ec = store(root)
    ec.offer("a", entry(1))
    shutil.rmtree = die  # type: ignore[assignment]
    ec.clear()


def die_reading(root: Path) -> None:
    ec = store(root)
    assert ec.fetch("nobody-has-it", None).poll() is None
    die()


@pytest.mark.parametrize("work", [die_writing, die_between, die_removing, die_reading])
def test_what_a_killed_instance_leaves_goes(tmp_path: Path, work: Callable[[Path], None]) -> None:
    killed(work, tmp_path)
    assert left(tmp_path)
    store(tmp_path).close()
    assert left(tmp_path) == []


def test_a_living_instance_keeps_its_files_while_others_start(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.offer("a", entry(1))
    half = writer._folders._owner.temporary()
    half.write_bytes(b"half of it")
    for _ in range(3):
        store(tmp_path).close()
    assert half.exists()
    assert arrived(store(tmp_path), "a")
    half.unlink()


def test_the_transport_of_a_killed_instance_is_swept_too(tmp_path: Path) -> None:
    killed(die_transporting, tmp_path)
    assert left(tmp_path)
    FilesTransport(tmp_path).close()
    assert left(tmp_path) == []


def die_transporting(root: Path) -> None:
    FilesTransport(root).allocate("kv", 4096, "cpu")
    die()


def join_as_another_user(root: Path) -> None:
    """Root may open every file; whom it becomes may not."""
    if not os.geteuid():
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    FilesTransport(root)
    die()


def test_an_instance_that_cannot_be_looked_at_is_taken_to_live() -> None:
    """Users that share a folder may not open each other's locks."""
    # Another user does not reach a folder of pytest's.
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o777)
        living = FilesTransport(root)
        living.allocate("kv", 4096, "cpu")
        (root / f".regions-{living._own.path.name.removeprefix('.regions-')}").chmod(0o777)
        (root / f".live-{living._own.path.name.removeprefix('.regions-')}").chmod(
            0o600 if not os.geteuid() else 0
        )
        killed(join_as_another_user, root)
        assert (
            root / f".regions-{living._own.path.name.removeprefix('.regions-')}" / "kv"
        ).is_dir()
        living.close()


def die_holding_a_region(root: Path) -> None:
    ShmTransport(root, "dead").allocate("kv", 4096, "cpu")
    die()


def test_a_region_of_a_dead_process_is_swept(tmp_path: Path) -> None:
    """Its memory went with it; its socket is removed by the next one that starts."""
    killed(die_holding_a_region, tmp_path)
    assert left(tmp_path)
    alive = ShmTransport(tmp_path, "alive")
    assert alive.swept == 1 and left(tmp_path) == []
    alive.allocate("kv", 4096, "cpu")
    assert ShmTransport(tmp_path, "next").swept == 0
    alive.close()
    assert left(tmp_path) == []


def test_a_region_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    transport = ShmTransport(tmp_path, "me")
    with pytest.raises(ConfigError, match="cannot allocate"):
        transport.allocate("kv", 4096, "cpu")
    assert left(tmp_path) == []
