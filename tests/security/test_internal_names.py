"""A client hears of a broken worker without learning where it is."""

import asyncio
import json
import logging

import pytest

from tests.conftest import ModelDir
from tests.support.mocks import mock
from tests.support.relay_workers import CHAT, Asked, Worker, relaying, send, text
from tests.support.stack import call, proxy, running


async def broken(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"error": {"message": f"{worker.url}: out of memory", "code": "x"}})
    await send(writer, body.encode(), status=500)


async def dropped(worker: Worker, asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("how", [broken, dropped])
async def test_relayed(how: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with relaying("D", "--max-retries", "1", "--failover-wait", "0") as relayed:
            worker = relayed.workers["decode"][0]
            worker.script = [how] * 10  # type: ignore[list-item]
            async with relayed.session.post(relayed.url + CHAT, json=text()) as response:
                answer = await response.text()
                assert response.status >= 500, answer
            port = worker.url.rpartition(":")[2]
            assert port not in answer and "127.0.0.1" not in answer, answer
            assert worker.url in caplog.text


def test_rendered(model_dir: ModelDir) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        worker = mock(stack, "pdfusion", "--faults", '{"kind": "drop"}')
        server = proxy(stack, [], [], [worker], "--max-retries", "1", "--failover-wait", "0")
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
        status, answer = call(f"{server.url}/v1/chat/completions", body)
        port = worker.url.rpartition(":")[2]
        assert status >= 500 and port not in str(answer), answer
        assert worker.url in "".join(server.log)
