"""Connections of aiohttp's client that end while they are kept."""

import asyncio

import pytest

from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import DROPPED, CallFailed
from proxy.upstream.patience import Patience
from tests.support.relay_workers import read_request, send


async def test_a_worker_that_ends_with_a_request_has_had_it() -> None:
    """It refuses the second try, which says less: a request may be what workers end by."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await send(writer, b"{}")
        await read_request(reader)
        server.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = UpstreamClient(2.0)
    try:
        async with client.opened("POST", url, b"{}", {}, Patience.of(20.0)) as answer:
            assert (await answer.whole(100)).body == b"{}"
        with pytest.raises(CallFailed) as caught:
            async with client.opened("POST", url, b"{}", {}, Patience.of(20.0)):
                pass
        assert caught.value.kind == DROPPED and caught.value.sent
    finally:
        server.close()
        await client.close()
