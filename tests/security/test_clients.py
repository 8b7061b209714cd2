"""Clients with and without an API key, web pages, and TLS, in both dialects of a real proxy."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ModelDir
from tests.support.clients import all_up
from tests.support.mocks import FAST
from tests.support.relay_workers import relaying, text
from tests.support.stack import Process, Stack, call, proxy, running
from tests.support.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
ASKED: list[tuple[str, Any]] = [
    (CHAT, HELLO), (CHAT, {**HELLO, "stream": True}), (CHAT + "?x=1", HELLO),
    (COMPLETIONS, {"model": "tiny", "prompt": "Hello", "max_tokens": 3}),
    ("/tokenize", {"prompt": "Hello"}), ("/v1/models", None),
]  # fmt: skip
FLAGS = ("--api-key", "first-key,second-key", "--protect-metrics")


@dataclass
class Fleet:
    stack: Stack
    workers: list[Process]
    proxy: Process

    def asked(self, path: str, body: Any, key: str = "", **headers: str) -> tuple[int, bytes]:
        """(status, body)"""
        host, port = self.proxy.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        given = {"content-type": "application/json", **headers}
        if key:
            given["authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data, given)
        response = connection.getresponse()
        self.headers = response.headers
        return response.status, response.read()


@pytest.fixture(scope="module", params=["tokens", "openai"])
def fleet(model_dir: ModelDir, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    dialect = request.param
    with running(model_dir("qwen2_5_vl")) as stack:
        extra = ("--dialect", "openai") if dialect == "openai" else ()
        roles = ("prefill", "decode")
        workers = [stack.start("services.mock", "--role", r, *FAST, *extra) for r in roles]
        for worker in workers:
            worker.wait_ready()
        flags = (*FLAGS, "--dialect", dialect, "--allowed-origins", "https://page.example")
        server = proxy(stack, [], [workers[0]], [workers[1]], *flags)
        yield Fleet(stack, workers, server)


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_a_client_needs_one_of_the_keys(fleet: Fleet, path: str, body: Any) -> None:
    for key in ("first-key", "second-key"):
        status, answer = fleet.asked(path, body, key)
        assert status == 200, answer
    for key in ("", "third-key", "first-key,second-key"):
        status, answer = fleet.asked(path, body, key)
        error = json.loads(answer)["error"]
        assert status == 401 and error["code"] == "invalid_api_key", answer
        assert error["type"] == "invalid_request_error" and "key" in error["message"]


def test_status_is_open_and_details_are_not(fleet: Fleet) -> None:
    assert fleet.asked("/health", None) == (200, b"")
    assert b"decode" in fleet.asked("/health", None, "first-key")[1]
    assert fleet.asked("/live", None)[0] == fleet.asked("/version", None)[0] == 200
    assert fleet.asked("/metrics", None)[0] == 401
    assert fleet.asked("/metrics", None, "second-key")[0] == 200
    assert fleet.asked("/docs", None)[0] == 401


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize(("path", "body"), [(p, b) for p, b in ASKED if b is not None])
def test_what_is_not_said_to_be_json_is_refused(
    fleet: Fleet, path: str, body: Any, kind: str
) -> None:
    status, answer = fleet.asked(path, body, "first-key", **{"content-type": kind})
    assert status == 415, answer
    assert json.loads(answer)["error"]["code"] == "unsupported_content_type"


@pytest.mark.parametrize("stream", [False, True])
def test_pages_that_a_flag_names_may_read_the_answer(fleet: Fleet, stream: bool) -> None:
    body = {**HELLO, "stream": stream}
    for page, allowed in (
        ("https://page.example", "https://page.example"),
        ("https://x.org", None),
    ):
        assert fleet.asked(CHAT, body, "first-key", origin=page)[0] == 200
        assert fleet.headers.get("access-control-allow-origin") == allowed
        assert fleet.asked(CHAT, body, "", origin=page)[0] == 401
        assert fleet.headers.get("access-control-allow-origin") == allowed


async def test_a_clients_key_stays_with_the_proxy_that_asks_for_it() -> None:
    async def work(*flags: str) -> str | None:
        async with relaying("D", *flags) as relayed:
            headers = {"authorization": "Bearer of-the-client"}
            response = await relayed.session.post(relayed.url + CHAT, json=text(), headers=headers)
            assert response.status == 200
            (asked,) = relayed.workers["decode"][0].asked
            return asked.headers.get("authorization")  # in lower case

    keyed = ("--api-key", "of-the-client")
    assert await work(*keyed) is None
    assert await work(*keyed, "--worker-api-key", "w") == "bearer w"
    assert await work() == "bearer of-the-client"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(key, certificate) of 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, made = str(folder / "key.pem"), str(folder / "cert.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=fleet", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, made


def trusted(certificate: tuple[str, str], *, own: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate[1])
    if own:
        context.load_cert_chain(certificate[1], certificate[0])
    return context


def get(url: str, path: str, body: Any, context: ssl.SSLContext) -> tuple[int, bytes]:
    host, port = url.removeprefix("https://").split(":")
    connection = http.client.HTTPSConnection(host, int(port), timeout=30, context=context)
    data = None if body is None else json.dumps(body)
    headers = {"content-type": "application/json"}
    connection.request("GET" if body is None else "POST", path, data, headers)
    response = connection.getresponse()
    return response.status, response.read()


def test_master_worker_and_proxy_speak_tls_with_certificates_on_both_sides(
    model_dir: ModelDir, certificate: tuple[str, str]
) -> None:
    key, made = certificate
    own = ("--ssl-keyfile", key, "--ssl-certfile", made, "--ca-certs", made)
    mutual = (*own, "--ssl-ca-certs", made)
    with running(model_dir("qwen2_5_vl")) as stack:
        master = stack.start_plain("services.master", *mutual)
        master.wait_ready()
        worker = stack.start("services.pdfusion", *mutual, "--master-url", master.url)
        worker.wait_ready()
        assert master.url.startswith("https://") and worker.url.startswith("https://")
        for dialect in ("tokens", "openai"):
            flags = (*own, "--dialect", dialect, "--master-url", master.url)
            server = stack.start("proxy", *flags, "--probe-interval", "0.2")
            server.wait_ready()
            context = trusted(certificate, own=False)

            def served(server: Process = server, context: ssl.SSLContext = context) -> bool:
                return get(server.url, CHAT, HELLO, context)[0] == 200

            until(served, server.log, 20.0)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            get(worker.url, "/health", None, trusted(certificate, own=False))
        assert get(worker.url, "/health", None, trusted(certificate, own=True))[0] == 200


def test_tls_over_static_urls(model_dir: ModelDir, certificate: tuple[str, str]) -> None:
    """A worker whose certificate the proxy cannot check is out of use."""
    key, made = certificate
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = stack.start("services.pdfusion", "--ssl-keyfile", key, "--ssl-certfile", made)
        worker.wait_ready()
        good = proxy(stack, [], [], [worker], "--ca-certs", made)
        until(lambda: all_up(good), good.log)
        assert call(good.url + CHAT, HELLO)[0] == 200
        bad = proxy(stack, [], [], [worker])
        assert call(f"{bad.url}/health")[0] == 503


@pytest.mark.parametrize(
    ("flags", "named"),
    [(("--ssl-certfile", "/nowhere"), "--ssl-certfile"), (("--ssl-keyfile", "x"), "--ssl-certfile"),
     (("--ca-certs", "/nowhere"), "--ca-certs"), (("--api-key", "a b"), "--api-key"),
     (("--api-key-file", "/nowhere"), "--api-key-file"),
     (("--protect-metrics",), "--protect-metrics"), (("--allowed-origins", "[1]"), "origins")],
)  # fmt: skip
def test_flags_that_cannot_be_are_refused_in_one_line(
    model_dir: ModelDir, tmp_path: Path, flags: tuple[str, ...], named: str
) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        process = stack.start("proxy", "--decode-servers-urls", "http://127.0.0.1:9", *flags)
        status, lines = process.refusal()
        assert status == 2 and named in lines[-1], lines
