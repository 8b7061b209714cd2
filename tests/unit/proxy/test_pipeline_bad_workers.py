"""Workers that say what cannot be: they are charged with it, and the client sees none of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from protocol.errors import TriptychError, UpstreamError
from protocol.generate_answers import ChoiceBody, LogprobsBody
from protocol.types import GenerateRequest, PositionLogprobs, TokenLogprob
from proxy.tokens.pipeline import PipelineModel
from tests.support.scripted_workers import (
    DONE,
    TOKENS,
    Stack,
    Worker,
    asking,
    before,
    event,
    gather,
    handing_over,
    place_ahead,
    steps_of,
)

DEEP = b"[" * 100_000
NESTED = b'{"request_id":"r","choices":' + DEEP
NO_TEXT = b'{"request_id":"\xff\xfe","choices":[]}'


def logprobs(token: int, rank: int = 1, others: int = 1) -> LogprobsBody:
    return LogprobsBody([PositionLogprobs(12, 0.0, rank, [TokenLogprob(token, 0.0, 1)] * others)])


def saying(*choices: ChoiceBody) -> Any:
    """The first token as it should be, then these in one event."""

    async def script(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield steps_of(request)[0]
        yield event(request, *choices)
        yield DONE

    return script


def sending(*data: bytes) -> Any:
    async def script(request: GenerateRequest) -> AsyncIterator[bytes]:
        for piece in data:
            yield piece
        yield DONE

    return script


def telling(cached: int, prompt: int = 2) -> Any:
    """All as it should be, but for how many of the prompt's tokens there were and were cached."""

    async def script(request: GenerateRequest) -> AsyncIterator[bytes]:
        first, *rest = steps_of(request)
        usage = b'"usage":{"prompt_tokens":%d,"completion_tokens":1,"cached_tokens":%d},'
        yield first.replace(b'"choices"', usage % (prompt, cached) + b'"choices"')
        for data in (*rest, DONE):
            yield data

    return script


SCRIPTS = {
    "ends at once": sending(),
    "ends early": saying(),
    "a choice nobody asked for": saying(ChoiceBody(0, [12]), ChoiceBody(5, [13])),
    "three tokens too many": saying(ChoiceBody(0, [12] * 6)),
    "a negative token": saying(ChoiceBody(0, [-1])),
    "a huge token": saying(ChoiceBody(0, [1 << 40])),
    "a token beyond the vocabulary": saying(ChoiceBody(0, [500])),
    "a strange logprob": saying(ChoiceBody(0, [12], logprobs=logprobs(-1))),
    "a logprob without a token": saying(
        ChoiceBody(0, [], logprobs=logprobs(12)), ChoiceBody(0, TOKENS[1:], "length")
    ),
    "a negative rank": saying(ChoiceBody(0, [12], logprobs=logprobs(12, rank=-1))),
    "a huge rank": saying(ChoiceBody(0, [12], logprobs=logprobs(12, rank=1 << 40))),
    "alternatives without end": saying(ChoiceBody(0, [12], logprobs=logprobs(12, others=200))),
    "a huge stop reason": saying(ChoiceBody(0, [12], "stop", stop_reason=1 << 60)),
    "a negative stop reason": saying(ChoiceBody(0, [12], "stop", stop_reason=-1)),
    "a stop reason without end": saying(ChoiceBody(0, [12], "stop", stop_reason="x" * 70_000)),
    "a negative count": telling(0, prompt=-1),
    "more cached than there was": telling(cached=3),
    "a count beyond all": telling(cached=10**30),
    "fewer than none": telling(cached=-5),
    "gives up": saying(ChoiceBody(0, [12], "abort")),
    "goes on after its end": saying(ChoiceBody(0, [12], "stop"), ChoiceBody(0, [13])),
    "no text": sending(b"data: " + NO_TEXT + b"\n\n"),
    "too deep": sending(b"data: " + NESTED + b"\n\n"),
    "no object": sending(b"data: 5\n\n"),
}


async def taken(stack: Stack, request: GenerateRequest) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    async for outputs in stack.gateway.pipeline.run(request, {}):
        gather(outputs, found)
    return found


@pytest.mark.parametrize("name", list(SCRIPTS))
async def test_a_decode_worker_is_charged_and_passed_over(name: str) -> None:
    """It always has the fewest calls, and is asked but once."""
    bad, good = Worker(SCRIPTS[name]), Worker()
    async with before(decode=[bad, good]) as stack:
        stack.gateway.pipeline.model = PipelineModel(vocab_size=500)
        first, second = stack.decode
        second.in_flight += 1
        assert await taken(stack, asking()) == {0: TOKENS}
        assert (first.breaker.failures, stack.breaker(first).successes) == (1, 0)
        assert first.suspect and not second.suspect
        assert (len(bad.calls), len(good.calls)) == (1, 1)
        (resumed,) = good.calls
        assert resumed.emitted in ({}, {0: TOKENS[:1]})


async def prefilled_twice(request: GenerateRequest) -> bytes:
    answer = msgspec.json.decode(await handing_over(request))
    answer["choices"][0]["token_ids"] *= 2
    return msgspec.json.encode(answer)


async def prefilled_nothing(request: GenerateRequest) -> bytes:
    return msgspec.json.encode({"request_id": request.request_id, "choices": []})


async def prefilled_another_token(request: GenerateRequest) -> bytes:
    answer = msgspec.json.decode(await handing_over(request))
    answer["choices"][0]["token_ids"] = [-5]
    return msgspec.json.encode(answer)


async def no_text(request: GenerateRequest) -> bytes:
    return NO_TEXT


async def too_deep(request: GenerateRequest) -> bytes:
    return NESTED


@pytest.mark.parametrize(
    "whole", [prefilled_twice, prefilled_nothing, prefilled_another_token, no_text, too_deep]
)
async def test_a_prefill_worker_is_charged_and_passed_over(whole: Any) -> None:
    bad, good, decode = Worker(whole=whole), Worker(), Worker()
    async with before(prefill=[bad, good], decode=[decode]) as stack:
        first, second = stack.fleet.prefill
        second.in_flight += 1
        assert await taken(stack, asking()) == {0: TOKENS}
        assert first.breaker.failures == 1 and first.suspect
        assert stack.breaker(second).successes == 1
        assert stack.breaker(stack.decode[0]).failures == 0


async def test_what_came_with_nonsense_is_not_taken_for_said() -> None:
    """Nothing of an event is passed on if a part of it is wrong: the next worker says it again."""

    async def half_right(request: GenerateRequest) -> AsyncIterator[bytes]:
        yield event(request, ChoiceBody(0, TOKENS[:1]), ChoiceBody(5, [1]))
        yield DONE

    bad, good = Worker(half_right), Worker()
    async with before(decode=[bad, good]) as stack:
        stack.decode[1].in_flight += 1
        assert await taken(stack, asking()) == {0: TOKENS}
        assert good.calls[0].emitted == {}


@pytest.mark.parametrize("body", [NO_TEXT, DEEP, b"not json", b"[5]"])
async def test_an_error_in_no_words_is_an_error_of_ours(body: bytes) -> None:
    async def failing(request: GenerateRequest) -> web.Response:
        return web.Response(body=body, status=500)

    worker = Worker(whole=failing)
    async with before(prefill=[worker], decode=[Worker()], flags=("--max-retries", "0")) as stack:
        with pytest.raises(TriptychError) as error:
            await taken(stack, asking())
        assert error.value.status == 500
        assert stack.fleet.prefill[0].breaker.failures == 1


async def test_a_slow_prefill_is_not_decodes_fault() -> None:
    """Decode, placed ahead, says nothing before prefill has."""
    answered = asyncio.Event()

    async def slow(request: GenerateRequest) -> bytes:
        await asyncio.sleep(0.5)
        answered.set()
        return await handing_over(request)

    async def after(request: GenerateRequest) -> AsyncIterator[bytes]:
        await answered.wait()
        for data in steps_of(request):
            yield data
        yield DONE

    flags = ("--prefill-timeout", "8", "--first-token-timeout", "0.3", "--max-retries", "0")
    async with before(prefill=[Worker(whole=slow)], decode=[Worker(after)], flags=flags) as stack:
        stack.fleet.prefill[0].kv_endpoint = {"do_remote_prefill": True}
        assert await taken(stack, asking()) == {0: TOKENS}
        assert stack.decode[0].breaker.failures == 0


async def test_a_prefill_that_hangs_is_not_decodes_fault() -> None:
    async def hanging(request: GenerateRequest) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def silent(request: GenerateRequest) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    flags = ("--prefill-timeout", "0.2", "--first-token-timeout", "8", "--max-retries", "0")
    worker = Worker(whole=hanging)
    async with before(prefill=[worker], decode=[Worker(silent)], flags=flags) as stack:
        stack.fleet.prefill[0].kv_endpoint = {"do_remote_prefill": True}
        with pytest.raises(UpstreamError):
            await taken(stack, asking())
        assert stack.fleet.prefill[0].breaker.failures == 1
        assert stack.decode[0].breaker.failures == 0 and not stack.decode[0].suspect


async def test_a_decode_that_begins_with_another_token_is_asked_to_go_on_from_ours() -> None:
    """It lost the KV and computed the prompt again; what follows its own token is not the rest of
    what the client has."""

    async def otherwise(request: GenerateRequest) -> AsyncIterator[bytes]:
        tokens = [99, 98, 97, 96] if not request.emitted else TOKENS[1:]
        for token in tokens:
            yield event(request, ChoiceBody(0, [token], "length" if token == tokens[-1] else None))
        yield DONE

    worker = Worker(otherwise)
    async with before(prefill=[Worker()], decode=[worker]) as stack:
        place_ahead(stack, "ahead")
        assert await taken(stack, asking()) == {0: TOKENS}
        assert [call.emitted for call in worker.calls] == [{}, {0: TOKENS[:1]}]
        assert stack.decode[0].breaker.failures == 0, "it did as it was asked"
