"""What load balancers, monitors and launch scripts of the systems in docs/seeds.md go by: roles by
a variable, the proxy's lists of workers, its status routes and its descriptions of itself."""

import urllib.request
from collections.abc import Iterator

import pytest

from services.__main__ import MODULES, role_of
from tests.conftest import ModelDir
from tests.support.clients import complete
from tests.support.conversations import asking
from tests.support.mocks import mock
from tests.support.stack import Process, Stack, call, running
from tests.support.waiting import until

ROLES = {
    "PDFUSION": "services.pdfusion", "PREFILL": "services.prefill", "DECODE": "services.decode",
    "VIT": "services.encoder", "FRONTEND": "proxy",
}  # fmt: skip


@pytest.fixture(scope="module")
def stack(model_dir: ModelDir) -> Iterator[Stack]:
    """Mock workers of three roles."""
    with running(model_dir("qwen2_5_vl")) as stack:
        for role in ("encode", "prefill", "decode"):
            mock(stack, role)
        yield stack


def before(stack: Stack, encode: str, prefill: str) -> Process:
    decode = stack.processes[2].url
    process = stack.start(
        "proxy", "--host", "127.0.0.1", "--encode-servers-urls", encode,
        "--prefill-servers-urls", prefill, "--decode-servers-urls", decode,
        "--probe-interval", "0.1",
    )  # fmt: skip
    process.wait_ready()
    return process


def read(url: str) -> tuple[str, str]:
    """(content type, text)."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.headers["content-type"], response.read().decode()


@pytest.mark.parametrize("name", ROLES)
def test_rtp_llms_role_types_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLE_TYPE", name)
    role, rest = role_of(["--port", "5"])
    assert (MODULES[role.lower()], rest) == (ROLES[name], ["--port", "5"])
    assert role_of(["--role", "decode", "--port", "5"]) == ("decode", ["--port", "5"])


def test_a_worker_does_it_all_unless_it_is_told_its_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLE_TYPE", raising=False)
    assert MODULES[role_of([])[0]] == ROLES["PDFUSION"]


def test_the_role_that_a_variable_names_is_started() -> None:
    status, lines = Process("services", "--help", env={"ROLE_TYPE": "FRONTEND"}).refusal()
    assert status == 0
    assert any("--decode-servers-urls" in line for line in lines)
    status, lines = Process("services", env={"ROLE_TYPE": "BACKEND"}, forked=False).refusal()
    assert status == 2
    assert any("'BACKEND' is not one of" in line for line in lines)


def test_each_cluster_has_its_state_in_health(stack: Stack) -> None:
    encode, prefill, decode = stack.processes[:3]
    front = before(stack, encode.url, prefill.url)
    status, body = call(f"{front.url}/health")
    states = {role: body[role] for role in ("encode", "prefill", "decode")}
    assert status == 200
    assert states == {
        "encode": {encode.url: "up"}, "prefill": {prefill.url: "up"}, "decode": {decode.url: "up"},
    }  # fmt: skip
    assert call(f"{front.url}/v1/models")[1]["data"][0]["id"] == "tiny"


@pytest.mark.parametrize("word", ["disable", "none", ""])
def test_without_prefill_workers_those_that_decode_prefill(word: str, stack: Stack) -> None:
    front = before(stack, stack.processes[0].url, word)
    assert call(f"{front.url}/health")[1]["prefill"] == {}
    answer = complete(front, asking("Hello"), max_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2


def test_without_an_encoder_a_proxy_of_pictures_is_not_well_and_lives(stack: Stack) -> None:
    lost = mock(stack, "encode")
    front = before(stack, lost.url, stack.processes[1].url)
    lost.stop()

    def told() -> bool:
        status, body = call(f"{front.url}/health")
        return status == 503 and body["encode"] == {lost.url: "down"}

    until(told)
    assert call(f"{front.url}/live")[0] == 200
    assert read(f"{front.url}/ready")[1].startswith("no encode worker is up")
    assert complete(front, asking("Hello"), max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_proxy_describes_itself(stack: Stack) -> None:
    front = before(stack, stack.processes[0].url, "none")
    kind, text = read(f"{front.url}/metrics")
    assert kind.startswith("text/plain") and "# HELP triptych_proxy:" in text
    assert "triptych_proxy:" in text
    paths = call(f"{front.url}/openapi.json")[1]["paths"]
    wanted = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/health",
              "/live", "/metrics")  # fmt: skip
    assert set(wanted) <= set(paths)
    assert "html" in read(f"{front.url}/docs")[0]
