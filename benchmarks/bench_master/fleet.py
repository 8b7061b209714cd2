"""What workers send to a master by themselves: heartbeats, and what their caches gain and lose."""

import asyncio
import time
from collections import deque

import zmq

from benchmarks.bench_master.http import Connection
from benchmarks.bench_master.load import BLOCK_SIZE, CHAIN, LOAD
from protocol.event_frames import event_frames
from protocol.kv_events import BlockHash, BlockRemoved, BlockStored, CacheEvent, encode_batch
from protocol.registry import HEARTBEAT_PATH, Heartbeat, InstanceInfo

BEAT_S = 1.0  # as workers do unless told otherwise
KEPT = 20  # prompts of which a worker keeps the blocks
_TOKENS = [100_000] * (CHAIN * BLOCK_SIZE)


class Beats:
    """One worker's heartbeats on a connection of its own. `count`: those that were answered."""

    def __init__(self, lane: Connection, info: InstanceInfo) -> None:
        self.count = 0
        self._lane = lane
        self._body = Heartbeat(info.instance_id, info.generation, LOAD)

    async def run(self, phase: float) -> None:
        """From `phase` of an interval on, until cancelled."""
        due = time.perf_counter() + phase * BEAT_S
        while True:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self._lane.post(HEARTBEAT_PATH, self._body)
            self.count += 1
            due += BEAT_S


class Publishing:
    """The caches of all workers, and what they publish of them."""

    def __init__(self, socket: zmq.Socket[bytes], sequences: dict[str, int]) -> None:
        """`sequences`: the next number of each worker's messages."""
        self._socket = socket
        self._sequences = sequences
        self._kept: dict[str, deque[list[BlockHash]]] = {name: deque() for name in sequences}

    def stored(self, name: str, keys: list[int]) -> int:
        """A worker has got these blocks; how many changes it publishes."""
        tokens, kept = _TOKENS[: len(keys) * BLOCK_SIZE], self._kept[name]
        stored: list[BlockHash] = [*keys]
        events: list[CacheEvent] = [BlockStored(stored, None, tokens, BLOCK_SIZE, medium="GPU")]
        kept.append(stored)
        gone = kept.popleft() if len(kept) > KEPT else []
        if gone:
            events.insert(0, BlockRemoved(gone, "GPU"))
        frames = event_frames(f"{name} ", self._sequences[name], encode_batch(time.time(), events))
        self._sequences[name] += 1
        self._socket.send_multipart(frames)
        return len(keys) + len(gone)
