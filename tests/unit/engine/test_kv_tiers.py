"""KV below the pool, on a real engine: the same tokens, though tiers lose or refuse blocks."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from connectors.tiers.files import disk_bytes
from protocol.errors import ConfigError
from protocol.registry import Rates
from services.engine.scheduling.rates import RateMeter
from tests.conftest import ModelDir
from tests.support.aside import on_small_disk
from tests.support.tiered_engines import (
    BLOCK,
    FULL,
    MIB,
    POOL,
    PROMPTS,
    bytes_of_block,
    on_disk,
    opened,
    plain,
    tier,
    turns,
)


@pytest.fixture(autouse=True)
def slow_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    make_slow(monkeypatch)


def make_slow(patch: pytest.MonkeyPatch) -> None:
    """Any tier is worth an engine's while."""
    patch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))


def test_what_the_pool_evicts_comes_back_from_host_memory(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        assert turns(worker, PROMPTS, "a") == expected
        before = worker.counters()["cached_tokens"]
        assert turns(worker, PROMPTS, "b") == expected
        host = tier(worker, "host")
        assert host.onboarded >= len(PROMPTS) * FULL - POOL
        assert worker.counters()["cached_tokens"] - before == len(PROMPTS) * FULL * BLOCK
    finally:
        worker.close()


@pytest.fixture(scope="module")
def written(model_dir: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an engine that has ended."""
    folder, files = model_dir("qwen2_5_vl"), tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        make_slow(patch)
        worker = on_disk(folder, files)
        assert turns(worker, PROMPTS) == plain(folder)
        worker.close()
    return files


@pytest.fixture
def left(written: Path, tmp_path: Path) -> Path:
    """A copy of them, which a test may damage."""
    return shutil.copytree(written, tmp_path, dirs_exist_ok=True)


@pytest.mark.usefixtures("left")
def test_files_outlive_the_engine_that_wrote_them(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    assert len(list(tmp_path.rglob("*.kv"))) >= len(PROMPTS) * FULL
    worker = on_disk(folder, tmp_path)
    try:
        assert turns(worker, PROMPTS) == expected
        assert tier(worker, "disk").onboarded == len(PROMPTS) * FULL
        assert worker.counters()["kv_disk_hit_tokens"] == len(PROMPTS) * FULL * BLOCK
        assert worker.counters()["cached_tokens"] == len(PROMPTS) * FULL * BLOCK
    finally:
        worker.close()


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted", "swapped"])
def test_a_damaged_file_is_computed_again(how: str, model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path)
    try:
        damage(sorted(tmp_path.rglob("*.kv")), how)
        assert turns(worker, PROMPTS) == expected
        disk = tier(worker, "disk")
        assert disk.failed == len(PROMPTS) * FULL
        assert disk.onboarded == 0
        assert turns(worker, PROMPTS, "again") == expected
        assert disk.failed == len(PROMPTS) * FULL, "what is damaged is found out once"
    finally:
        worker.close()


def damage(files: Sequence[Path], how: str) -> None:
    contents = [bytearray(path.read_bytes()) for path in files]
    for number, path in enumerate(files):
        data = contents[number]
        data[-1] ^= how == "flipped"
        if how == "deleted":
            path.unlink()
        elif how == "swapped":  # each is whole, and under another's name
            path.write_bytes(contents[number - 1])
        else:
            path.write_bytes(data[: len(data) // 2] if how == "truncated" else data)


@pytest.mark.usefixtures("left")
def test_files_cut_short_are_removed_at_the_start(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    damage(sorted(tmp_path.rglob("*.kv")), "truncated")
    worker = on_disk(folder, tmp_path)
    try:
        assert list(tmp_path.rglob("*.kv")) == []
        assert len(tier(worker, "disk").shelf) == 0
    finally:
        worker.close()


@pytest.mark.usefixtures("left")
def test_files_of_another_layout_are_removed(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    assert list(tmp_path.rglob("*.kv"))
    (mine,) = (path.parent / "mine.txt" for path in tmp_path.rglob("lock"))
    mine.write_text("not ours to remove")
    worker = on_disk(folder, tmp_path, block_size=8, num_blocks=2 * POOL)
    try:
        assert list(tmp_path.rglob("*.kv")) == []
        assert turns(worker, PROMPTS[:2]) == expected[:2]
        assert mine.exists()
    finally:
        worker.close()


def test_a_tier_holds_no_more_than_it_may(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    row_bytes = bytes_of_block(folder)
    sizes = {"kv_host_bytes": 3 * row_bytes, "kv_disk_bytes": 8 * disk_bytes(row_bytes) - 1}
    worker = opened(folder, kv_disk_path=str(tmp_path), **sizes)
    try:
        for name in "ab":
            assert turns(worker, PROMPTS, name) == expected
        host, disk = tier(worker, "host"), tier(worker, "disk")
        assert (len(host.shelf), len(disk.shelf)) == (3, 7)
        files = list(tmp_path.rglob("*.kv"))
        assert len(files) == 7
        assert sum(path.stat().st_blocks * 512 for path in files) <= sizes["kv_disk_bytes"]
    finally:
        worker.close()


def test_a_folder_that_cannot_be_used_is_an_error_at_the_start(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    folder = model_dir("qwen2_5_vl")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be created: .* --kv-disk-path"):
        on_disk(folder, tmp_path / "file" / "below")
    worker = on_disk(folder, tmp_path)
    try:
        with pytest.raises(ConfigError, match=r"--kv-disk-path: .* is used by another worker"):
            on_disk(folder, tmp_path)
    finally:
        worker.close()
    with pytest.raises(ConfigError, match="--kv-disk and --kv-disk-path"):
        opened(folder, kv_disk_bytes=MIB)
    with pytest.raises(ConfigError, match="--kv-host-memory: 1 bytes hold no KV block"):
        opened(folder, kv_host_bytes=1)
    with pytest.raises(ConfigError, match=r"--kv-host-memory: .* are free"):
        opened(folder, kv_host_bytes=1 << 60)


def on_a_full_disk(folder: Path, files: Path) -> tuple[bool, ...]:
    with pytest.MonkeyPatch.context() as patch:
        make_slow(patch)
        worker = on_disk(folder, files)
        same = turns(worker, PROMPTS) == plain(folder)
        disk, kept = tier(worker, "disk"), list(files.rglob("*.kv"))
        found = same, disk.failed > 0, len(disk.shelf) == len(kept), not list(files.rglob("*.tmp"))
        worker.close()
    return found


def test_a_full_disk_costs_no_request(model_dir: ModelDir, tmp_path: Path) -> None:
    found = on_small_disk(tmp_path, "64k", on_a_full_disk, model_dir("qwen2_5_vl"), tmp_path)
    assert found == (True, True, True, True)
    assert not list(tmp_path.iterdir()), "it was on that disk"
