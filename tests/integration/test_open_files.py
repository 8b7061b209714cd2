"""Services that may open few files: connections wait, and no worker is blamed."""

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.conftest import ModelDir
from tests.support.mocks import CHAT
from tests.support.stack import Process, Stack, call, running

STREAMS, TOKENS = 120, 8
LIMIT = 160
PACE = ("--decode-base-ms", "20", "--max-num-seqs", "256", "--log-level", "info")


async def stream(session: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    """Status and number of tokens of one streamed request."""
    body = {
        "model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True,
        "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    try:
        async with session.post(url + CHAT, json=body) as response:
            events = [line[6:] async for line in response.content if line.startswith(b"data: {")]
    except aiohttp.ClientError:
        return 0, 0
    choices = [choice for event in events for choice in json.loads(event).get("choices", ())]
    return response.status, sum(len(choice.get("token_ids") or ()) for choice in choices)


async def streams(url: str) -> Counter[tuple[int, int]]:
    """All at once, each on a connection of its own that its client would keep."""
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        return Counter(await asyncio.gather(*(stream(session, url) for _ in range(STREAMS))))


def limited(stack: Stack, files: str, module: str, *flags: str) -> Process:
    """A service that may open so few files; it is ready."""
    process = stack.start("tests.support.few_files", "few_files", files, module, *flags)
    process.wait_ready()
    return process


def told(process: Process, what: str) -> list[str]:
    return [line for line in process.log if what in line]


@pytest.mark.parametrize("dialect", ["tokens", "openai"])
@pytest.mark.parametrize("files", [f"{LIMIT}:{LIMIT}", f"{LIMIT}:4096"])
def test_more_streams_than_files_are_served_in_turn(
    model_dir: ModelDir, dialect: str, files: str
) -> None:
    with running(model_dir("qwen2_5_vl")) as stack:
        named = ("--role", "decode", "--dialect", dialect)
        worker = limited(stack, f"{LIMIT}:4096", "services.mock", *named, *PACE)
        flags = ("--decode-servers-urls", worker.url, "--dialect", dialect)
        proxy = limited(stack, files, "proxy", *flags, "--probe-interval", "0.1")
        assert asyncio.run(streams(proxy.url)) == {(200, TOKENS): STREAMS}
        health: Any = call(f"{proxy.url}/health")
        assert health[0] == 200 and health[1]["decode"] == {worker.url: "up"}
        hard = files.partition(":")[2]
        assert told(
            proxy, f"the limit of open files was raised from {LIMIT} to the hard limit {hard}"
        )
        assert told(
            worker, f"the limit of open files was raised from {LIMIT} to the hard limit 4096"
        )
        waited = bool(told(proxy, "further connections wait"))
        assert waited == (hard == str(LIMIT))
