"""The engine's process as its worker sees it."""

import time
from pathlib import Path

import msgspec
import pytest
import zmq

from connectors.config import ECConfig, KVConfig
from connectors.messages import Alive, Heartbeat
from connectors.side_server import SideServer
from services.engine import messages, process
from services.engine.config import EngineConfig
from services.engine.messages import Event, Fatal, Query, Ready, Start, Statistics, decode_event
from tests.conftest import ModelDir
from tests.support import engines
from tests.support.forked import EngineProcess
from tests.support.raw_peers import RawConsumer
from tests.support.tiny_models import STATEFUL_FAMILY
from tests.support.waiting import until

BOUND_S = 60.0
encode = msgspec.json.encode


def test_an_engine_ends_with_its_worker_even_while_it_starts(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """The worker's end of the pipe is closed before the engine has looked for it."""
    model = str(model_dir("qwen3"))
    config = EngineConfig(
        model_dir=model, model="m", revision="r", parts=("language",), num_blocks=8
    )
    start = Start(f"ipc://{tmp_path}/commands", f"ipc://{tmp_path}/events", config)
    engine = EngineProcess()
    try:
        engine.stdin.write(encode(start) + b"\n")
        engine.stdin.close()
        assert engine.wait(BOUND_S) == 0
    finally:
        engine.kill()


def test_an_engine_that_refuses_its_model_says_why_and_leaves_nothing(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """It has announced itself to its peers by the time it reads the weights."""
    config = EngineConfig(
        model_dir=str(model_dir(STATEFUL_FAMILY)), model="m", revision="r", parts=("language",),
        num_blocks=8, ec=ECConfig("shm", path=str(tmp_path / "shm"), role="ec_producer"),
    )  # fmt: skip
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    events = context.socket(zmq.PULL)
    events.bind(f"ipc://{tmp_path}/events")
    start = Start(f"ipc://{tmp_path}/commands", f"ipc://{tmp_path}/events", config)
    engine = EngineProcess()
    try:
        engine.stdin.write(encode(start) + b"\n")
        assert events.poll(round(BOUND_S * 1000))
        said = decode_event(events.recv())
        assert isinstance(said, Fatal) and "qwen3_next" in said.error.message, said
        assert engine.wait(BOUND_S) == 2
    finally:
        engine.kill()
        events.close(0)
    assert list((tmp_path / "shm").iterdir()) == []


class Stalled:
    """An engine whose worker takes no events for as long as a test likes."""

    def __init__(self, model: Path, folder: Path) -> None:
        config = EngineConfig(
            model_dir=str(model), model="m", revision="r", parts=("language",), num_blocks=8,
            kv=KVConfig("shm", path=str(folder / "shm")),
        )  # fmt: skip
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._commands = context.socket(zmq.PUSH)
        self._commands.set_hwm(1)
        self._commands.bind(f"ipc://{folder}/commands")
        self._events = context.socket(zmq.PULL)
        self._events.set_hwm(1)
        self._events.bind(f"ipc://{folder}/events")
        self._asked = self._answered = 0
        start = Start(f"ipc://{folder}/commands", f"ipc://{folder}/events", config)
        self.process = EngineProcess()
        self.process.stdin.write(encode(start) + b"\n")
        ready = self.take()
        assert isinstance(ready, Ready)
        self.port: int = ready.kv_endpoint["remote_port"]

    def take(self) -> Event:
        assert self._events.poll(round(BOUND_S * 1000))
        return decode_event(self._events.recv())

    def fill(self) -> None:
        """Ask until no questions are taken any more."""
        while self._commands.poll(1000, zmq.POLLOUT):
            self._commands.send(messages.encode(Query(self._asked)))
            self._asked += 1

    def say(self, data: bytes) -> None:
        self._commands.send(data)

    def drain(self) -> None:
        """Every answer that is due, in order."""
        while self._answered < self._asked:
            answer = self.take()
            assert isinstance(answer, Statistics) and answer.query_id == self._answered
            self._answered += 1

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._commands.close(linger=0)
        self._events.close(linger=0)


def test_a_command_that_makes_no_sense_is_passed_over(model_dir: ModelDir, tmp_path: Path) -> None:
    engine = Stalled(model_dir("qwen3"), tmp_path)
    try:
        for data in (b"\xc1", b"", messages.encode(Query(1 << 40))[:-1]):
            engine.say(data)
        engine.say(messages.encode(Query(7)))
        answer = engine.take()
        assert isinstance(answer, Statistics) and answer.query_id == 7
    finally:
        engine.close()


def test_an_engine_whose_worker_stalls_serves_its_peers_and_ends_with_it(
    model_dir: ModelDir, tmp_path: Path
) -> None:
    """What it has to say waits in order, and nothing is lost once it is taken."""
    stalled = Stalled(model_dir("qwen3"), tmp_path)
    peer = RawConsumer(stalled.port)
    try:
        stalled.fill()
        for _ in range(2):
            peer.say(Heartbeat([]))
            until = time.monotonic() + BOUND_S
            while peer.heard() != Alive():
                assert time.monotonic() < until
                time.sleep(0.001)
        stalled.drain()
        stalled.fill()
        stalled.process.stdin.close()
        assert stalled.process.wait(BOUND_S) == 0
    finally:
        peer.close()
        stalled.close()
    assert list((tmp_path / "shm").iterdir()) == []


class WithoutWorker(process.EngineProcess):
    """Keeps what it says."""

    def __init__(self) -> None:
        self.said: list[Event] = []

    def _send(self, event: Event) -> None:
        self.said.append(event)


class SlowAdapters:
    """One takes as long to load as `peer` takes to hear that the engine computes."""

    def __init__(self, peer: RawConsumer) -> None:
        self.revisions = {"a": "r"}
        self._peer = peer

    def load(self, name: str, folder: Path) -> None:
        until(lambda: isinstance(self._peer.heard(), Alive))

    def unload(self, name: str) -> None:
        raise AssertionError


@pytest.mark.parametrize("broken", [False, True])
def test_peers_hear_of_an_engine_that_loads_an_adapter(
    model_dir: ModelDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, broken: bool
) -> None:
    """What goes wrong with them meanwhile is no reason to end."""
    kv = KVConfig("shm", path=str(tmp_path / "shm"))
    engine = engines.engine(model_dir("qwen3"), num_blocks=8, kv=kv)
    assert engine.kv is not None
    peer = RawConsumer(engine.kv.endpoint()["remote_port"])
    try:
        engine.adapters = SlowAdapters(peer)  # type: ignore[assignment]
        peer.say(Heartbeat([]))
        worker, said = WithoutWorker(), SideServer.say_computing

        def failing(server: SideServer, step_s: float) -> None:
            said(server, step_s)
            if server.waiting:  # it has heard the peer, and answered
                raise OSError("a network that fails")

        with monkeypatch.context() as patch:
            if broken:
                patch.setattr(SideServer, "say_computing", failing)
            worker._handle(engine, messages.LoadAdapter(3, "a", "folder"), [], [])
        assert worker.said == [messages.AdapterTable(3, {"a": "r"})]
        engine.step()
    finally:
        peer.close()
        engine.close()
