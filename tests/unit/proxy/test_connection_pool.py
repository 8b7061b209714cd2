"""Connections of the relay's own client that end while they are kept."""

import asyncio
import errno

import pytest

from proxy.upstream.answer import AnswerLimits
from proxy.upstream.connection_pool import ConnectionPool, Traffic
from proxy.upstream.failures import DROPPED, CallFailed
from tests.support.relay_workers import read_request, send

LIMITS = AnswerLimits(20.0, 20.0, 1000)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_kept_connection_that_ends_is_replaced_unless_the_worker_has_ended(
    ends: bool,
) -> None:
    """A worker that refuses the second try has had the first, and may have ended by it."""
    taken = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        await read_request(reader)
        await send(writer, b"{}")
        if taken == 1:
            await read_request(reader)
            if ends:
                server.close()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    pool = ConnectionPool(url, 2.0, 1, Traffic())
    try:
        assert (await pool.ask("/x", b"", [b"{}"], LIMITS))[1].body == b"{}"
        if ends:
            with pytest.raises(CallFailed) as caught:
                await pool.ask("/x", b"", [b"{}"], LIMITS)
            assert caught.value.kind == DROPPED and caught.value.sent
        else:
            assert (await pool.ask("/x", b"", [b"{}"], LIMITS))[1].body == b"{}"
        assert taken == 2 - ends
    finally:
        server.close()
        pool.close()


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
async def test_a_worker_without_a_port_is_asked_at_its_schemes(
    scheme: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    async def connect(make: object, host: str, at: int, **_: object) -> None:
        asked.append((host, at))
        raise OSError(errno.ECONNREFUSED, "no")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect)
    pool = ConnectionPool(f"{scheme}://worker", 2.0, 1, Traffic())
    with pytest.raises(CallFailed):
        await pool.ask("/x", b"", [b"{}"], LIMITS)
    pool.close()
    assert asked == [("worker", port)]
