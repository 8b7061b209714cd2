"""Fleets that are set up wrongly: named in /health and in one line of the log, refused at once."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support import waiting
from tests.support.clients import body_of
from tests.support.conversations import asking, picture
from tests.support.mocks import mock
from tests.support.reference import reference_generate
from tests.support.stack import Process, Stack, call, proxy, running
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


@pytest.fixture(params=["list", "master"])
def way(request: pytest.FixtureRequest) -> str:
    """How the proxy hears of its workers."""
    return str(request.param)


@pytest.fixture
def stack(model_dir: ModelDir) -> Iterator[Stack]:
    with running(model_dir("qwen2_5_vl")) as stack:
        yield stack


class Fleet:
    """Mock workers that a list or a master names; the proxy is started last, with `flags`."""

    def __init__(self, stack: Stack, way: str) -> None:
        self.stack, self.master_url = stack, ""
        self.workers: dict[str, list[Process]] = {"encode": [], "prefill": [], "decode": []}
        if way == "master":
            self.master_url = stack.start_plain("services.master", "--lease", "30").wait_ready()

    def add(self, role: str, *flags: str) -> Process:
        told = ("--master-url", self.master_url, *BEAT) if self.master_url else ()
        worker = mock(self.stack, role, *told, *flags)
        self.workers[role].append(worker)
        return worker

    def proxy(self, *flags: str, models: Mapping[str, Path] | None = None) -> Process:
        """`models`: by name, if not the stack's own."""
        named: tuple[str, ...] = ("--master-url", self.master_url)
        if not self.master_url:
            named = tuple(
                flag
                for role, workers in self.workers.items()
                for flag in (f"--{role}-servers-urls", ",".join(w.url for w in workers) or "none")
            )
        server = self.stack.start("proxy", *named, "--probe-interval", "0.2", *flags, models=models)
        server.wait_ready()
        return server


def test_an_encoder_that_prefill_cannot_read_from(stack: Stack, way: str) -> None:
    fleet = Fleet(stack, way)
    encoder = fleet.add("encode", "--ec-transfer-config", "nixl")
    prefill = fleet.add("prefill", "--ec-transfer-config", "shm")
    fleet.add("decode", "--ec-transfer-config", "shm")
    server = fleet.proxy()
    until(lambda: problems(server))
    (found,) = problems(server)
    assert encoder.url in found and prefill.url in found and "--ec-transfer-config" in found
    begun = time.monotonic()
    status, answer = ask(server, asking(picture(1)))
    assert time.monotonic() - begun < AT_ONCE_S
    assert (status, answer["error"]["code"]) == (503, "incompatible_peer"), answer
    assert "--ec-transfer-config" in answer["error"]["message"]
    assert ask(server, asking("only text"))[0] == 200
    assert len(lines(server, "can read no encode worker's embeddings")) == 1


def test_a_relaying_proxy_refuses_at_once_too(stack: Stack) -> None:
    fleet = Fleet(stack, "list")
    encoder = fleet.add("encode", "--ec-transfer-config", "nixl")
    for role in ("prefill", "decode"):
        fleet.add(role, "--ec-transfer-config", "shm")
    server = fleet.proxy("--dialect", "openai")
    (found,) = problems(server)
    assert encoder.url in found
    status, answer = ask(server, asking(picture(4)))
    assert (status, answer["error"]["code"]) == (503, "incompatible_peer"), answer
    fleet.add("encode", "--ec-transfer-config", "shm")
    server = fleet.proxy("--dialect", "openai")
    status, answer = ask(server, asking(picture(4)))
    assert status == 200, answer


def test_pictures_go_to_workers_that_fit(stack: Stack, way: str) -> None:
    fleet = Fleet(stack, way)
    for transport in ("nixl", "shm"):
        fleet.add("encode", "--ec-transfer-config", transport)
    wrong = fleet.add("prefill", "--ec-transfer-config", "ucx")
    right = fleet.add("prefill", "--ec-transfer-config", "shm")
    fleet.add("decode", "--ec-transfer-config", "shm")
    server = fleet.proxy()
    until(lambda: len(problems(server)) == 2)
    for number in range(6):
        status, answer = ask(server, asking(picture(number), f"Question {number}"))
        assert status == 200, answer

    def count(worker: Process, name: str) -> float:
        return float(call(f"{worker.url}/integrity")[1]["counters"][name])

    useless, useful = fleet.workers["encode"]
    assert (count(useless, "mm_encoded"), count(useful, "mm_encoded")) == (0, 6)
    assert count(wrong, "prompt_tokens") == 0 < count(right, "prompt_tokens")


def test_a_mistake_is_over_once_it_is_mended(stack: Stack) -> None:
    fleet = Fleet(stack, "list")
    encoder = fleet.add("encode", "--ec-transfer-config", "nixl")
    fleet.add("prefill", "--ec-transfer-config", "shm")
    fleet.add("decode", "--ec-transfer-config", "shm")
    server = fleet.proxy()
    until(lambda: problems(server))
    encoder.stop()
    encoder.flags = tuple("shm" if flag == "nixl" else flag for flag in encoder.flags)
    encoder.restart()
    until(lambda: not problems(server))
    assert ask(server, asking(picture(2)))[0] == 200
    until(lambda: lines(server, "mended: "))
    assert len(lines(server, "can read no encode worker's embeddings")) == 2  # and "mended: ..."


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


def test_a_proxy_that_renders_for_another_model(stack: Stack, way: str) -> None:
    """As one does that is started without --model, which then is the demonstration model."""
    fleet = Fleet(stack, way)
    for role in ("encode", "prefill", "decode"):
        fleet.add(role)
    server = fleet.proxy(models={"tiny": DEMO})
    until(lambda: problems(server))
    (found,) = problems(server)
    assert "--model demo" in found and fleet.workers["decode"][0].url in found
    assert call(f"{server.url}/health")[0] == 503
    begun = time.monotonic()
    status, answer = ask(server, asking("anything"))
    assert time.monotonic() - begun < AT_ONCE_S
    assert (status, answer["error"]["code"]) == (503, "wrong_tokenizer"), answer
    assert "--model" in answer["error"]["message"] and "demo" in answer["error"]["message"]
    assert len(lines(server, "renders with the tokenizer of")) == 1
    mended = fleet.proxy()
    until(lambda: call(f"{mended.url}/health")[0] == 200)
    assert problems(mended) == [] and ask(mended, asking("anything"))[0] == 200


def test_of_several_models_only_the_one_with_another_tokenizer_is_refused(
    stack: Stack, way: str, model_dir: ModelDir
) -> None:
    """The proxy's second model is not its workers', which are up."""
    fleet = Fleet(stack, way)
    for role in ("encode", "prefill", "decode"):
        fleet.add(role)
    wrong = fleet.add("decode", "--model", str(DEMO), "--served-model-name", "other")
    models = {"tiny": stack.model, "other": model_dir("qwen3")}
    server = fleet.proxy(models=models)
    until(lambda: problems(server))
    (found,) = problems(server)
    assert f"--model {models['other'].name} (" in found and wrong.url in found
    for _ in range(3):
        begun = time.monotonic()
        status, answer = ask(server, asking("anything"), "other")
        assert time.monotonic() - begun < AT_ONCE_S
        assert (status, answer["error"]["code"]) == (503, "wrong_tokenizer"), answer
        assert "other" in answer["error"]["message"], "the workers' name of the model"
        assert ask(server, asking(picture(5), "anything"))[0] == 200
    status, health = call(f"{server.url}/health")
    assert (status, health["models"]) == (200, {"tiny": "up", "other": "down"})
    mended = fleet.proxy(models={**models, "other": DEMO})
    until(lambda: call(f"{mended.url}/health")[1].get("models") == {"tiny": "up", "other": "up"})
    assert problems(mended) == []
    assert [ask(mended, asking("anything"), name)[0] for name in models] == [200, 200]


def test_a_name_that_no_worker_serves(stack: Stack) -> None:
    fleet = Fleet(stack, "master")
    fleet.add("decode", "--served-model-name", "one")
    server = fleet.proxy(models={"mine": stack.model})
    until(lambda: call(f"{server.url}/health")[0] == 200)
    assert problems(server) == [] and ask(server, asking("an alias"), "mine")[0] == 200, "an alias"
    other = fleet.add("decode", "--served-model-name", "two")
    until(lambda: problems(server))
    assert "no worker serves mine, but one, two" in problems(server)[0]
    status, answer = ask(server, asking("nothing"), "mine")
    assert status == 503 and "--served-model-name" in answer["error"]["message"], answer
    assert len(lines(server, "no worker serves mine")) == 1
    other.stop()
    until(lambda: not problems(server))
    assert ask(server, asking("an alias again"), "mine")[0] == 200
