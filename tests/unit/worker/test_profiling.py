"""A trace of an engine that stalls goes on, and can still be ended."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from protocol.errors import InvalidRequest, NotServing
from services.worker.profiling import Trace
from services.worker.worker import Worker


@dataclass
class Engine:
    stalled: bool = False
    told: list[str] = field(default_factory=list)

    def profile(self, path: str = "") -> None:
        if self.stalled:
            raise NotServing("engine stalled")
        self.told.append(path)


@dataclass
class Traced:
    """What of a worker is looked at; its role is its own name."""

    engine: Engine
    instance_id: str = "0123456789"
    name: str = "decode"

    @property
    def role(self) -> "Traced":
        return self


async def test_a_trace_whose_time_is_over_in_a_stall_ends_after_it(tmp_path: Path) -> None:
    engine = Engine()
    trace = Trace(cast(Worker, Traced(engine)), tmp_path)
    path = trace.start()
    engine.stalled = True
    for _ in range(2):
        trace._end()
    with pytest.raises(InvalidRequest, match="a trace is being taken"):
        trace.start()
    engine.stalled = False
    trace._end()
    assert engine.told == ["", str(path)]
    with pytest.raises(InvalidRequest, match="no trace is being taken"):
        trace.stop()
