"""The server under load: a session to it, and which model it has."""

import asyncio
import os
import time
from dataclasses import dataclass

import aiohttp
import msgspec
from multidict import CIMultiDict

from benchmarks.serve.args import Settings
from benchmarks.serve.client import NETWORK_ERRORS

REQUEST_TIMEOUT_S = 6 * 3600.0
KEEPALIVE_S = 60.0
POLL_S = 1.0


class ServerError(RuntimeError):
    """The server is not there, or does not say which models it has."""


@dataclass(frozen=True)
class Model:
    """`name` goes into requests, `id` into the result; `root` may be a directory."""

    name: str
    id: str
    root: str | None = None


class _Entry(msgspec.Struct):
    id: str
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Entry]


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """A session without a limit of its own on connections; the run's limit is the only one."""
    key = os.environ.get("OPENAI_API_KEY")
    headers = CIMultiDict({"Authorization": f"Bearer {key}"} if key else {})
    headers.update(settings.headers)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        headers=headers,
    )


async def find_model(session: aiohttp.ClientSession, settings: Settings) -> Model:
    """The model of the options, else the first of `/v1/models`, asked for again until
    `ready_check_timeout_sec` is over. Raises ServerError if there is none."""
    if settings.model is not None:
        return Model(settings.served_model_name or settings.model, settings.model)
    deadline = time.monotonic() + settings.ready_check_timeout_sec
    url = f"{settings.base_url}/v1/models"
    while True:
        try:
            entry = await _first_model(session, url)
        except (*NETWORK_ERRORS, msgspec.MsgspecError, ServerError) as error:
            if time.monotonic() + POLL_S > deadline:
                raise ServerError(f"cannot find a model at {url}: {error}") from error
            await asyncio.sleep(POLL_S)
        else:
            return Model(settings.served_model_name or entry.id, entry.root or entry.id, entry.root)


async def _first_model(session: aiohttp.ClientSession, url: str) -> _Entry:
    async with session.get(url) as response:
        response.raise_for_status()
        models = msgspec.json.decode(await response.read(), type=_Models).data
    if not models:
        raise ServerError("the list of models is empty")
    return models[0]
