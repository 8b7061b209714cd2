"""A store of embeddings on a clock of its own, and a bus in place of its peers."""

from typing import Any

import torch

from connectors.base import Entry
from connectors.ec.store import ECStore
from connectors.messages import ECGrant, ECWant

ROWS, HIDDEN = 4, 64
SIZE = ROWS * HIDDEN * 4


class Bus:
    """Stands where the side channel's server does: hands over messages, keeps answers."""

    def __init__(self) -> None:
        self.handlers: dict[type, Any] = {}
        self.answers: list[Any] = []

    def on(self, kind: type, handler: Any) -> None:
        self.handlers[kind] = handler

    def say(self, message: Any) -> Any:
        """Deliver; the last answer."""
        self.handlers[type(message)](message, self.answers.append)
        return self.answers[-1] if self.answers else None


class Case:
    """A store for `count` entries on a clock of its own."""

    def __init__(self, count: int, lease_s: float = 30.0) -> None:
        self.now = 100.0
        self.bus = Bus()
        self.memory = torch.zeros(count * SIZE, dtype=torch.uint8)
        self.pending: set[str] = set()
        self.store = ECStore(
            self.bus,  # type: ignore[arg-type]
            self.memory,
            lambda offset, size: None,
            lease_s,
            lambda: self.now,
        )

    def offer(self, name: str, *holders: str) -> bool:
        return self.store.offer(name, Entry(tensors(name), holders))

    def want(self, name: str, query: int = 1) -> ECGrant:
        answer = self.bus.say(ECWant(query, name, 60.0))
        assert isinstance(answer, ECGrant)
        return answer

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.store.poll(self.pending)

    def sound(self) -> None:
        assert self.store.check_integrity() == []


def tensors(name: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(hash(name) % 1000)
    return {"ec_cache": torch.randn(ROWS, HIDDEN, generator=generator)}
