"""How long a master that was started again knows less than the one before it."""

import asyncio
import random
import re
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe

import msgspec
import uvloop
import zmq

from benchmarks.bench_master.http import Connection, serving
from benchmarks.bench_master.load import BLOCK_SIZE, CHAIN, workers
from benchmarks.common.processes import processor_s
from benchmarks.common.rows import Row, at_most
from protocol.kv_events import BlockHash, BlockStored, EventSource
from protocol.registry import REGISTER_PATH, InstanceInfo
from services.membership.config import TopicOptions
from services.membership.publisher import Publisher

WORKERS = 1_000
_PROCESSES = 2
_PATIENCE_S = 120.0
_ANYWHERE = "tcp://127.0.0.1:0"
_WITHIN_S = 10.0  # "warm in seconds"


def publishers(count: int, blocks: int, seed: int, pipe: Pipe) -> None:
    """`count` workers' publishers with `blocks` each, as workers have them: says where they are,
    then answers until the pipe is closed."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 65_000)
    options = TopicOptions(_ANYWHERE, _ANYWHERE, buffer_steps=10)
    opened = [Publisher(context, options, None) for _ in range(count)]
    poller, by_socket = zmq.Poller(), {}
    tokens = [100_000] * (CHAIN * BLOCK_SIZE)
    rng = random.Random(seed)
    for one in opened:
        for _ in range(blocks // CHAIN):
            keys: list[BlockHash] = [rng.getrandbits(64) for _ in range(CHAIN)]
            one.publish([BlockStored(keys, None, tokens, BLOCK_SIZE, medium="GPU")], [])
        for socket in one.sockets:
            poller.register(socket, zmq.POLLIN)
            by_socket[socket] = one
    poller.register(pipe.fileno(), zmq.POLLIN)
    pipe.send([(s.endpoint, s.replay) for one in opened for s in one.sources])
    while True:
        for socket, _ in poller.poll():
            if socket not in by_socket:
                return
            by_socket[socket].answer()


@contextmanager
def published(count: int, blocks: int) -> Iterator[list[EventSource]]:
    """The sources of that many workers, in `_PROCESSES` processes."""
    start = get_context("spawn")
    pipes, processes = [], []
    try:
        for seed in range(_PROCESSES):
            ours, theirs = start.Pipe()
            args = (count // _PROCESSES, blocks, seed, theirs)
            process = start.Process(target=publishers, args=args, daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield [EventSource(*where) for pipe in pipes for where in pipe.recv()]
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            process.kill()


async def warm(address: tuple[str, int], infos: Sequence[InstanceInfo], blocks: int) -> None:
    """Register all workers, and wait until the master has heard all that they hold."""
    lane = Connection(*await asyncio.open_connection(*address))
    for info in infos:
        await lane.post(REGISTER_PATH, info)
    wanted = {"index_entries": float(blocks), "event_sources_incomplete": 0.0}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        text = (await lane.get("/metrics")).decode()
        if all(_value(text, name) == value for name, value in wanted.items()):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"the master did not hear all within {_PATIENCE_S:g} s:\n{text}")
        await asyncio.sleep(0.05)


def _value(text: str, name: str) -> float:
    """Of a metric, over all labels but for other kinds of cache."""
    rows = re.findall(rf"^triptych_master:{name}(?:{{.*kind=\"blocks\".*}})? (\S+)$", text, re.M)
    return sum(map(float, rows)) if rows else -1.0


def restart_rows(blocks_each: int) -> list[Row]:
    """From the start of a master's process beside workers that have been up: it keeps nothing, so
    that one that starts again is a new one."""
    total = WORKERS * (blocks_each // CHAIN * CHAIN)
    with published(WORKERS, blocks_each) as sources:
        infos = [
            msgspec.structs.replace(info, events=[source])
            for info, source in zip(workers({"prefill": WORKERS}), sources, strict=True)
        ]
        begun = time.perf_counter()
        with serving() as (address, pid):
            up = time.perf_counter() - begun
            uvloop.run(warm(address, infos, total))
            taken, used = time.perf_counter() - begun, processor_s(pid)
    name = f"a restarted master, {WORKERS:,} workers, {total:,} blocks:"
    return [
        Row(f"{name} serves after, s", up),
        at_most(f"{name} knows all after, s", taken, _WITHIN_S, 1),
        Row(f"{name} processor time until then, s", used),
    ]
