"""A master process, driven over kept HTTP connections and fed by ZMQ events."""

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from benchmarks.bench_master.load import SEED, chains, requests_of, workers
from benchmarks.common.processes import processor_s
from protocol.event_frames import event_frames
from protocol.generate import MSGPACK
from protocol.kv_events import BlockStored, encode_batch
from protocol.placement import (
    FINISHED_PATH,
    SCHEDULE_PATH,
    Finished,
    FinishedReports,
    ScheduleRequest,
)
from protocol.registry import REGISTER_PATH, InstanceInfo, InstanceRole

RTP_WORKERS: dict[InstanceRole, int] = {"prefill": 750, "decode": 500}
HTTP_BLOCKS = 100_000
SUBSCRIBE_MS = 20_000
CONNECTIONS = 32


@contextmanager
def serving(module: str = "services.master", *flags: str) -> Iterator[tuple[tuple[str, int], int]]:
    """(host, port) of a master of its own process, and that one's id."""
    command = [sys.executable, "-m", module, *flags, "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen([*command, "--lease", "1000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        host, port = line.split("http://")[1].strip().rsplit(":", 1)
        yield (host, int(port)), process.pid
    finally:
        process.terminate()
        process.wait(20)


class Refused(RuntimeError):
    """An answer that is not 200."""


class Connection:
    """A kept HTTP connection with msgpack bodies, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: Any) -> bytes:
        data = msgspec.msgpack.encode(body)
        head = f"POST {path} HTTP/1.1\r\nhost: m\r\ncontent-type: {MSGPACK}\r\n"
        return await self._call(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)

    async def get(self, path: str) -> bytes:
        return await self._call(f"GET {path} HTTP/1.1\r\nhost: m\r\n\r\n".encode())

    async def _call(self, request: bytes) -> bytes:
        self._writer.write(request)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        body = await self._reader.readexactly(int(length))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise Refused((answer + body).decode())
        return body

    async def drive(self, requests: Sequence[ScheduleRequest], times: list[float]) -> None:
        """One request after the other; what is placed is ended in groups, untimed."""
        for i, request in enumerate(requests, start=1):
            start = time.perf_counter()
            await self.post(SCHEDULE_PATH, request)
            times.append(time.perf_counter() - start)
            if i % 50 == 0:
                ended = [Finished(r.request_id) for r in requests[i - 50 : i]]
                await self.post(FINISHED_PATH, FinishedReports(ended))


async def drive(address: tuple[str, int], pid: int, count: int) -> tuple[float, float, list[float]]:
    """Closed loop over `CONNECTIONS`: requests per second, requests per second of the master's
    processor time, seconds of each request."""
    rng = random.Random(SEED)
    prompts = chains(rng, HTTP_BLOCKS)
    requests = requests_of(rng, prompts, count)
    lanes = [Connection(*await asyncio.open_connection(*address)) for _ in range(CONNECTIONS)]
    with publisher() as (socket, endpoint):
        infos = workers(RTP_WORKERS, endpoint)
        for info in infos:
            await lanes[0].post(REGISTER_PATH, info)
        await publish(socket, infos, prompts, lanes[0])
        times: list[float] = []
        start, used = time.perf_counter(), processor_s(pid)
        async with asyncio.TaskGroup() as group:
            for i, lane in enumerate(lanes):
                group.create_task(lane.drive(requests[i::CONNECTIONS], times))
        wall, used = time.perf_counter() - start, processor_s(pid) - used
        return count / wall, count / used, times


@contextmanager
def publisher() -> Iterator[tuple[zmq.Socket[bytes], str]]:
    """A PUB socket that sees its subscriptions, and where it is."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    try:
        yield socket, f"tcp://127.0.0.1:{port}"
    finally:
        context.destroy(0)


async def publish(
    socket: zmq.Socket[bytes], infos: Sequence[InstanceInfo], prompts: list[list[int]],
    lane: Connection,
) -> dict[str, int]:  # fmt: skip
    """Every prompt to one worker, once all have subscribed; until the master knows of all. The next
    sequence number of each worker."""
    for _ in infos:
        if not socket.poll(SUBSCRIBE_MS):
            raise RuntimeError("the master did not subscribe to every worker's events")
        socket.recv()
    sequences = dict.fromkeys((info.instance_id for info in infos), 0)
    for i, keys in enumerate(prompts):
        name = infos[i % len(infos)].instance_id
        payload = encode_batch(time.time(), [BlockStored(list(keys))])
        socket.send_multipart(event_frames(f"{name} ", sequences[name], payload))
        sequences[name] += 1
    blocks = float(sum(map(len, prompts)))
    wanted = f'index_entries{{kind="blocks",model="m"}} {blocks}'.encode()
    deadline = time.monotonic() + SUBSCRIBE_MS / 1e3
    while wanted not in await lane.get("/metrics"):
        if time.monotonic() > deadline:
            raise RuntimeError("the master did not index every event")
        await asyncio.sleep(0.05)
    return sequences
