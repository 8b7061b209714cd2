"""Embeddings on shared storage that is damaged, full, or left by a dead instance."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from connectors.ec import file_format
from connectors.ec.files import FILE_NAME
from connectors.ec.lease_files import LeaseFiles
from protocol.errors import InvalidRequest, TransferError
from tests.support.ec_folders import arrived, die_holding, entry, store
from tests.support.forked import Forked, killed
from tests.support.shortage import no_files_left


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_file_is_refused_and_made_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    writer.offer("a", entry(1))
    damage(tmp_path / "a" / FILE_NAME)
    with pytest.raises(TransferError):
        arrived(reader, "a")
    assert writer.find("a", "r") is None
    assert writer.offer("a", entry(1))
    assert torch.equal(arrived(reader, "a")["ec_cache"], entry(1).tensors["ec_cache"])
    assert writer.check_integrity() == []


def test_a_reader_without_files_left_leaves_a_good_one(tmp_path: Path) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    writer.offer("a", entry(1))
    arrived(reader, "a")
    with no_files_left(), pytest.raises(TransferError, match="cannot be read"):
        arrived(reader, "a")
    assert torch.equal(arrived(reader, "a")["ec_cache"], entry(1).tensors["ec_cache"])


@pytest.mark.parametrize("error", [OSError(errno.EIO, "an error"), MemoryError("no memory")])
def test_a_file_that_cannot_be_read_now_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """By a reader, and by an heir, which may have better luck the next time."""
    killed(die_holding, tmp_path)

    def failing(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(file_format, "safe_open", failing)
        heir = store(tmp_path)
        assert heir.find("a", "r") is None
        with pytest.raises(TransferError, match="cannot be read"):
            arrived(heir, "a")
    assert torch.equal(arrived(heir, "a")["ec_cache"], entry(1).tensors["ec_cache"])
    assert store(tmp_path).find("a", "r") is not None


def test_a_folder_of_a_dead_instance_without_a_file_is_removed(tmp_path: Path) -> None:
    killed(die_holding, tmp_path)
    (tmp_path / "a" / FILE_NAME).unlink()
    store(tmp_path)
    assert not (tmp_path / "a").exists() and (tmp_path / "b").exists()


def deny(patch: pytest.MonkeyPatch, folder: Path, *calls: str) -> None:
    """Calls of `Path` about what is in a folder are refused, as of another user."""

    def refusing(call: Callable[..., object]) -> Callable[..., object]:
        def refused(path: Path, *args: object, **options: object) -> object:
            if path.parent == folder:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return call(path, *args, **options)

        return refused

    for name in calls:
        patch.setattr(Path, name, refusing(getattr(Path, name)))


def test_a_file_that_cannot_be_looked_at_fails_one_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    writer.offer("a", entry(1, "r"))
    with monkeypatch.context() as patch:
        deny(patch, tmp_path / "a", "stat", "unlink")
        load = reader.fetch("a", None)
        with pytest.raises(TransferError, match="EC file a cannot be looked at"):
            load.poll()
        load.cancel()
        reader.release("a", None, "r")
        assert writer.check_integrity() == []
        assert writer.find("a", "r") is None
    assert torch.equal(arrived(reader, "a")["ec_cache"], entry(1).tensors["ec_cache"])
    assert writer.offer("a", entry(1)) and writer.check_integrity() == []


def test_a_damaged_file_that_cannot_be_removed_fails_one_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    writer.offer("a", entry(1))
    flip(tmp_path / "a" / FILE_NAME)
    with monkeypatch.context() as patch:
        deny(patch, tmp_path / "a", "unlink")
        with pytest.raises(TransferError, match="corrupt"):
            arrived(reader, "a")


def test_marks_on_storage_that_fails_are_done_without(tmp_path: Path) -> None:
    """No call about a name that is too long is possible."""
    marks = LeaseFiles(tmp_path / ("x" * 300), 30.0)
    assert not marks.keep("a", "r") and marks.want("a") is None and not marks.wanted("a")
    marks.lapse("a", "r")
    marks.done("a", "r")
    marks.sweep()
    marks.clear()


def of_another_engine(root: Path) -> Path:
    path = root / "a" / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    save_file({"ec_cache": entry(2).tensors["ec_cache"]}, path)
    return path


@pytest.mark.parametrize("state", [None, truncate, empty])
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_file_of_another_engine_stays(
    tmp_path: Path, state: Callable[[Path], None] | None, *, unchecked: bool
) -> None:
    """It may be half written, and its engine ends if it is gone; our encoder writes over it."""
    path = of_another_engine(tmp_path)
    if state is not None:
        state(path)
    before = path.read_bytes()
    if state is not None or not unchecked:
        with pytest.raises(TransferError):
            arrived(store(tmp_path, unchecked=unchecked), "a")
    assert path.read_bytes() == before
    assert store(tmp_path).offer("a", entry(1))
    assert torch.equal(arrived(store(tmp_path), "a")["ec_cache"], entry(1).tensors["ec_cache"])


def test_a_file_that_another_engine_wrote_over_ours_stays(tmp_path: Path) -> None:
    killed(die_holding, tmp_path)
    path = of_another_engine(tmp_path)
    heir = store(tmp_path)
    assert heir.find("a", "r") is None and path.exists()
    with pytest.raises(TransferError, match="load_unchecked"):
        arrived(heir, "a")
    assert path.exists()


def test_a_folder_that_another_engine_made_anew_stays(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.offer("a", entry(1))
    shutil.rmtree(tmp_path / "a")
    path = of_another_engine(tmp_path)
    writer.close()
    assert path.exists()


def test_a_file_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    writer = store(tmp_path)
    writer.offer("a", entry(1))
    (tmp_path / "a" / FILE_NAME).unlink()
    assert writer.find("a", "r") is None
    assert writer.offer("a", entry(1))


@pytest.mark.parametrize("name", ["../a", "", "a/b", "a" * 129, ".", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    ec = store(tmp_path / "root")
    with pytest.raises(InvalidRequest):
        ec.offer(name, entry(1))
    with pytest.raises(InvalidRequest):
        ec.fetch(name, None)


def test_a_disk_that_takes_nothing_fails_one_entry(tmp_path: Path) -> None:
    writer = store(tmp_path)
    (tmp_path / "a").write_text("not a folder")
    with pytest.raises(TransferError, match="folder of media item a"):
        writer.offer("a", entry(1))
    assert writer.offer("b", entry(2))
    assert writer.check_integrity() == []


def test_entries_of_a_dead_instance_are_taken_over(tmp_path: Path) -> None:
    killed(die_holding, tmp_path)
    heir = store(tmp_path, count=4)
    assert heir.find("a", "r") is not None
    assert heir.find("b", "r") is not None
    alive = store(tmp_path)
    assert alive.find("a", "r") is None, "the heir lives"
    heir.close()
    alive.close()
    assert list(tmp_path.iterdir()) == []


def _write_often(root: Path, times: int) -> None:
    ec = store(root, count=2)
    for i in range(times):
        ec.offer("a", entry(1))
        ec.offer(f"b{i % 3}", entry(i % 3))
        ec.clear()


def test_many_writers_of_one_entry_and_a_reader(tmp_path: Path) -> None:
    """A reader sees the right bytes or no file, never half of one."""
    writers = [Forked(_write_often, tmp_path, 60) for _ in range(3)]
    reader, seen, wanted = store(tmp_path, load_s=0.02), 0, entry(1).tensors["ec_cache"]
    while any(writer.poll() is None for writer in writers):
        load = reader.fetch("a", None)
        try:
            tensors = load.poll()
        except TransferError as error:
            assert "corrupt" not in error.message
            continue
        finally:
            load.cancel()
        if tensors is not None:
            seen += 1
            assert torch.equal(tensors["ec_cache"], wanted)
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert seen > 0
