"""What mock workers ask each other over HTTP, in place of a connector's side channel.

POST /mock/kv/ask       KVQuestion → KVAnswer    the offer, once there is one
POST /mock/kv/confirm   KVQuestion → KVAnswer    all is copied; was it held until here?
POST /mock/kv/release   KVQuestion → KVAnswer    it is not wanted
GET  /mock/embeddings/{mm_hash}?wait_s=S         {"rows": n} or 404
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from protocol.fleet_key import NO_KEY, FleetKey
from protocol.refs import KVRef
from services.mock.kv_offers import OfferBody

ASK_PATH = "/mock/kv/ask"
CONFIRM_PATH = "/mock/kv/confirm"
RELEASE_PATH = "/mock/kv/release"
EMBEDDINGS_PATH = "/mock/embeddings/"
_POLL_S = 5.0
_MARGIN_S = 5.0  # beyond what a peer may let a question wait


class KVQuestion(msgspec.Struct, omit_defaults=True):
    """`instance_id` names the producer that made the handle, a new name at each of its starts;
    `wait_s` is how long it may wait for KV that is being computed."""

    request_id: str
    instance_id: str
    generation: int = 0
    wait_s: float = 0.0


class KVAnswer(msgspec.Struct, omit_defaults=True):
    """`reason` tells why there is neither an offer nor anything to wait for."""

    offer: OfferBody | None = None
    held: bool = False
    reason: str = ""


class Rows(msgspec.Struct):
    rows: int


_answers = msgspec.json.Decoder(KVAnswer)
_rows = msgspec.json.Decoder(Rows)


class Peers:
    """One pool of connections for all mock workers of a process. `encoders` are asked for
    embeddings that no handle names, `patience_s` bounds every wait."""

    def __init__(
        self,
        encoders: Sequence[str] = (),
        patience_s: float = 30.0,
        key: FleetKey = NO_KEY,
        api_key: str = "",
    ) -> None:
        """`key` opens the others' routes; without one, `api_key` does."""
        named = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._headers = key.headers or named
        self.encoders = tuple(encoders)
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                # aiohttp opens 100 by default; more workers than that may wait for peers at a time.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                timeout=aiohttp.ClientTimeout(total=_POLL_S + _MARGIN_S, sock_connect=2.0),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, ref: KVRef) -> OfferBody | str:
        """The offer behind a handle, or why there is none."""
        end = time.monotonic() + self._patience_s
        while time.monotonic() < end:
            wait_s = _POLL_S if ref.growing else 0.0
            question = KVQuestion(ref.request_id, ref.instance_id, wait_s=wait_s)
            answer = await self._post(ref, ASK_PATH, question)
            if answer.offer is not None:
                return answer.offer
            if answer.reason or not ref.growing:
                return answer.reason or "nothing is held under this name"
        return "the producer did not offer it in time"

    async def confirm(self, ref: KVRef, generation: int) -> bool:
        """Whether the KV was held until it was copied."""
        question = KVQuestion(ref.request_id, ref.instance_id, generation)
        return (await self._post(ref, CONFIRM_PATH, question)).held

    async def keep(self, ref: KVRef) -> None:
        await self._post(ref, ASK_PATH, KVQuestion(ref.request_id, ref.instance_id))

    async def release(self, ref: KVRef) -> None:
        await self._post(ref, RELEASE_PATH, KVQuestion(ref.request_id, ref.instance_id))

    async def _post(self, ref: KVRef, path: str, question: KVQuestion) -> KVAnswer:
        url = f"http://{ref.host}:{ref.port}{path}"
        try:
            async with self.session.post(url, data=msgspec.json.encode(question)) as response:
                return _answers.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, ValueError) as error:
            return KVAnswer(reason=f"the producer is gone: {type(error).__name__}")

    async def embedding(self, mm_hash: str, host: str, port: int) -> int | str:
        """Rows of an embedding at the encoder named, or at the first that has it."""
        urls = [f"http://{host}:{port}"] if host else list(self.encoders)
        asked = [asyncio.create_task(self._rows(url, mm_hash)) for url in urls]
        try:
            for answer in asyncio.as_completed(asked):
                rows = await answer
                if rows is not None:
                    return rows
            return "no encoder has its embedding"
        finally:
            for task in asked:
                task.cancel()

    async def _rows(self, url: str, mm_hash: str) -> int | None:
        end = time.monotonic() + self._patience_s
        while time.monotonic() < end:
            try:
                address = f"{url}{EMBEDDINGS_PATH}{mm_hash}?wait_s={_POLL_S}"
                async with self.session.get(address) as response:
                    if response.status == 200:
                        return _rows.decode(await response.read()).rows
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
                return None
        return None
