"""The master at a thousand workers and a million blocks.

    python -m benchmarks.bench_master [--quick] [--json FILE] [--svg FILE]

In this process, on one core: placement, ingestion, and the index's memory at 10,000 workers beside
a dictionary of sets. Against a master of its own process: a closed loop over 32 connections without
other load; an open loop at growing rates while 1,000 workers beat and publish what the placements
make them store and lose; a master that starts beside 1,000 full workers; two masters that share a
Redis. `peer` is what the row is held against: a figure that is required, or the plain structure. A
row holds if `ratio`, ours / peer, is at least `bar` where more is better, at most `bar` where less
is. Master and load share the machine, so that latencies need it idle; processor time does not.
"""

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import uvloop

from benchmarks.bench_master.agreement import agreement_rows
from benchmarks.bench_master.http import drive, serving
from benchmarks.bench_master.load import BLOCK_SIZE, SEED, chains, requests_of, workers
from benchmarks.bench_master.memory import memory_rows
from benchmarks.bench_master.open_loop import open_loop_rows
from benchmarks.bench_master.restart import restart_rows
from benchmarks.common.plotting import check_plots
from benchmarks.common.rows import Row, arguments, at_least, at_most, finish, hardware, head, line
from protocol.kv_events import BlockStored, Encoding, EventBatch, decode_event_batch, encode_batch
from protocol.placement import Finished
from protocol.registry import InstanceRole
from services.master.__main__ import collect_rarely
from services.master.config import MasterConfig
from services.master.master import Master

WORKERS: dict[InstanceRole, int] = {"encode": 200, "prefill": 400, "decode": 400}
BLOCKS = 1_000_000
UNDER_WAY = 2000
RATES = (250.0, 500.0, 750.0, 1000.0, 1500.0, 2000.0, 3000.0)


def filled(master: Master, prompts: list[list[int]]) -> float:
    """Register all workers and spread the prompts over those that hold KV; seconds for these."""
    infos = workers(WORKERS)
    for info in infos:
        master.register(info, 0.0)
    holders = [info for info in infos if info.role != "encode"]
    start = time.perf_counter()
    for i, keys in enumerate(prompts):
        batch = EventBatch(0.0, [BlockStored(list(keys))])
        master.apply(holders[i % len(holders)], batch)
    return time.perf_counter() - start


def placement_rows(count: int) -> list[Row]:
    """The rate is by processor time of the one core, the latency by the clock on the wall."""
    rng = random.Random(SEED)
    prompts = chains(rng, BLOCKS)
    master = Master(MasterConfig(seed=SEED))
    filled(master, prompts)
    requests = requests_of(rng, prompts, count)
    times, busy = np.zeros(count), 0.0
    collect_rarely()
    for i, request in enumerate(requests):
        start, core = time.perf_counter(), time.thread_time()
        master.schedule(request, i * 1e-4)
        busy += time.thread_time() - core
        times[i] = time.perf_counter() - start
        if i >= UNDER_WAY:
            master.finished(Finished(f"r{i - UNDER_WAY}"), i * 1e-4)
    return [
        at_least("placements/s, 1,000 workers, 1,000,000 blocks", count / busy, 1e4, 1),
        at_most("placement p99, ms", float(np.percentile(times, 99)) * 1e3, 1.0, 1),
    ]


def payloads(rng: random.Random, blocks: int, encoding: Encoding) -> list[bytes]:
    """Batches of 5 new blocks each, with their tokens, as workers publish them."""
    found = []
    for _ in range(blocks // 5):
        keys = [rng.getrandbits(64) for _ in range(5)]
        tokens = [rng.randrange(150_000) for _ in range(5 * BLOCK_SIZE)]
        event = BlockStored(list(keys), None, tokens, BLOCK_SIZE, medium="GPU")
        found.append(encode_batch(0.0, [event], 0, encoding))
    return found


def ingestion_rows(blocks: int) -> list[Row]:
    """By processor time of one core."""
    cases: list[tuple[str, Encoding, bool]] = [
        ("maps", "map", False), ("arrays", "array", False), ("maps, foreign", "map", True),
    ]  # fmt: skip
    rows = []
    for name, encoding, foreign in cases:
        master = Master(MasterConfig(seed=SEED))
        info = msgspec.structs.replace(workers({"prefill": 1})[0], foreign=foreign)
        master.register(info, 0.0)
        batches = payloads(random.Random(SEED), blocks, encoding)
        start = time.thread_time()
        for payload in batches:
            master.apply(info, decode_event_batch(payload))
        rate = blocks / (time.thread_time() - start)
        rows.append(at_least(f"blocks/s ingested ({name})", rate, 1e5, 1))
    return rows


def http_rows(count: int) -> list[Row]:
    with serving() as (address, pid):
        rate, core_rate, times = uvloop.run(drive(address, pid, count))
    p50, p95 = (float(np.percentile(times, p)) * 1e3 for p in (50, 95))
    return [
        Row("HTTP placements/s, 750 prefill and 500 decode workers", rate),
        Row("HTTP placements per second of one core", core_rate),
        Row("HTTP p50, ms", p50),
        Row("HTTP p95, ms", p95),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 if every row holds."""
    parser = arguments("bench_master", __doc__)
    parser.add_argument(
        "--svg", type=Path, help="plot of latency over the offered rate (needs the extra 'bench')"
    )
    args = parser.parse_args(argv)
    check_plots(parser, "--svg", args.svg)
    scale = 1 if args.quick else 5
    print(f"{hardware(('numpy', 'msgspec', 'uvloop', 'pyzmq'), SEED)}\n{head()}", flush=True)
    rows = [
        *placement_rows(10_000 * scale),
        *memory_rows(BLOCKS if scale > 1 else BLOCKS // 4),
        *ingestion_rows(50_000 * scale),
        *http_rows(10_000 * scale),
        *open_loop_rows(
            BLOCKS // 10 * scale, RATES if scale > 1 else RATES[:4:3], 3.0 * scale, args.svg
        ),
        *restart_rows(400 * scale),
        *agreement_rows(BLOCKS // 20, 3.0 * scale),
    ]
    print("\n".join(map(line, rows)))
    return finish(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
