"""A device that computes behind the calls that ask it to, as a GPU does, in the place of a CPU."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from services.engine.engine import Engine
from services.engine.model.runner import Runner
from services.engine.scheduling.chunks import Chunk
from services.engine.scheduling.seams import Sampled


@dataclass
class Launched:
    """What one step writes into the pool, block by block, once the device comes to it."""

    blocks: dict[int, torch.Tensor] = field(default_factory=dict)
    done: bool = False

    def passed(self) -> bool:
        return self.done


class LateDevice:
    """A `Runner` whose steps write their KV when `finish` is called, or when a step that samples
    waits for its token. Later steps see what earlier ones write, as on one stream; a reader
    of the pool meanwhile sees what was there before."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._cache = runner._cache
        self._launched: list[Launched] = []
        self._last: Launched | None = None

    def run(self, chunks: Sequence[Chunk]) -> list[Sampled]:
        pool, size = self._cache.pool, self._cache.block_size
        before = pool.clone()
        for earlier in self._launched:
            _write(earlier, pool)
        sampled = self._runner.run(chunks)
        written = [b for c in chunks for b in c.request.blocks[c.start // size : -(-c.end // size)]]
        self._last = Launched({block: pool[block].clone() for block in written})
        self._launched.append(self._last)
        pool.copy_(before)
        if sampled:
            self.finish()
        return sampled

    def fence(self) -> Launched | None:
        return self._last

    @property
    def behind(self) -> int:
        """Steps that have been launched and are not done."""
        return len(self._launched)

    def finish(self) -> None:
        """The device does all that it was asked to."""
        for launched in self._launched:
            _write(launched, self._cache.pool)
            launched.done = True
        self._launched.clear()


def _write(launched: Launched, pool: torch.Tensor) -> None:
    for block, content in launched.blocks.items():
        pool[block] = content


def late(engine: Engine) -> LateDevice:
    """The device that `engine` computes on from here."""
    assert engine.generate is not None
    runner = engine.generate._runs._runner
    assert isinstance(runner, Runner)
    engine.generate._runs._runner = device = LateDevice(runner)
    return device
