"""Fleets that are set up wrongly: named in /health and in one line of the log, refused at once."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import body_of
from tests.support.conversations import asking, picture
from tests.support.masters import workers
from tests.support.mocks import FAST
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, proxy, running
from tests.support.thinned import thinned
from tests.support.transport_flags import flags_of

DEMO = Path(__file__).parents[2] / "models" / "demo"
CHAT = "/v1/chat/completions"
AT_ONCE_S = 20.0
BEAT = ("--heartbeat-interval", "0.2")


def until(condition: Any) -> None:
    waiting.until(condition, bound_s=30.0)


def problems(server: Process) -> list[str]:
    found: list[str] = call(f"{server.url}/health")[1]["problems"]
    return found


def ask(server: Process, case: Any, model: str = "tiny") -> tuple[int, Any]:
    return call(server.url + CHAT, body_of(case, max_tokens=4, model=model))


def lines(server: Process, text: str) -> list[str]:
    return [line for line in server.log if text in line]


def said_once(server: Process, text: str) -> None:
    """What it writes is read by a thread of ours."""
    until(lambda: lines(server, text))
    assert len(lines(server, text)) == 1


WAYS = ("list", "master")
"""How a proxy hears of its workers."""


def by_way(*kept: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "way", thinned([(way,) for way in WAYS], lambda one: one in kept)
    )


@pytest.fixture(scope="module")
def stack(model_dir: ModelDir) -> Iterator[Stack]:
    with running(model_dir("qwen2_5_vl")) as stack:
        yield stack


class Fleet:
    """Mock workers that start at the same time; `mastered`: they register with a master too."""

    def __init__(self, stack: Stack, mastered: bool = True) -> None:
        self.stack = stack
        self.master: Process | None = None
        self.workers: dict[str, list[Process]] = {"encode": [], "prefill": [], "decode": []}
        if mastered:
            self.master = stack.start_plain("services.master", "--lease", "30")
            self.master.wait_ready()

    def add(self, role: str, *flags: str) -> Process:
        told = ("--master-url", self.master.url, *BEAT) if self.master else ()
        worker = self.stack.start("services.mock", "--role", role, *FAST, *told, *flags)
        self.workers[role].append(worker)
        return worker

    def ways(self, way: str) -> tuple[str, ...]:
        """A proxy's flags; all workers are ready."""
        started = [worker for some in self.workers.values() for worker in some]
        for worker in started:
            if not worker.url:
                worker.wait_ready()
        if way == "master" and self.master is not None:
            master = self.master
            until(lambda: len(workers(master)) == len(started))
            return ("--master-url", master.url)
        return tuple(
            flag
            for role, some in self.workers.items()
            for flag in (f"--{role}-servers-urls", ",".join(one.url for one in some) or "none")
        )


class Serve(Protocol):
    def __call__(
        self, fleet: Fleet, way: str, *flags: str, models: Mapping[str, Path] | None = None
    ) -> Process:
        """A proxy; `models`: by name, if not the stack's own."""


@pytest.fixture
def serve(stack: Stack) -> Iterator[Serve]:
    """Start proxies, which end with the test."""
    started: list[Process] = []

    def run(
        fleet: Fleet, way: str, *flags: str, models: Mapping[str, Path] | None = None
    ) -> Process:
        named = (*fleet.ways(way), "--probe-interval", "0.2", *flags)
        started.append(stack.start("proxy", *named, models=models))
        started[-1].wait_ready()
        return started[-1]

    yield run
    for server in started:
        server.terminate()
    assert [server.status() for server in started] == [0] * len(started)


@pytest.fixture(scope="module")
def unlike(stack: Stack) -> Fleet:
    """An encoder that prefill cannot read from."""
    fleet = Fleet(stack)
    fleet.add("encode", "--ec-transfer-config", "nixl")
    for role in ("prefill", "decode"):
        fleet.add(role, "--ec-transfer-config", "shm")
    return fleet


@by_way(*WAYS)
def test_an_encoder_that_prefill_cannot_read_from(unlike: Fleet, serve: Serve, way: str) -> None:
    server = serve(unlike, way)
    (encoder,), (prefill,) = unlike.workers["encode"], unlike.workers["prefill"]
    until(lambda: problems(server))
    (found,) = problems(server)
    assert encoder.url in found and prefill.url in found and "--ec-transfer-config" in found
    begun = time.monotonic()
    status, answer = ask(server, asking(picture(1)))
    assert time.monotonic() - begun < AT_ONCE_S
    assert (status, answer["error"]["code"]) == (503, "incompatible_peer"), answer
    assert "--ec-transfer-config" in answer["error"]["message"]
    assert ask(server, asking("only text"))[0] == 200
    said_once(server, "can read no encode worker's embeddings")


def test_a_mistake_is_over_once_it_is_mended(unlike: Fleet, serve: Serve) -> None:
    """For a relaying proxy, which refuses at once too, once it knows another encoder. (The last
    test here of these workers.)"""
    relaying = ("--dialect", "openai")
    server, relay = serve(unlike, "list"), serve(unlike, "list", *relaying)
    (encoder,) = unlike.workers["encode"]
    (found,) = problems(relay)
    assert encoder.url in found
    status, answer = ask(relay, asking(picture(4)))
    assert (status, answer["error"]["code"]) == (503, "incompatible_peer"), answer
    unlike.add("encode", "--ec-transfer-config", "shm")
    status, answer = ask(serve(unlike, "list", *relaying), asking(picture(4)))
    assert status == 200, answer
    until(lambda: problems(server))
    encoder.stop()
    encoder.flags = tuple("shm" if flag == "nixl" else flag for flag in encoder.flags)
    encoder.restart()
    until(lambda: not problems(server))
    assert ask(server, asking(picture(2)))[0] == 200
    until(lambda: lines(server, "mended: "))
    assert len(lines(server, "can read no encode worker's embeddings")) == 2  # and "mended: ..."


@pytest.fixture(scope="module")
def mixed(stack: Stack) -> Fleet:
    """Of two encoders, and of two prefill workers, one fits."""
    fleet = Fleet(stack)
    for transport in ("nixl", "shm"):
        fleet.add("encode", "--ec-transfer-config", transport)
    for transport in ("ucx", "shm"):
        fleet.add("prefill", "--ec-transfer-config", transport)
    fleet.add("decode", "--ec-transfer-config", "shm")
    return fleet


@by_way(*WAYS)
def test_pictures_go_to_workers_that_fit(mixed: Fleet, serve: Serve, way: str) -> None:
    server = serve(mixed, way)
    until(lambda: len(problems(server)) == 2)

    def counts() -> tuple[list[float], list[float]]:
        """Pictures encoded, and tokens filled, at one that does not fit and at one that does."""
        found = {
            role: [call(f"{worker.url}/integrity")[1]["counters"][name] for worker in some]
            for role, name, some in (
                ("encode", "mm_encoded", mixed.workers["encode"]),
                ("prefill", "prompt_tokens", mixed.workers["prefill"]),
            )
        }
        return found["encode"], found["prefill"]

    before, first = counts(), 10 * WAYS.index(way)
    for number in range(first, first + 4):
        status, answer = ask(server, asking(picture(number), f"Question {number}"))
        assert status == 200, answer
    encoded, filled = counts()
    assert (encoded[0], encoded[1] - before[0][1]) == (0, 4)
    assert filled[0] == 0 and filled[1] > before[1][1]


def test_real_workers_over_unlike_transports(stack: Stack, tmp_path: Path) -> None:
    """The second encoder fits: its embeddings arrive, and the first one's are not asked for."""
    shm, files = (flags_of(name, tmp_path)[:2] for name in ("shm", "shared_storage"))
    wrong = stack.start("services.encoder", *files)
    prefill, decode = (stack.start(f"services.{role}", *shm) for role in ("prefill", "decode"))
    for worker in (wrong, prefill, decode):
        worker.wait_ready()
    server = proxy(stack, [wrong], [prefill], [decode])
    (found,) = problems(server)
    assert wrong.url in found and ":float32:shared_storage" in found and ":float32:shm" in found
    case, begun = asking(picture(3), "What is it?"), time.monotonic()
    status, answer = ask(server, case)
    assert time.monotonic() - begun < AT_ONCE_S
    assert (status, answer["error"]["code"]) == (503, "incompatible_peer"), answer
    right = stack.start("services.encoder", *shm)
    right.wait_ready()
    both = proxy(stack, [wrong, right], [prefill], [decode])
    (found,) = problems(both)
    assert f"encode worker {wrong.url} makes embeddings that no worker can read" in found
    status, answer = ask(both, case)
    assert status == 200, answer
    assert answer["choices"][0]["token_ids"] == reference_generate(stack.model, case, 4)


@by_way("list")
def test_a_proxy_that_renders_for_another_model(stack: Stack, serve: Serve, way: str) -> None:
    """As one does that is started without --model, which then is the demonstration model."""
    fleet = Fleet(stack, way == "master")
    for role in ("encode", "prefill", "decode"):
        fleet.add(role)
    server = serve(fleet, way, models={"tiny": DEMO})
    until(lambda: problems(server))
    (found,) = problems(server)
    assert "--model demo" in found and fleet.workers["decode"][0].url in found
    assert call(f"{server.url}/health")[0] == 503
    begun = time.monotonic()
    status, answer = ask(server, asking("anything"))
    assert time.monotonic() - begun < AT_ONCE_S
    assert (status, answer["error"]["code"]) == (503, "wrong_tokenizer"), answer
    assert "--model" in answer["error"]["message"] and "demo" in answer["error"]["message"]
    said_once(server, "renders with the tokenizer of")
    mended = serve(fleet, way)
    until(lambda: call(f"{mended.url}/health")[0] == 200)
    assert problems(mended) == [] and ask(mended, asking("anything"))[0] == 200


@by_way("master")
def test_of_several_models_only_the_one_with_another_tokenizer_is_refused(
    stack: Stack, serve: Serve, way: str, model_dir: ModelDir
) -> None:
    """The proxy's second model is not its workers', which are up."""
    fleet = Fleet(stack, way == "master")
    for role in ("encode", "prefill", "decode"):
        fleet.add(role)
    wrong = fleet.add("decode", "--model", str(DEMO), "--served-model-name", "other")
    models = {"tiny": stack.model, "other": model_dir("qwen3")}
    server = serve(fleet, way, models=models)
    until(lambda: problems(server))
    (found,) = problems(server)
    assert f"--model {models['other'].name} (" in found and wrong.url in found
    for _ in range(2):
        begun = time.monotonic()
        status, answer = ask(server, asking("anything"), "other")
        assert time.monotonic() - begun < AT_ONCE_S
        assert (status, answer["error"]["code"]) == (503, "wrong_tokenizer"), answer
        assert "other" in answer["error"]["message"], "the workers' name of the model"
        assert ask(server, asking(picture(5), "anything"))[0] == 200
    status, health = call(f"{server.url}/health")
    assert (status, health["models"]) == (200, {"tiny": "up", "other": "down"})
    mended = serve(fleet, way, models={**models, "other": DEMO})
    until(lambda: call(f"{mended.url}/health")[1].get("models") == {"tiny": "up", "other": "up"})
    assert problems(mended) == []
    assert [ask(mended, asking("anything"), name)[0] for name in models] == [200, 200]


def test_a_name_that_no_worker_serves(stack: Stack, serve: Serve) -> None:
    fleet, way = Fleet(stack), "master"
    fleet.add("decode", "--served-model-name", "one")
    server = serve(fleet, way, models={"mine": stack.model})
    until(lambda: call(f"{server.url}/health")[0] == 200)
    assert problems(server) == [] and ask(server, asking("an alias"), "mine")[0] == 200, "an alias"
    other = fleet.add("decode", "--served-model-name", "two")
    other.wait_ready()
    until(lambda: problems(server))
    assert "no worker serves mine, but one, two" in problems(server)[0]
    status, answer = ask(server, asking("nothing"), "mine")
    assert status == 503 and "--served-model-name" in answer["error"]["message"], answer
    said_once(server, "no worker serves mine")
    other.stop()
    until(lambda: not problems(server))
    assert ask(server, asking("an alias again"), "mine")[0] == 200
