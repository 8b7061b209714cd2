"""Token-in token-out routes of a mock worker, and what mock workers ask each other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web

from protocol.decoding import accepted
from protocol.errors import InvalidRequest, TriptychError, error_info
from protocol.generate import decode_abort, decode_encode, decode_generate
from protocol.generate_answers import EncodeAnswer, GenerateAnswer, TokenCounts, whole_answer
from protocol.types import GenerateRequest, RequestOutput
from services.mock.answering import Answering
from services.mock.instance import Instance
from services.mock.peers import KVAnswer, KVQuestion, Rows

_LONGEST_WAIT_S = 30.0


async def generate(instance: Instance, answering: Answering) -> web.StreamResponse:
    """`POST /inference/v1/generate`, streamed or whole."""
    wanted, stream = decode_generate(answering.body)
    instance.check_model(wanted.model)
    if not wanted.request_id:
        wanted.request_id = answering.request_id
    async with contextlib.aclosing(instance.generate(wanted, whole=not stream)) as steps:
        outputs = await anext(steps)
        answering.spoil(outputs)
        if stream:
            return await _stream(answering, wanted, outputs, steps)
        # To its end: closed before it, the task log would note that the client has left.
        with contextlib.suppress(StopAsyncIteration):
            await anext(steps)
    return await answering.whole(msgspec.json.encode(whole_answer(wanted, outputs)))


async def _stream(
    answering: Answering,
    request: GenerateRequest,
    first: list[RequestOutput],
    rest: AsyncGenerator[list[RequestOutput], None],
) -> web.StreamResponse:
    """Every token is an event, then comes the usage, then the end mark."""
    usage = TokenCounts(request)
    writer = await answering.stream()
    try:
        await writer.send(_events(usage, first))
        async for outputs in rest:
            answering.spoil(outputs)
            await writer.send(_events(usage, outputs))
        final = GenerateAnswer(request.request_id, [], usage.body())
    except TriptychError as error:
        final = GenerateAnswer(request.request_id, [], error=error_info(error))
    await writer.send([(msgspec.json.encode(final), 0)])
    return await writer.end()


def _events(usage: TokenCounts, outputs: list[RequestOutput]) -> list[tuple[bytes, int]]:
    return [
        (msgspec.json.encode(usage.step(step)), sum(len(output.token_ids) for output in step))
        for step in singles(outputs)
    ]


def singles(outputs: list[RequestOutput]) -> list[list[RequestOutput]]:
    """Outputs of many tokens as steps in which every choice gains one."""
    if len(outputs) == 1 and len(outputs[0].token_ids) <= 1:
        return [outputs]
    lines: dict[int, list[RequestOutput]] = {}
    for output in outputs:
        last = max(0, len(output.token_ids) - 1)
        line = lines.setdefault(output.index, [])
        line += [_part(output, i, last) for i in range(last + 1)]
    longest = max(len(line) for line in lines.values())
    return [[line[i] for line in lines.values() if i < len(line)] for i in range(longest)]


def _part(output: RequestOutput, i: int, last: int) -> RequestOutput:
    return RequestOutput(
        output.request_id,
        output.index,
        output.token_ids[i : i + 1],
        output.logprobs[i : i + 1] if output.logprobs is not None else None,
        output.finish_reason if i == last else None,
        output.stop_reason if i == last else None,
        output.cached_tokens if i == 0 else None,
        output.kv_transfer_params if i == last else None,
    )


async def encode(instance: Instance, answering: Answering) -> web.StreamResponse:
    """`POST /inference/v1/encode`: each item has its own result or error in the answer."""
    wanted = decode_encode(answering.body)
    if not wanted.request_id:
        wanted.request_id = answering.request_id
    outputs = await instance.encode(wanted)
    if answering.wrong_handles:
        outputs = [msgspec.structs.replace(o, mm_hash=o.mm_hash[::-1]) for o in outputs]
    return await answering.whole(msgspec.json.encode(EncodeAnswer(outputs)))


async def abort(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Stop requests by id, and free what is held for them."""
    ids = decode_abort(answering.body)
    instance.driver.abort(ids)
    return answering.json({"aborted": len(ids)})


async def kv_ask(instance: Instance, answering: Answering) -> web.StreamResponse:
    """A consumer asks for the KV behind a handle."""
    question = _question(answering.body)
    if question.instance_id != instance.settings.instance_id:
        return answering.json(KVAnswer(reason="the producer has restarted"))
    wait_s = min(question.wait_s, _LONGEST_WAIT_S)
    offer = await instance.driver.offer(question.request_id, wait_s)
    if isinstance(offer, str):
        return answering.json(KVAnswer(reason=offer))
    return answering.json(KVAnswer(offer))


async def kv_confirm(instance: Instance, answering: Answering) -> web.StreamResponse:
    """A consumer has copied the KV: it is let go, and the consumer told whether it was held."""
    question = _question(answering.body)
    held = instance.engine.offers.confirm(question.request_id, question.generation)
    instance.driver.wake()
    return answering.json(KVAnswer(held=held))


async def kv_release(instance: Instance, answering: Answering) -> web.StreamResponse:
    """A consumer does not want the KV."""
    question = _question(answering.body)
    if question.instance_id == instance.settings.instance_id:
        instance.engine.offers.release(question.request_id)
        instance.driver.wake()
    return answering.json(KVAnswer())


def _question(body: bytes) -> KVQuestion:
    return accepted(lambda data: msgspec.json.decode(data, type=KVQuestion), body)


async def embedding(instance: Instance, answering: Answering) -> web.StreamResponse:
    """A prefill worker asks for an embedding by its hash, and may wait for it."""
    request = answering.request
    try:
        wait_s = min(float(request.query.get("wait_s", "0")), _LONGEST_WAIT_S)
    except ValueError:
        raise InvalidRequest("wait_s must be a number", param="wait_s") from None
    rows = await instance.driver.embedding(request.path.rpartition("/")[2], wait_s)
    if rows is None:
        return answering.empty(404)
    return answering.json(Rows(rows))
