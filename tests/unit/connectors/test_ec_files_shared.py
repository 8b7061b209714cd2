"""Several instances that use one folder of embeddings: nothing is lost, nothing stays for ever."""

import errno
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from connectors.base import Entry
from connectors.ec.files import FILE_NAME
from protocol.errors import TransferError
from tests.conftest import Pass
from tests.support.ec_folders import arrived, die_holding, entry, store
from tests.support.forked import killed, left


def test_an_entry_that_another_encoder_keeps_stays(tmp_path: Path) -> None:
    """Both put the same picture; the later one answers for it and has no request of its own."""
    first, later, reader = store(tmp_path), store(tmp_path, count=1), store(tmp_path)
    first.offer("x", entry(1, "r"))
    later.offer("x", entry(1))
    assert later.offer("y", entry(2)) is None
    assert torch.equal(arrived(reader, "x")["ec_cache"], entry(1).tensors["ec_cache"])
    reader.release("x", None, "r")
    assert later.offer("y", entry(2))
    assert first.check_integrity() == later.check_integrity() == []


def test_what_another_encoder_keeps_lapses_after_a_lease(tmp_path: Path, passes: Pass) -> None:
    first, later = store(tmp_path), store(tmp_path, count=1, lease_s=30.0)
    first.offer("x", entry(1, "r"))
    later.offer("x", entry(1))
    passes(29.0)
    assert later.offer("y", entry(2)) is None, "from when its mark was first seen here"
    passes(31.0)
    assert later.offer("y", entry(2))
    assert later.lapsed == 1


def test_what_another_encoder_keeps_is_kept_for_the_same_request_when_put_again(
    tmp_path: Path,
) -> None:
    first, later, reader = store(tmp_path), store(tmp_path, count=1), store(tmp_path)
    first.offer("x", entry(1, "r"))
    later.offer("x", entry(1))
    pushed: dict[str, Entry] = {}
    assert later.swap("y", entry(2), pushed)
    later.clear()
    assert later.offer("x", pushed["x"])
    assert later.offer("y", entry(2)) is None, "x is kept again"
    reader.release("x", None, "r")
    assert later.offer("y", entry(2))


def test_an_entry_that_somebody_removed_is_put_again(tmp_path: Path) -> None:
    """Without a false alarm in between."""
    first, later = store(tmp_path), store(tmp_path)
    first.offer("x", entry(1))
    later.offer("x", entry(1))
    later.clear()
    assert not (tmp_path / "x").exists()
    assert first.check_integrity() == []
    assert first.offer("x", entry(1, "r"))
    assert (tmp_path / "x" / FILE_NAME).exists()
    assert first.check_integrity() == []


def test_a_push_out_does_not_start_leases_anew(tmp_path: Path, passes: Pass) -> None:
    writer = store(tmp_path, count=1, lease_s=30.0)
    writer.offer("a", entry(1, "r"))
    pushed: dict[str, Entry] = {}
    writer.swap("b", entry(2), pushed)
    writer.clear()
    passes(20.0)
    assert pushed["a"].held(time.monotonic())
    assert writer.offer("a", pushed["a"])
    assert writer.offer("b", entry(2)) is None
    passes(11.0)
    assert writer.offer("b", entry(2))
    assert not pushed["a"].held(time.monotonic())


def test_an_owner_that_cannot_be_written_down_is_a_failed_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk: or no instance could ever remove the entry, or take it over."""
    writer = store(tmp_path)

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(TransferError, match="No space"):
            writer.offer("a", entry(1))
    assert writer.find("a", "r") is None
    assert [name for name in left(tmp_path) if not name.startswith(".live-")] == []
    assert writer.offer("a", entry(1))
    assert writer.check_integrity() == []


def test_entries_that_were_taken_over_are_announced(tmp_path: Path) -> None:
    killed(die_holding, tmp_path)
    told: list[tuple[str, int, int]] = []
    heir = store(tmp_path, changed=lambda *change: told.append(change))
    assert {(name, rows) for name, rows, _ in told} == {("a", 16), ("b", 16)}
    assert sum(size for _, _, size in told) == heir.stats().bytes_held
    heir.clear()
    assert [(name, 0, 0) for name, _, _ in told[:2]] == told[2:]


FOREIGN = {
    "no dimension": torch.tensor(1.0),
    "one dimension": torch.zeros(16),
    "three dimensions": torch.zeros(2, 2, 4),
}


@pytest.mark.parametrize("tensor", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_file_of_another_shape_is_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    path = tmp_path / "a" / FILE_NAME
    path.parent.mkdir()
    save_file({"ec_cache": tensor}, path)
    with pytest.raises(TransferError, match="no embeddings"):
        arrived(store(tmp_path), "a")


@pytest.mark.parametrize("owner", [b"nobody", b"\0", b"\xff\xfe", b"../../x", b"a" * 5000, b""])
def test_a_foreign_file_with_any_owner_does_not_stop_a_start(tmp_path: Path, owner: bytes) -> None:
    path = tmp_path / "a" / FILE_NAME
    path.parent.mkdir()
    save_file({"ec_cache": torch.tensor(1.0)}, path)
    (path.parent / ".owner").write_bytes(owner)
    ec = store(tmp_path)
    assert ec.find("a", "r") is None
    assert ec.offer("a", entry(1))
    assert ec.check_integrity() == []
