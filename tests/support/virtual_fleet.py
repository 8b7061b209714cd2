"""Mock engines on one virtual clock: what HTTP carries between processes is answered directly."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.mock.engine import Engine, Step
from services.mock.loads import Action, AskEmbedding, AskKV, ConfirmKV, KeepKV, ReleaseKV

_Outputs = Callable[[Engine, list[RequestOutput], list[EncodeOutput]], None]
_STEPS_AT_ONCE = 100_000


class VirtualFleet:
    """Engines by (host, port). Messages between them take no time; `on_outputs` is told what every
    step has put out. `dead` engines answer nobody and do not run."""

    def __init__(self, engines: Sequence[Engine], on_outputs: _Outputs) -> None:
        self.now = 0.0
        self.dead: set[Engine] = set()
        self._engines = {(e.settings.host, e.settings.port): e for e in engines}
        self._order = {engine: number for number, engine in enumerate(engines)}
        self._on_outputs = on_outputs
        self._due: list[tuple[float, int, Engine]] = []
        self._next: dict[Engine, float] = {}
        self._kv_waiters: dict[tuple[Engine, str], tuple[Engine, str]] = {}
        self._ec_waiters: dict[str, list[Engine]] = {}

    def add(self, engine: Engine, source: GenerateRequest, local: Collection[str] = ()) -> None:
        """Queue a request now. Raises `InvalidRequest`."""
        engine.add(source, self.now, local)
        self._wake(engine, self.now)

    def add_encode(self, engine: Engine, request: EncodeRequest) -> None:
        """Queue items now; even what is answered at once comes through `on_outputs`."""
        at_once = engine.add_encode(request, self.now)
        if at_once:
            self._on_outputs(engine, [], at_once)
        self._wake(engine, self.now)

    def abort(self, engine: Engine, request_ids: Collection[str]) -> None:
        engine.abort(request_ids)
        self._wake(engine, self.now)

    def _wake(self, engine: Engine, time: float) -> None:
        if time < self._next.get(engine, float("inf")):
            self._next[engine] = time
            heapq.heappush(self._due, (time, self._order[engine], engine))

    def run(self, until: float = float("inf")) -> None:
        """Pass time until nothing is due before `until`."""
        while self._due and self._due[0][0] <= until:
            time, _, engine = heapq.heappop(self._due)
            if self._next.get(engine) != time:
                continue
            del self._next[engine]
            self.now = max(self.now, time)
            if engine not in self.dead:
                self._run(engine)
        if until != float("inf"):
            self.now = max(self.now, until)

    def _run(self, engine: Engine) -> None:
        for _ in range(_STEPS_AT_ONCE):
            step = engine.step(self.now)
            self._answer(engine, step)
            if step.next_time is None:
                return
            if step.next_time > self.now:
                self._wake(engine, step.next_time)
                return
        raise AssertionError("an engine that never comes to rest")

    def _answer(self, engine: Engine, step: Step) -> None:
        for action in step.actions:
            self._act(engine, action)
        for request_id in step.settled:
            waiting = self._kv_waiters.pop((engine, request_id), None)
            if waiting is not None:
                self._tell_offer(engine, request_id, *waiting)
        for item in step.encoded:
            for waiter in self._ec_waiters.pop(item.mm_hash, ()):
                rows = engine.store.find(item.mm_hash)
                waiter.embedding_found(item.mm_hash, rows or "it was not encoded", self.now)
                self._wake(waiter, self.now)
        if step.outputs or step.encoded:
            self._on_outputs(engine, step.outputs, step.encoded)

    def _producer(self, host: str, port: int) -> Engine | None:
        engine = self._engines.get((host, port))
        return None if engine in self.dead else engine

    def _act(self, engine: Engine, action: Action) -> None:
        if isinstance(action, AskEmbedding):
            self._find_embedding(engine, action)
            return
        producer = self._producer(action.ref.host, action.ref.port)
        request_id = action.ref.request_id
        match action:
            case AskKV():
                self._ask(engine, action, producer)
            case ConfirmKV():
                held = producer is not None and producer.offers.confirm(
                    request_id, action.generation, self.now
                )
                engine.kv_confirmed(action.request_id, held)
                self._wake(engine, self.now)
            case KeepKV() if producer is not None:
                producer.offers.find(request_id, self.now)
            case ReleaseKV() if producer is not None:
                self._kv_waiters.pop((producer, request_id), None)
                producer.offers.release(request_id)
                self._wake(producer, self.now)
            case _:
                pass

    def _ask(self, engine: Engine, action: AskKV, producer: Engine | None) -> None:
        request_id = action.ref.request_id
        if producer is None:
            engine.kv_answered(
                action.request_id, "the producer has ended or was disconnected", self.now
            )
            self._wake(engine, self.now)
        elif action.ref.growing and producer.offers.find(request_id, self.now) is None:
            self._kv_waiters[producer, request_id] = engine, action.request_id
        else:
            self._tell_offer(producer, request_id, engine, action.request_id)

    def _tell_offer(self, producer: Engine, name: str, consumer: Engine, request_id: str) -> None:
        offer = producer.offers.find(name, self.now)
        consumer.kv_answered(request_id, offer or "nothing is held under this name", self.now)
        self._wake(consumer, self.now)

    def _find_embedding(self, engine: Engine, action: AskEmbedding) -> None:
        """At the encoder named, or at whichever has it; where none has, it is waited for."""
        named = self._producer(action.host, action.port) if action.host else None
        encoders = [e for e in self._engines.values() if e.settings.encodes and e not in self.dead]
        found = [e.store.find(action.mm_hash) for e in ([named] if named else encoders)]
        rows = next((rows for rows in found if rows is not None), None)
        if rows is None and not action.host:
            self._ec_waiters.setdefault(action.mm_hash, []).append(engine)
            return
        engine.embedding_found(action.mm_hash, rows or "no encoder has it", self.now)
        self._wake(engine, self.now)
