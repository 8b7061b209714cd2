"""The transport benchmark on tiny sizes: the right bytes move, and bars are judged rightly."""

from pathlib import Path

import pytest

from benchmarks.bench_transport.measures import (
    Size,
    bandwidth,
    latency,
    memory_rows,
    quartile,
    rows,
)
from benchmarks.bench_transport.pair import contiguous, pair, scattered
from benchmarks.bench_transport.raw.base import GRANULE
from benchmarks.bench_transport.raw.files import RawFiles
from benchmarks.common.rows import Row, markdown

TINY = Size(nbytes=16 * GRANULE, rounds=1, large=1, small=2)


def test_every_way_brings_the_right_bytes_in_some_time(tmp_path: Path) -> None:
    with pair("shm", tmp_path, TINY.nbytes, (0, 0)) as made:
        _all_measured(list(memory_rows("shm", made, TINY)), 9)
        case = scattered("scattered", 4, 16)
        made.producer.call("serve", who="ours")
        _, handle = made.producer.call("offer", blocks=case.blocks)
        wrong = {"blocks": case.blocks[::-1], "places": case.places, "check": True}
        with pytest.raises(RuntimeError, match="not what was published"):
            made.consumer.call("fetch", handle=handle, **wrong)


@pytest.mark.slow
def test_shared_storage_is_measured_beside_files_alone() -> None:
    _all_measured(list(rows(TINY, (0, 0), ["shared_storage"])), 6)


def _all_measured(found: list[Row], count: int) -> None:
    assert len(found) == count
    assert all(row.ours > 0 and row.peer is not None and row.peer > 0 for row in found)


def test_files_alone_bring_what_was_written(tmp_path: Path) -> None:
    writer, reader = RawFiles(tmp_path / "a", 2 * GRANULE), RawFiles(tmp_path / "b", 2 * GRANULE)
    reader.connect(writer.describe())
    writer.memory[:] = 7
    ranges = contiguous("all", 2).ranges(whole=False)
    assert writer.write(ranges) > 0 and reader.read(ranges) > 0
    assert (reader.memory == 7).all()


def test_bars_are_judged_by_the_right_side() -> None:
    assert bandwidth("x", 10**9, ours=1.0, peer=0.9, bar=0.85).holds
    assert not bandwidth("x", 10**9, ours=1.0, peer=0.8, bar=0.85).holds
    assert latency("x", ours=1.9, peer=1.0, bar=2.0).holds
    assert not latency("x", ours=2.1, peer=1.0, bar=2.0).holds
    assert latency("x", ours=9.0, peer=1.0, bar=None).holds is None
    assert quartile([5.0]) == 5.0 and quartile([4.0, 1.0, 3.0, 2.0, 5.0]) == 2.0


def test_the_table_says_what_is_missed() -> None:
    table = markdown([Row("a", 1.0, 2.0, 0.5, "ratio >= 0.8", False)], "here")
    assert table.splitlines()[-1] == "| a | 1.00 | 2.00 | 0.50 | ratio >= 0.8: MISSED |"
