"""One request through its stages: encode what is missing, prefill, decode."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from protocol.errors import DeadlineExceeded, EmbeddingLost, TriptychError, UpstreamError, from_info
from protocol.generate import ABORT_PATH, GENERATE_PATH, GenerateAnswer, encode_generate
from protocol.types import GenerateRequest, RequestOutput
from proxy.client import UpstreamClient
from proxy.encode_stage import EncodeStage
from proxy.fleet import Fleet, Instance
from proxy.steps import Ahead, first, fresh, outputs_of, uncounted, unless_failed

_T = TypeVar("_T")
_JSON = {"content-type": "application/json"}
_ABORT_S = 2.0
_RETRIES = 2  # of a request whose embeddings are lost


@dataclass
class Pipeline:
    """Stateless: everything a request needs is in its own call."""

    fleet: Fleet
    client: UpstreamClient
    encode_stage: EncodeStage
    timeout_s: float

    async def run(
        self, request: GenerateRequest, media: Mapping[str, bytes]
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """Outputs of a rendered request, as they come; `media` are bytes by mm_hash.

        Closing the generator ends every stage.
        """
        deadline = time.monotonic() + (request.deadline_s or self.timeout_s)
        request = self._pointed(request, media)
        if self.fleet.prefill and request.sampling.max_tokens > 1:
            stages = self._split(request, media, deadline)
        else:
            stages = self._aggregated(request, media, deadline)
        async with contextlib.aclosing(stages):
            async for outputs in stages:
                yield outputs

    def _pointed(self, request: GenerateRequest, media: Mapping[str, bytes]) -> GenerateRequest:
        """The request with the places of its embeddings, which prefill asks while they are made."""
        if not media:
            return request
        items = [item for item in request.mm_items if item.mm_hash in media]
        params = {**(request.ec_transfer_params or {}), **self.encode_stage.endpoints(items)}
        return msgspec.structs.replace(request, ec_transfer_params=params or None)

    async def _aggregated(
        self, request: GenerateRequest, media: Mapping[str, bytes], deadline: float
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """E+PD: one worker prefills and decodes, and waits inside for embeddings."""
        worker = self.fleet.least_loaded("decode")
        for last in (False,) * _RETRIES + (True,):
            begun = False
            try:
                with worker.serving():
                    async with (
                        self._encoding(request, media) as encoding,
                        contextlib.aclosing(self._stream(worker, request, deadline)) as steps,
                    ):
                        while outputs := await unless_failed(anext(steps, []), encoding):
                            begun = True
                            yield outputs
                        return
            except TriptychError as error:
                if last or begun or error.code != EmbeddingLost.code:
                    raise
            request = self._pointed(request, media)

    async def _split(
        self, request: GenerateRequest, media: Mapping[str, bytes], deadline: float
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """E+P+D: the first token comes from prefill, the rest from decode."""
        worker = self.fleet.least_loaded("prefill")
        handed: dict[str, Any] | None = None
        async with contextlib.AsyncExitStack() as stack:
            ahead = await self._placed_ahead(stack, worker, request, deadline)
            with worker.serving():
                answer = await self._prefilled(worker, request, media, deadline)
            handed = answer.kv_transfer_params
            outputs = [first(out, request) for out in outputs_of(answer)]
            try:
                yield outputs
                going_on = {o.index: o.token_ids for o in outputs if o.finish_reason is None}
                if not going_on:
                    return
                rest = self._rest(ahead, request, going_on, handed, deadline)
                async with contextlib.aclosing(rest):
                    async for later in rest:
                        handed = None
                        yield later
            finally:
                if handed is not None:
                    await self._release(worker, request.request_id)

    async def _prefilled(
        self,
        worker: Instance,
        request: GenerateRequest,
        media: Mapping[str, bytes],
        deadline: float,
    ) -> GenerateAnswer:
        """Prefill beside encode; pictures whose embeddings are lost are encoded again."""
        for last in (False,) * _RETRIES + (True,):
            try:
                async with self._encoding(request, media) as encoding:
                    work = self._prefill(worker, request, deadline)
                    return await unless_failed(work, encoding)
            except TriptychError as error:
                if last or error.code != EmbeddingLost.code:
                    raise
            request = self._pointed(request, media)
        raise AssertionError("unreachable")

    async def _placed_ahead(
        self,
        stack: contextlib.AsyncExitStack,
        prefill: Instance,
        request: GenerateRequest,
        deadline: float,
    ) -> Ahead | None:
        """Decode placed before prefill has begun, where prefill can be asked for growing KV: it
        reserves its blocks and fetches while prefill computes."""
        if prefill.kv_endpoint is None:
            return None
        worker = self.fleet.least_loaded("decode")
        params = {**prefill.kv_endpoint, "remote_request_id": request.request_id}
        wanted = msgspec.structs.replace(request, kv_transfer_params=params)
        stack.enter_context(worker.serving())
        return await stack.enter_async_context(Ahead(self._stream(worker, wanted, deadline)))

    async def _rest(
        self,
        ahead: Ahead | None,
        request: GenerateRequest,
        emitted: dict[int, list[int]],
        handed: dict[str, Any] | None,
        deadline: float,
    ) -> AsyncGenerator[list[RequestOutput], None]:
        """What decode adds to `emitted`, which prefill has put out.

        A decode placed ahead that fails before it has added anything is replaced by another.
        """
        if ahead is not None:
            known = {index: len(tokens) for index, tokens in emitted.items()}
            begun = False
            try:
                while (outputs := await ahead.next()) is not None:
                    if later := fresh(outputs, known):
                        begun = True
                        yield later
                return
            except TriptychError:
                if begun:
                    raise
        worker = self.fleet.least_loaded("decode")
        wanted = msgspec.structs.replace(request, emitted=emitted, kv_transfer_params=handed)
        with worker.serving():
            async with contextlib.aclosing(self._stream(worker, wanted, deadline)) as steps:
                async for outputs in steps:
                    yield uncounted(outputs)

    async def _prefill(
        self, worker: Instance, request: GenerateRequest, deadline: float
    ) -> GenerateAnswer:
        wanted = msgspec.structs.replace(request, kv_transfer_params={"do_remote_decode": True})
        left = _left(deadline)
        wanted.deadline_s = left
        body = encode_generate(wanted, stream=False)
        answer = await self.client.post(worker.url + GENERATE_PATH, body, _JSON, left)
        return _parsed(answer, worker)

    async def _stream(
        self, worker: Instance, request: GenerateRequest, deadline: float
    ) -> AsyncGenerator[list[RequestOutput], None]:
        left = _left(deadline)
        wanted = msgspec.structs.replace(request, deadline_s=left)
        body = encode_generate(wanted, stream=True)
        events = self.client.stream(worker.url + GENERATE_PATH, body, _JSON, left)
        async with contextlib.aclosing(events):
            async for event in events:
                outputs = outputs_of(_parsed(event, worker))
                if outputs:
                    yield outputs

    @contextlib.asynccontextmanager
    async def _encoding(
        self, request: GenerateRequest, media: Mapping[str, bytes]
    ) -> AsyncGenerator[asyncio.Task[Any], None]:
        """The encode stage beside what is done inside; ended if that fails or is left.

        Once prefill has what it needs, the encoder's answer may still be on its way: it is left to
        arrive, since the next request with the same picture builds on it.
        """
        task = asyncio.create_task(
            self.encode_stage.run(request.request_id, request.mm_items, media)
        )
        try:
            yield task
        except BaseException as error:
            if isinstance(error, TriptychError) and error.code == EmbeddingLost.code:
                self.encode_stage.forget(request.mm_items)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, TriptychError):
                await task
            raise
        self.encode_stage.let_finish(task)

    async def _release(self, worker: Instance, request_id: str) -> None:
        """Tell prefill that nobody will fetch this request's KV."""
        body = msgspec.json.encode({"request_ids": [request_id]})
        with contextlib.suppress(TriptychError):
            await self.client.post(worker.url + ABORT_PATH, body, _JSON, _ABORT_S)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the request's deadline has passed")
    return left


def _parsed(data: bytes, worker: Instance) -> GenerateAnswer:
    try:
        answer = msgspec.json.decode(data, type=GenerateAnswer)
    except msgspec.DecodeError:
        raise UpstreamError(f"{worker.url} answered with nonsense") from None
    if answer.error is not None:
        raise from_info(answer.error)
    return answer
