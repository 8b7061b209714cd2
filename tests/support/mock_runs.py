"""Mock engines that run together on virtual time."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulate.clock import Clock
from benchmarks.simulate.fleet import Fleet
from protocol.kv_events import CacheEvent
from protocol.types import EncodeOutput, GenerateRequest, RequestOutput, SamplingParams
from services.mock.actions import Step
from services.mock.engine import Engine
from services.mock.settings import EngineSettings
from services.mock.timing import Noise, Timing
from services.mock.tokens import Vocabulary

TIMING = Timing(prefill_token_ms=1, decode_base_ms=10, decode_request_ms=1, kv_block_ms=2)
WORDS = Vocabulary()


class Shared:
    """Time on the clock of the run that an engine takes part in."""

    clock = Clock()

    def __call__(self) -> float:
        return self.clock.now


@dataclass
class Run:
    """Engines and everything they have put out: (time, output) by request id."""

    engines: list[Engine]
    answers: dict[str, list[tuple[float, RequestOutput]]] = field(default_factory=dict)
    kv_events: list[CacheEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.fleet = Fleet(self.clock, self._take, on_step=self._see)
        for engine in self.engines:
            assert isinstance(engine.clock, Shared)
            engine.clock.clock = self.clock
            self.fleet.join(engine)

    def _take(
        self, engine: Engine, outputs: list[RequestOutput], encoded: list[EncodeOutput]
    ) -> None:
        for output in outputs:
            self.answers.setdefault(output.request_id, []).append((self.clock.now, output))

    def _see(self, engine: Engine, step: Step) -> None:
        self.kv_events += step.kv_events

    def tokens(self, name: str, index: int = 0) -> list[int]:
        found = self.answers.get(name, [])
        return [t for _, o in found if o.index == index for t in o.token_ids]

    def times(self, name: str) -> list[float]:
        return [time for time, output in self.answers[name] if output.token_ids]

    def last(self, name: str) -> RequestOutput:
        return self.answers[name][-1][1]

    def check(self) -> None:
        """Nothing is left, and all books agree."""
        for engine in self.engines:
            assert engine.check_integrity() == []
            assert engine.generate is None or len(engine.generate) == 0
            assert engine.blocks.usage == 0.0


def engine(port: int = 1, timing: Timing = TIMING, **options: Any) -> Engine:
    values = {"instance_id": f"i{port}", "host": "h", "port": port, **options}
    return Engine(EngineSettings(**values), timing, Noise(), Shared())


def asked(name: str, prompt: list[int], most: int = 4, **more: Any) -> GenerateRequest:
    fields = {f: more.pop(f) for f in list(more) if f not in SamplingParams.__struct_fields__}
    return GenerateRequest(name, prompt, SamplingParams(max_tokens=most, **more), **fields)


def alone(request: GenerateRequest, **options: Any) -> Run:
    run = Run([engine(**options)])
    run.fleet.add(run.engines[0], request)
    run.clock.run()
    return run


def pair(**options: Any) -> tuple[Run, Engine, Engine]:
    prefill = engine(1, role="prefill", **options)
    decode = engine(2, role="decode", **options)
    return Run([prefill, decode]), prefill, decode
