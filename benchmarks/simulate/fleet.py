"""Mock engines on one virtual clock: what HTTP carries between processes takes `message_s`."""

from __future__ import annotations

from collections.abc import Callable, Collection

from benchmarks.simulate.clock import Clock
from protocol.refs import KVRef
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.mock.actions import Action, AskEmbedding, AskKV, ConfirmKV, KeepKV, ReleaseKV, Step
from services.mock.engine import Engine

Steps = Callable[[Engine, Step], None]
Missing = Callable[[Engine, str], None]
Answers = Callable[[Engine, list[RequestOutput], list[EncodeOutput]], None]
_STEPS_AT_ONCE = 100_000


class Fleet:
    """Engines by (host, port). `on_outputs` is told what every step has put out, `on_step` all of
    it. `on_missing` is told of an embedding that a consumer has asked for and no encoder named has;
    the consumer then waits for it. `dead` engines answer nothing and do not run."""

    def __init__(
        self,
        clock: Clock,
        on_outputs: Answers,
        *,
        message_s: float = 0.0,
        on_step: Steps | None = None,
        on_missing: Missing | None = None,
    ) -> None:
        self.clock = clock
        self.dead: set[Engine] = set()
        self._on_outputs = on_outputs
        self._on_step = on_step
        self._on_missing = on_missing
        self._message_s = message_s
        self._engines: dict[tuple[str, int], Engine] = {}
        self._next: dict[Engine, float] = {}
        self._kv_waiters: dict[tuple[Engine, str], tuple[Engine, KVRef]] = {}
        self._ec_waiters: dict[str, list[Engine]] = {}

    def join(self, engine: Engine) -> None:
        self._engines[engine.settings.host, engine.settings.port] = engine

    def add(self, engine: Engine, source: GenerateRequest, local: Collection[str] = ()) -> None:
        """Queue a request now. Raises `InvalidRequest`."""
        engine.add(source, local)
        self.wake(engine)

    def add_encode(self, engine: Engine, request: EncodeRequest) -> None:
        """Queue items now; even what is answered at once comes through `on_outputs`."""
        at_once = engine.add_encode(request)
        if at_once:
            self._on_outputs(engine, [], at_once)
        self.wake(engine)

    def abort(self, engine: Engine, request_ids: Collection[str]) -> None:
        engine.abort(request_ids)
        self.wake(engine)

    def kill(self, engine: Engine) -> None:
        """It answers no more; those who wait for it are told that it is gone."""
        self.dead.add(engine)
        for (producer, _), (consumer, ref) in list(self._kv_waiters.items()):
            if producer is engine:
                self._ask(consumer, ref, None)

    def wake(self, engine: Engine, time: float | None = None) -> None:
        """Run an engine at `time`, now if there is none."""
        time = self.clock.now if time is None else time
        if time < self._next.get(engine, float("inf")):
            self._next[engine] = time
            self.clock.at(time, self._due, engine, time)

    def _due(self, engine: Engine, time: float) -> None:
        if self._next.get(engine) != time:
            return
        del self._next[engine]
        if engine not in self.dead:
            self._run(engine)

    def _run(self, engine: Engine) -> None:
        for _ in range(_STEPS_AT_ONCE):
            step = engine.step()
            self._answer(engine, step)
            if step.next_time is None:
                return
            if step.next_time > self.clock.now:
                self.wake(engine, step.next_time)
                return
        raise AssertionError("an engine that never comes to rest")

    def _answer(self, engine: Engine, step: Step) -> None:
        for action in step.actions:
            self._send(self._act, engine, action)
        for request_id in step.settled:
            waiting = self._kv_waiters.pop((engine, request_id), None)
            if waiting is not None:
                self._send(self._tell_offer, engine, *waiting)
        for item in step.encoded:
            for waiter in self._ec_waiters.pop(item.mm_hash, ()):
                rows = engine.ec.rows_of(item.mm_hash)
                self._send(self._tell_rows, waiter, item.mm_hash, rows or "it was not encoded")
        if self._on_step is not None:
            self._on_step(engine, step)
        if step.outputs or step.encoded:
            self._on_outputs(engine, step.outputs, step.encoded)

    def _send(self, call: Callable[..., None], *args: object) -> None:
        if self._message_s:
            self.clock.after(self._message_s, call, *args)
        else:
            call(*args)

    def _producer(self, host: str, port: int) -> Engine | None:
        engine = self._engines.get((host, port))
        return None if engine in self.dead else engine

    def _act(self, engine: Engine, action: Action) -> None:
        """An action has arrived where it is meant for."""
        if isinstance(action, AskEmbedding):
            self._find_embedding(engine, action)
            return
        ref = action.ref
        producer = self._producer(ref.host, ref.port)
        match action:
            case AskKV():
                self._ask(engine, ref, producer)
            case ConfirmKV():
                held = False
                if producer is not None:
                    held = producer.offers.confirm(ref.request_id, action.generation)
                    self.wake(producer)
                self._send(self._tell_held, engine, ref, held)
            case KeepKV() if producer is not None:
                producer.offers.find(ref.request_id)
            case ReleaseKV() if producer is not None:
                self._kv_waiters.pop((producer, ref.request_id), None)
                producer.offers.release(ref.request_id)
                self.wake(producer)
            case _:
                pass

    def _tell_held(self, engine: Engine, ref: KVRef, held: bool) -> None:
        engine.loads.confirmed(ref, held)
        self.wake(engine)

    def _ask(self, engine: Engine, ref: KVRef, producer: Engine | None) -> None:
        if producer is None:
            engine.loads.answered(ref, "the producer is gone")
            self.wake(engine)
        elif ref.growing and producer.offers.find(ref.request_id) is None:
            self._kv_waiters[producer, ref.request_id] = engine, ref
        else:
            self._send(self._tell_offer, producer, engine, ref)

    def _tell_offer(self, producer: Engine, consumer: Engine, ref: KVRef) -> None:
        offer = producer.offers.find(ref.request_id)
        consumer.loads.answered(ref, offer or "nothing is held under this name")
        self.wake(consumer)

    def _find_embedding(self, engine: Engine, action: AskEmbedding) -> None:
        """At the encoder named, or at one that has it; where none has, it is waited for."""
        named = self._producer(action.host, action.port) if action.host else None
        encoders = [e for e in self._engines.values() if e.settings.encodes and e not in self.dead]
        found = (e.ec.rows_of(action.mm_hash) for e in ([named] if named else encoders))
        rows = next((rows for rows in found if rows is not None), None)
        if rows is None and (not action.host or self._on_missing is not None):
            self._ec_waiters.setdefault(action.mm_hash, []).append(engine)
            if self._on_missing is not None and not action.host:
                self._on_missing(engine, action.mm_hash)
            return
        self._send(self._tell_rows, engine, action.mm_hash, rows or "no encoder has it")

    def _tell_rows(self, engine: Engine, mm_hash: str, answer: int | str) -> None:
        engine.ec.found(mm_hash, answer)
        self.wake(engine)
