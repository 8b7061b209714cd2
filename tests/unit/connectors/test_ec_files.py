"""Embeddings on shared storage: whole files or none, after any fault."""

import os
import stat
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from connectors.base import Entry, Tensors
from connectors.ec import file_format
from connectors.ec.files import FILE_NAME, FileEC, FileStoreOptions
from connectors.ec.lease_files import LeaseFiles
from protocol.errors import TransferError, TransferTimeout
from tests.support.ec_folders import SIZE, arrived, entry, store


def test_an_entry_has_the_layout_that_vllm_reads(tmp_path: Path) -> None:
    writer = store(tmp_path)
    params = writer.offer("a" * 64, entry(1))
    assert params == {"size_bytes": SIZE + 128, "shape": [16, 64]}
    path = tmp_path / ("a" * 64) / "encoder_cache.safetensors"
    assert torch.equal(load_file(path)["ec_cache"], entry(1).tensors["ec_cache"])
    writer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_other_users_can_read_what_the_umask_lets_them(
    tmp_path: Path, umask: int, mode: int
) -> None:
    writer, before = store(tmp_path), os.umask(umask)
    try:
        writer.offer("a", entry(1))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a" / FILE_NAME).stat().st_mode) == mode


def test_a_file_that_vllm_has_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b" / FILE_NAME
    path.parent.mkdir()
    save_file({"ec_cache": entry(2).tensors["ec_cache"]}, path)
    reader = store(tmp_path, unchecked=True)
    assert torch.equal(arrived(reader, "b")["ec_cache"], entry(2).tensors["ec_cache"])


def test_a_file_without_a_checksum_is_refused_unless_that_is_allowed(tmp_path: Path) -> None:
    """Anyone who can write to the folder could have put anything into it."""
    path = tmp_path / "b" / FILE_NAME
    path.parent.mkdir()
    save_file({"ec_cache": entry(2).tensors["ec_cache"]}, path)
    with pytest.raises(TransferError, match="no checksum"):
        arrived(store(tmp_path), "b")


def test_a_reader_waits_for_a_file_and_is_seen_to(tmp_path: Path) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    load = reader.fetch("a", None)
    assert load.poll() is None
    assert writer.wanted("a")
    writer.offer("a", entry(1))
    tensors = load.poll()
    assert tensors is not None
    assert tensors["deepstack_00"].dtype is torch.bfloat16
    writer.poll()
    assert not writer.wanted("a")


def test_a_reader_gives_up_in_time(tmp_path: Path) -> None:
    reader = store(tmp_path, load_s=0.05)
    load = reader.fetch("a", None)
    time.sleep(0.1)
    with pytest.raises(TransferTimeout):
        load.poll()
    load.cancel()
    assert not reader.wanted("a")


def test_an_entry_may_be_as_large_as_the_store_and_no_larger(tmp_path: Path) -> None:
    one = entry(1)
    size = sum(tensor.nbytes for tensor in one.tensors.values())
    for capacity, fits in ((size, True), (size - 1, False)):
        writer = FileEC(FileStoreOptions(tmp_path / str(capacity), capacity, 30.0, 30.0, False))
        if fits:
            assert writer.offer("a", one)
        else:
            with pytest.raises(TransferError, match=f"needs {size} bytes, more than the EC store"):
                writer.offer("a", one)
        writer.close()


def test_room_is_bounded_and_what_is_kept_stays(tmp_path: Path) -> None:
    writer, reader = store(tmp_path, count=2), store(tmp_path)
    assert writer.offer("a", entry(1, "r1")) and writer.offer("b", entry(2))
    assert writer.offer("c", entry(3, "r3")), "b goes, a is kept"
    assert writer.find("b", "r") is None
    assert writer.offer("d", entry(4)) is None
    reader.release("a", None, "r1")
    assert writer.offer("d", entry(4))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["c", "d"]
    assert writer.check_integrity() == []


def test_in_a_large_store_what_no_request_needs_is_found_too(tmp_path: Path) -> None:
    """However many that are kept stand before it, and without looking at all of them at once."""
    writer, reader, last = store(tmp_path, count=150), store(tmp_path), 0
    while writer.offer(f"{last}", entry(last, "r")):
        last += 1
    assert last > 128
    reader.release(f"{last - 1}", None, "r")
    tries = 1
    while writer.offer("x", entry(1)) is None:
        tries += 1
        assert tries < 5
    assert writer.find(f"{last - 1}", "r") is None and writer.find(f"{last - 2}", "r") is not None
    assert writer.check_integrity() == []


def test_a_request_that_was_done_first_is_not_waited_for(tmp_path: Path) -> None:
    writer, reader = store(tmp_path, count=1), store(tmp_path)
    reader.release("a", None, "r")
    assert writer.offer("a", entry(1, "r"))
    assert writer.offer("b", entry(2))
    writer.close()
    reader.close()
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_no_consumer_ends_lapses(tmp_path: Path) -> None:
    writer = store(tmp_path, count=1, lease_s=0.05)
    assert writer.offer("a", entry(1, "r"))
    time.sleep(0.1)
    assert writer.offer("b", entry(2))
    assert writer.lapsed == 1


def test_a_wanted_entry_takes_the_place_of_one_that_waits(tmp_path: Path) -> None:
    writer = store(tmp_path, count=1)
    writer.offer("a", entry(1, "r"))
    left: dict[str, Entry] = {}
    assert writer.swap("b", entry(2, "s"), left)
    assert left["a"].holders == ("r",)
    assert torch.equal(left["a"].tensors["ec_cache"], entry(1).tensors["ec_cache"])


def test_a_request_that_ends_while_its_entry_is_pushed_out_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, load = store(tmp_path, count=1), store(tmp_path), file_format.load
    writer.offer("a", entry(1, "r"))

    def loaded_while_the_request_ends(path: Path) -> Tensors:
        reader.release("a", None, "r")
        return load(path)

    monkeypatch.setattr(file_format, "load", loaded_while_the_request_ends)
    left: dict[str, Entry] = {}
    assert writer.swap("b", entry(2, "s"), left)
    reader.release("b", None, "s")
    assert writer.offer("a", left["a"])
    assert writer.offer("c", entry(3)), "no request needs a"


def test_a_request_that_is_done_while_its_entry_is_being_kept_is_seen(tmp_path: Path) -> None:
    marks, rounds = LeaseFiles(tmp_path, 30.0), 3000
    meet = threading.Barrier(2)

    def done() -> None:
        for i in range(rounds):
            meet.wait(30.0)
            marks.done("a", f"{i}")

    (tmp_path / "a").mkdir()
    other = threading.Thread(target=done)
    other.start()
    for i in range(rounds):
        meet.wait(30.0)
        marks.keep("a", f"{i}")
    other.join()
    assert marks.kept("a") == set()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_files_that_others_still_need_are_counted(tmp_path: Path) -> None:
    writer, reader = store(tmp_path), store(tmp_path)
    writer.offer("cached", entry(1))
    assert writer.awaited == 0
    writer.offer("a", entry(2, "r"))
    assert writer.awaited == 1 and reader.awaited == 0
    reader.release("a", None, "r")
    assert writer.awaited == 0


def test_an_entry_that_has_gone_is_kept_for_no_request(tmp_path: Path) -> None:
    """Another instance may remove it at any moment; that is no error."""
    marks = LeaseFiles(tmp_path, 30.0)
    assert not marks.keep("gone", "r")
    assert marks.kept("gone") == set() and not list(tmp_path.iterdir())
