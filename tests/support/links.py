"""A producer and a consumer of EC and KV inside the test process, over a real transport and a real
side channel."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from connectors.base import EC_TENSOR, ECConnector, Entry, Tensors
from connectors.config import ECConfig, KVConfig
from connectors.ec.arena import ArenaEC
from connectors.factory import Connectors
from connectors.kv.base import KVArrival, KVLoad
from connectors.kv.pull import PullKV
from connectors.node import Node
from protocol.curve import Curve
from protocol.errors import TransferError
from protocol.refs import KVRef

PACKAGES = {"shm": "", "shared_storage": "", "nixl": "nixl", "ucx": "ucxx"}
MEMORY = ("shm", "nixl", "ucx")
BOUND_S = 20.0
BLOCKS, ELEMENTS = 8, 256
ROWS, HIDDEN = 8, 64


def need(transport: str) -> None:
    package = PACKAGES[transport]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


class _Everything:
    """All names."""

    def __contains__(self, name: object) -> bool:
        return True


class Side:
    """The connectors of one engine."""

    def __init__(
        self, transport: Any, folder: Path, *, produces: bool, lease_s: float = 30.0,
        timeout_s: float = 10.0, port: int = 0, layout: str = "layout",
        elements: int = ELEMENTS, staged: bool = False, curve: Curve | None = None,
    ) -> None:  # fmt: skip
        """`staged`: KV is copied through other memory on the way."""
        path, size = str(folder), 64 << 10
        ec = ECConfig(
            transport, ec_buffer_size=size, landing_size=size, lease_s=lease_s, port=port,
            load_timeout_s=timeout_s, timeout_s=timeout_s, path=path,
        )  # fmt: skip
        kv_port = port if transport == "shared_storage" else 0
        kv = KVConfig(
            transport, port=kv_port, lease_s=lease_s, timeout_s=timeout_s, path=path, staged=staged
        )
        connectors = Connectors(ec, kv, curve=curve)
        self.ec: ECConnector = connectors.make_ec("model", produces=produces)
        made = connectors.make_kv(layout, "cpu")
        assert isinstance(made, PullKV)
        self.kv = made
        self.pool = self.kv.allocate(BLOCKS, elements, torch.float32)
        self.ended: list[str] = []
        self._lease_s, self._ahead_s = lease_s, 0.0
        self.kv.producer.leases._clock = self._clock
        if isinstance(self.ec, ArenaEC) and produces:
            self.ec.store._clock = self._clock

    def _clock(self) -> float:
        return time.monotonic() + self._ahead_s

    def lapse(self) -> None:
        """Let a lease's time pass for all that this side holds for others."""
        self._ahead_s += self._lease_s

    @property
    def node(self) -> Node:
        return self.kv._node

    @property
    def refused(self) -> int:
        return self.kv.stats().refused

    def poll(self) -> None:
        self.ec.poll(_Everything())  # what is asked for may come, however late
        self.ended += self.kv.poll()

    def close(self) -> None:
        self.kv.close()
        self.ec.close()


class Link:
    """`producer` and `consumer`; `until` polls both."""

    def __init__(self, transport: str, folder: Path, **options: Any) -> None:
        self.transport = transport
        self.folder = folder
        self.producer = Side(transport, folder, produces=True, **options)
        self.consumer = Side(transport, folder, produces=False, **options)
        self._number = 0

    def until(self, done: Callable[[], Any], *sides: Side) -> None:
        deadline = time.monotonic() + BOUND_S
        while not done():
            assert time.monotonic() < deadline
            for side in sides or (self.producer, self.consumer):
                side.poll()
            time.sleep(0.0005)

    def name(self) -> str:
        """One that was not used before."""
        self._number += 1
        return f"{self._number:08d}"

    def offer(self, blocks: list[int]) -> KVRef:
        """A new request, whose KV is complete in these blocks of the producer."""
        kv, name = self.producer.kv, self.name()
        kv.offer(name)
        for block in blocks:
            self.producer.pool[block] = torch.randn(ELEMENTS)
        kv.advance(name, blocks)
        return kv.seal(name, 16 * len(blocks), 0, {0: [5]})

    def copied(self, load: KVLoad) -> KVArrival:
        """What arrives; `TransferError` if nothing does."""
        arrived: list[KVArrival] = []

        def done() -> bool:
            arrival = load.poll()
            arrived.extend([arrival] if arrival is not None else [])
            return bool(arrived)

        self.until(done)
        return arrived[0]

    def loaded(self, name: str, params: dict[str, Any] | None) -> Tensors:
        """An embedding, the same way."""
        load, found = self.consumer.ec.fetch(name, params), list[Tensors]()
        try:
            self.until(lambda: found.extend(t for t in [load.poll()] if t is not None) or found)
        finally:
            load.cancel()
        return found[0]

    def works(self) -> None:
        """A transfer of each kind arrives whole, and nothing is left of it."""
        name, entry = self.name(), rows()
        params = self.producer.ec.offer(name, Entry(entry, ("r",)))
        tensors = self.loaded(name, params)
        assert torch.equal(tensors[EC_TENSOR], entry[EC_TENSOR])
        self.consumer.ec.release(name, params, "r")
        ref = self.offer([3, 1])
        load = self.consumer.kv.fetch(ref, 2)
        load.place(0, [6, 0])
        assert self.copied(load).outputs == {0: [5]}
        assert torch.equal(self.consumer.pool[[6, 0]], self.producer.pool[[3, 1]])
        self.until(lambda: ref.request_id in self.producer.ended)
        self.sound()

    def sound(self) -> None:
        """Nothing is held for anybody."""
        sides = (self.producer, self.consumer)
        self.until(lambda: not [p for s in sides for p in s.kv.check_integrity()])
        assert [p for s in sides for p in s.ec.check_integrity()] == []

    def fails(self, load: KVLoad) -> TransferError:
        """How a fetch fails; it is given up then, as an engine does."""
        with pytest.raises(TransferError) as caught:
            self.copied(load)
        load.cancel()
        self.until(lambda: load.settled)
        return caught.value

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


def rows(tokens: int = ROWS) -> Tensors:
    return {EC_TENSOR: torch.randn(tokens, HIDDEN)}


@contextmanager
def linked(transport: str, folder: Path, **options: Any) -> Iterator[Link]:
    """A link that leaves nothing in its folder."""
    need(transport)
    link = Link(transport, folder, **options)
    try:
        yield link
    finally:
        link.close()
    assert list(folder.glob("*")) == []
