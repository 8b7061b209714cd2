"""Engines of a machine take the cores that others leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from connectors.owners import make_private
from services.engine import core_share
from services.engine.core_share import CoreShare, cores_here


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_cores_are_shared_by_engines_that_compute(tmp_path: Path) -> None:
    clock = Clock()
    one, two, three = (CoreShare(tmp_path, 6, 1, clock) for _ in range(3))
    assert one.threads() == 6
    with two.computing():
        clock.now += 2  # for the next look
        assert one.threads() == 3
        with three.computing():
            assert one.threads() == 2
    assert one.threads() == 2  # they are about to go on
    three.rest()
    assert one.threads() == 3
    clock.now += 0.1
    assert one.threads() == 6
    for share in (one, two, three):
        share.close()
    assert list(tmp_path.iterdir()) == []


def test_a_fixed_share_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    one, two = (CoreShare(tmp_path, 4, 3, clock) for _ in range(2))
    with two.computing():
        assert one.threads() == 3


def test_operations_get_the_threads(tmp_path: Path) -> None:
    with CoreShare(tmp_path, 2, 1).computing():
        assert torch.get_num_threads() == 2
        with CoreShare(tmp_path, 2, 1).computing():
            assert torch.get_num_threads() == 1


@pytest.mark.parametrize("left", [3, 2])
def test_each_test_begins_with_one_thread(left: int) -> None:
    assert torch.get_num_threads() == 1
    torch.set_num_threads(left)


def test_an_engine_that_was_killed_counts_no_more(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from services.engine.core_share import CoreShare
with CoreShare(Path({str(tmp_path)!r}), 2, 1).computing():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60)
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    assert CoreShare(tmp_path, 2, 1).threads() == 2
    assert not left[0].exists()


def test_what_a_dead_process_left_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "cores-x").write_bytes(b"x")
    assert CoreShare(tmp_path, 2, 1).threads() == 2


def test_other_parts_of_an_engine_accept_the_folder(tmp_path: Path) -> None:
    folder, before = tmp_path / "new", os.umask(0o002)
    try:
        CoreShare(folder, 2, 1).close()
    finally:
        os.umask(before)
    make_private(folder, "")


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 0), ("100000 100000", 1), ("5 10", 1)])
def test_a_container_has_the_cores_of_its_quota(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(core_share, "_QUOTA", tmp_path / "cpu.max")
    assert cores_here() == (cores or len(os.sched_getaffinity(0)))
