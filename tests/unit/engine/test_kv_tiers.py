"""KV below the pool, on a real engine: the same tokens, whatever tiers hold, lose or refuse."""

import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.tiers.base import Copied, TierCopy
from connectors.tiers.files import disk_bytes
from protocol.errors import ConfigError
from protocol.kv_events import EventBatch, EventSource, short_key
from protocol.registry import InstanceInfo, Rates
from protocol.types import GenerateRequest, SamplingParams
from services.engine.attention.kv_cache import block_bytes
from services.engine.engine import Engine
from services.engine.reports import load_of
from services.engine.scheduling.rates import RateMeter
from services.master.config import MasterConfig
from services.master.fleet.fleet import Fleet
from services.membership.config import parse_events
from tests.conftest import ModelDir
from tests.support.conversations import LONG
from tests.support.engine_pairs import Pair, expected
from tests.support.engines import engine, listening

ROOT = Path(__file__).parents[3]
BLOCK = 16
POOL = 12  # blocks: two prompts of PROMPT tokens and their outputs
PROMPT = 75
TOKENS = 8
MIB = 1 << 20
PROMPTS = [random.Random(seed).choices(range(5, 200), k=PROMPT) for seed in range(6)]
FULL = PROMPT // BLOCK  # blocks of a prompt that can be found again


@pytest.fixture(autouse=True)
def slow_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine for which any tier is worth its while."""
    monkeypatch.setattr(RateMeter, "rates", lambda self: Rates(prefill_ms_per_token=50.0))


def opened(folder: Path, **options: Any) -> Engine:
    return engine(folder, **{"num_blocks": POOL, "max_num_seqs": 4, **options})


def turns(worker: Engine, prompts: list[list[int]], name: str = "") -> list[list[int]]:
    """The outputs of prompts, one after the other; between two, tiers take what they can."""
    return [
        serve(worker, [(f"{name}{number}", prompt)])[0] for number, prompt in enumerate(prompts)
    ]


def serve(worker: Engine, asked: list[tuple[str, list[int]]]) -> list[list[int]]:
    """The outputs of requests that run at once; the books are right afterwards."""
    assert worker.generate is not None
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    tokens: dict[str, list[int]] = {name: [] for name, _ in asked}
    for name, prompt in asked:
        assert worker.generate.add(GenerateRequest(name, prompt, params)) == []
    for _ in range(20_000):
        for output in worker.step()[0]:
            assert output.error is None, output.error
            tokens[output.request_id] += output.token_ids
        if not len(worker.generate) and not worker.generate.tiers.active:
            break
        threading.Event().wait(0.001 if not worker.generate.progressed else 0)
    assert all(len(found) == TOKENS for found in tokens.values())
    assert worker.check_integrity() == []
    return list(tokens.values())


def tier(worker: Engine, name: str) -> Any:
    assert worker.generate is not None
    return next(t for t in worker.generate.tiers.tiers if t.store.name == name)


def plain(folder: Path) -> list[list[int]]:
    worker = opened(folder, num_blocks=256)
    found = turns(worker, PROMPTS)
    worker.close()
    return found


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


def on_disk(folder: Path, files: Path, **options: Any) -> Engine:
    return opened(folder, kv_disk_bytes=8 * MIB, kv_disk_path=str(files), **options)


def test_files_outlive_the_engine_that_wrote_them(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path)
    assert turns(worker, PROMPTS) == expected
    worker.close()
    assert len(list(tmp_path.rglob("*.kv"))) >= len(PROMPTS) * FULL
    worker = on_disk(folder, tmp_path)
    try:
        assert turns(worker, PROMPTS) == expected
        assert tier(worker, "disk").onboarded == len(PROMPTS) * FULL
        assert worker.counters()["kv_disk_hit_tokens"] == len(PROMPTS) * FULL * BLOCK
        assert worker.counters()["cached_tokens"] == len(PROMPTS) * FULL * BLOCK
    finally:
        worker.close()


@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted", "swapped"])
def test_a_damaged_file_is_computed_again(how: str, model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path)
    assert turns(worker, PROMPTS) == expected
    worker.close()
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


def test_files_cut_short_are_removed_at_the_start(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    worker = on_disk(folder, tmp_path)
    turns(worker, PROMPTS[:1])
    worker.close()
    damage(sorted(tmp_path.rglob("*.kv")), "truncated")
    worker = on_disk(folder, tmp_path)
    try:
        assert list(tmp_path.rglob("*.kv")) == []
        assert len(tier(worker, "disk").shelf) == 0
    finally:
        worker.close()


def test_files_of_another_layout_are_removed(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path)
    turns(worker, PROMPTS)
    worker.close()
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
    row_bytes = opened_row_bytes(folder)
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


FULL_DISK = """
import sys
from pathlib import Path
from tests.unit.engine.test_kv_tiers import PROMPTS, RateMeter, Rates, on_disk, plain, tier, turns

RateMeter.rates = lambda self: Rates(prefill_ms_per_token=50.0)
folder, files = map(Path, sys.argv[1:])
worker = on_disk(folder, files)
assert turns(worker, PROMPTS) == plain(folder)
disk = tier(worker, "disk")
print(disk.failed > 0, len(disk.shelf) == len(list(files.rglob("*.kv"))))
assert not list(files.rglob("*.tmp"))
worker.close()
"""


def test_a_full_disk_costs_no_request(model_dir: ModelDir, tmp_path: Path) -> None:
    mount = "mount -t tmpfs -o size=64k none $2 && exec $0 - $1 $2"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount,
         sys.executable, str(model_dir("qwen2_5_vl")), str(tmp_path)],
        env=dict(os.environ), input=FULL_DISK, capture_output=True, text=True, timeout=120,
        cwd=ROOT,
    )  # fmt: skip
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount of our own here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"], done.stdout


class _Late(TierCopy):
    """A copy that is said to have ended once `arrive` is set."""

    def __init__(self, copy: TierCopy, arrive: threading.Event) -> None:
        self._copy = copy
        self._arrive = arrive

    def poll(self) -> Copied | None:
        return self._copy.poll() if self._arrive.is_set() else None


def held_back(worker: Engine) -> threading.Event:
    """What comes from host memory from here on arrives once the event is set."""
    arrive, store = threading.Event(), tier(worker, "host").store
    load = store.load

    def late(*args: Any) -> TierCopy:
        return _Late(load(*args), arrive)

    store.load = late
    return arrive


def begun(worker: Engine, name: str, prompt: list[int]) -> None:
    """A request whose KV is on its way."""
    assert worker.generate is not None
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    worker.generate.add(GenerateRequest(name, prompt, params))
    worker.step()
    assert worker.generate.tiers.active
    assert worker.generate.tiers.owned_blocks()
    assert worker.check_integrity() == []


def test_an_abort_while_kv_comes_back_leaks_nothing(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "gone", PROMPTS[0])
        assert worker.generate is not None
        worker.generate.abort(["gone"])
        worker.step()
        assert worker.check_integrity() == []
        assert worker.generate.tiers.owned_blocks(), "they may still be written to"
        arrive.set()
        assert turns(worker, PROMPTS, "b") == expected
        assert worker.generate.tiers.owned_blocks() == []
    finally:
        worker.close()


def test_two_requests_share_what_is_on_its_way(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        onboarded = tier(worker, "host").onboarded
        assert serve(worker, [("x", PROMPTS[0]), ("y", PROMPTS[0])]) == expected[:1] * 2
        assert tier(worker, "host").onboarded == onboarded + FULL
    finally:
        worker.close()


def test_requests_are_preempted_while_kv_comes_back(model_dir: ModelDir) -> None:
    """A pool for two prompts without their outputs: requests take one another's blocks."""
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = opened(folder, num_blocks=2 * FULL + 2, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        for name in "bc":
            asked = [(f"{name}{number}", prompt) for number, prompt in enumerate(PROMPTS)]
            assert serve(worker, asked) == expected
        assert worker.counters()["preemptions"] > 0
        assert tier(worker, "host").onboarded > 0
    finally:
        worker.close()


def test_a_request_waits_no_longer_than_computing_takes(model_dir: ModelDir) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    ticks = [0.0]
    worker = opened(folder, kv_host_bytes=8 * MIB, clock=lambda: ticks[0])
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "late", PROMPTS[0])
        assert worker.generate is not None
        ticks[0] += 0.050 * FULL * BLOCK - 0.001
        worker.step()
        assert not worker.generate.progressed
        ticks[0] += 0.002
        tokens: list[int] = []
        while len(tokens) < TOKENS:
            for output in worker.step()[0]:
                tokens += output.token_ids
        assert tokens == expected[0]
        assert worker.counters()["kv_onboards_given_up"] == 1
        arrive.set()
        assert turns(worker, PROMPTS, "b") == expected
    finally:
        worker.close()


def test_a_reset_forgets_what_tiers_hold(model_dir: ModelDir, tmp_path: Path) -> None:
    folder = model_dir("qwen2_5_vl")
    expected = plain(folder)
    worker = on_disk(folder, tmp_path, kv_host_bytes=8 * MIB)
    try:
        turns(worker, PROMPTS, "a")
        arrive = held_back(worker)
        begun(worker, "b", PROMPTS[0])
        assert worker.generate is not None
        worker.generate.abort(["b"])
        worker.reset_caches(prefix=True, encoder=False)
        assert [len(t.shelf) for t in worker.generate.tiers.tiers] == [0, 0]
        arrive.set()
        assert turns(worker, PROMPTS, "c") == expected
        assert worker.counters()["cached_tokens"] == 0
    finally:
        worker.close()


def test_events_tell_what_each_tier_holds(model_dir: ModelDir, tmp_path: Path) -> None:
    """A master's view, from the events of two engines that use one folder after the other."""
    fleet = Fleet("m", MasterConfig())
    source = EventSource("tcp://127.0.0.1:1")
    info = InstanceInfo("p", "prefill", "http://p:1", "m", events=[source])
    held = fleet.add(info, 0.0, 1e9)
    row_bytes = opened_row_bytes(model_dir("qwen2_5_vl"))
    sizes = {"kv_host_bytes": 9 * row_bytes, "kv_disk_bytes": 30 * disk_bytes(row_bytes)}
    for life in "ab":
        worker = opened(
            model_dir("qwen2_5_vl"), kv_disk_path=str(tmp_path), **sizes,
            events=parse_events("", "127.0.0.1", default=True),
        )  # fmt: skip
        try:
            heard = listening(worker)
            turns(worker, PROMPTS, life)
            held.forget_blocks(0)
            fleet.apply(held, EventBatch(0.0, heard))
            assert worker.generate is not None
            known = {
                "pool": worker.generate.scheduler.blocks.known(),
                **{t.store.name: t.shelf.keys() for t in worker.generate.tiers.tiers},
            }
            for name, index in (
                ("pool", fleet.blocks), ("host", fleet.exact.host), ("disk", fleet.exact.disk)
            ):  # fmt: skip
                assert set(index.keys(0)) == {short_key(key) for key in known[name]}, name
            assert (len(known["host"]), len(known["disk"])) == (9, 30)
            rates = load_of(worker).rates
            assert rates.disk_ms_per_token > 0 or life == "a"
        finally:
            worker.close()


def opened_row_bytes(folder: Path) -> int:
    worker = opened(folder)
    worker.close()
    return block_bytes(worker.layout)


def test_kv_that_came_back_is_handed_over(model_dir: ModelDir, tmp_path: Path) -> None:
    """A prefill worker whose pool holds one prompt: each comes from host memory the second time."""
    pair = Pair(model_dir("qwen3"), tmp_path / "shm", num_blocks=8, kv_host_bytes=8 * MIB)
    for number, text in enumerate([LONG.upper(), LONG[::-1]] * 2):
        pair.outputs = {"prefill": [], "decode": []}
        if number >= 2:
            pair.decode.reset_caches(prefix=True, encoder=False)
        request = pair.request(text)
        pair.to_decode(request)
        pair.to_prefill(request)
        pair.until(lambda: pair.finished("decode") == 1)
        assert pair.tokens("decode") == expected(pair, text)
        pair.until(lambda: not pair.prefill.generate.tiers.active)  # type: ignore[union-attr]
    assert pair.prefill.counters()["kv_host_onboarded_blocks"] > 0
    pair.settle()
