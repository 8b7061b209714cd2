"""Which key opens which route."""

import asyncio
import logging
from typing import Any

import pytest

from protocol.errors import ConfigError
from protocol.fleet_key import HEADER, FleetKey
from services.http.access import STATUS_PATHS, Access, ApiKeys, check_reach, gated

FLEET = FleetKey("the-secret-of-this-fleet")
KEYS = ApiKeys(["one", "two"])
CLIENT_ROUTES = ("/v1/chat/completions", "/v1/models", "/tokenize", "/detokenize")
CONTROL = (
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/drain", "/inference/v1/encode", "/docs", "/v1", "/v2/chat", "/tokenize/",
)  # fmt: skip
ONE, TWO, BAD = b"Bearer one", b"bearer  two", b"Bearer three"


def scope(path: str, authorization: bytes = b"", fleet: str = "") -> dict[str, Any]:
    headers = [(b"authorization", authorization)] if authorization else []
    headers += [(HEADER.encode(), fleet.encode())] if fleet else []
    return {"type": "http", "path": path, "headers": headers, "method": "GET"}


def code(access: Access, *args: Any) -> str | None:
    error = access.refusal(scope(*args))
    return None if error is None else error.code


def test_a_fleet_key_opens_all_and_an_api_key_what_is_for_clients() -> None:
    access = Access(FLEET, KEYS)
    for path in (*CLIENT_ROUTES, *CONTROL):
        assert code(access, path, b"", FLEET.secret) is None
        assert code(access, path) is not None
    for path in CLIENT_ROUTES:
        assert code(access, path, ONE) is None and code(access, path, TWO) is None
        assert code(access, path, BAD) == code(access, path) == "invalid_api_key"
    for path in CONTROL:
        assert code(access, path, ONE) == "invalid_fleet_key"
    assert all(code(access, path) is None for path in STATUS_PATHS)


def test_what_is_posted_to_the_root_needs_a_key() -> None:
    """There a load balancer looks, and RTP-LLM's clients send prompts."""
    access = Access(FLEET, KEYS)
    posted = {**scope("/"), "method": "POST"}
    refusal = access.refusal(posted)
    assert refusal is not None and refusal.code == "invalid_api_key"
    assert access.refusal({**scope("/", ONE), "method": "POST"}) is None
    assert access.refusal(scope("/")) is None


def test_with_one_kind_of_key_it_opens_all() -> None:
    for path in (*CLIENT_ROUTES, *CONTROL):
        assert code(Access(clients=KEYS), path) == "invalid_api_key"
        assert code(Access(clients=KEYS), path, ONE) is None
        assert code(Access(FLEET), path, ONE) == "invalid_fleet_key"
        assert code(Access(FLEET), path, b"", FLEET.secret + "x") == "invalid_fleet_key"


def test_a_key_may_come_as_anthropics_clients_send_it() -> None:
    def told(path: str, *headers: tuple[bytes, bytes]) -> str | None:
        error = Access(FLEET, KEYS).refusal({**scope(path), "headers": [*headers]})
        return None if error is None else error.code

    assert told("/v1/messages", (b"x-api-key", b"one")) is None
    assert told("/v1/messages", (b"x-api-key", b"three")) == "invalid_api_key"
    both = ((b"x-api-key", b"one"), (b"authorization", BAD))
    assert told("/v1/messages", *both) == "invalid_api_key"
    assert told("/drain", (b"x-api-key", b"one")) == "invalid_fleet_key"


@pytest.mark.parametrize(
    "given", [b"one", b"Basic one", b"Bearer", b"Bearer ", b"Bearer one two", b"Bearer \xff", b""]
)
def test_what_is_no_key_is_refused(given: bytes) -> None:
    assert code(Access(clients=KEYS), "/v1/models", given) == "invalid_api_key"


async def asked(access: Access, path: str, authorization: bytes = b"") -> tuple[int, bytes]:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"7"), (b"x-worker", b"http://10.0.0.1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"details"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await gated(app, access)(scope(path, authorization), receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


async def test_protected_details_leave_the_status_to_all_callers() -> None:
    access = Access(FLEET, KEYS, protect_metrics=True)
    assert await asked(access, "/health") == (503, b"")
    assert await asked(access, "/health", ONE) == (503, b"details")
    assert (await asked(access, "/metrics"))[0] == 401
    assert await asked(access, "/metrics", ONE) == (503, b"details")
    assert await asked(access, "/ready") == (503, b"details")
    assert await asked(Access(FLEET, KEYS), "/health") == (503, b"details")


async def test_without_keys_all_is_open_and_nothing_can_be_protected() -> None:
    assert await asked(Access(), "/drain") == (503, b"details")
    with pytest.raises(ConfigError, match="--protect-metrics"):
        Access(protect_metrics=True)


OTHERS = ["0.0.0.0", "::", "", "*", "10.0.0.1", "[fd00::1]", "a-name"]
OURS = ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"]


@pytest.mark.parametrize("host", OTHERS)
def test_without_a_key_no_address_that_others_reach_is_taken(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    log, hosts = logging.getLogger("reach"), [("--host", "127.0.0.1"), ("--side", host)]
    with pytest.raises(ConfigError, match=r"--side .*--fleet-key.*--allow-unprotected"):
        check_reach(log, "--fleet-key", False, hosts, False)
    check_reach(log, "--fleet-key", True, hosts, False)
    assert not caplog.records
    check_reach(log, "--fleet-key", False, hosts, True)
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_without_a_key_a_process_says_that_it_serves_this_machine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    hosts = [("--host", host) for host in OURS]
    check_reach(logging.getLogger("reach"), "--api-key", False, hosts, False)
    assert "without --api-key only this machine is served" in caplog.text
