"""`/v1/chat/completions`, `/v1/completions` and `/v1/models` as vLLM's EPD workers have them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web

from protocol.encoder_cache import item_metadata
from protocol.errors import InvalidRequest, TriptychError, from_info
from protocol.generate import encode_item
from protocol.generate_answers import TokenCounts
from protocol.openai import decode_chat, decode_completion
from protocol.openai_answers import ChatCompletion, ModelCard, ModelList, TextCompletion
from protocol.types import EncodeOutput, EncodeRequest, GenerateRequest, RequestOutput
from services.mock.answering import Answering
from services.mock.chat import Rendered, render_chat, render_completion
from services.mock.instance import Instance
from services.mock.speaking import Params, Speaker
from services.mock.tokens_api import singles

_encoder = msgspec.json.Encoder()


async def chat(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Chat; an encode worker answers with `ec_transfer_params` and no text."""
    request = decode_chat(answering.body)
    instance.check_model(request.model)
    rendered = render_chat(instance, request, f"chatcmpl-{answering.request_id}")
    speaker = Speaker(instance, request, chat=True)
    if instance.settings.role == "encode":
        return await _encoded(instance, answering, rendered, speaker)
    if instance.settings.encodes and rendered.media:
        await _encode(instance, rendered)
    return await _generated(instance, answering, rendered, speaker)


async def completions(instance: Instance, answering: Answering) -> web.StreamResponse:
    """Text completions, several prompts too if they are not streamed."""
    request = decode_completion(answering.body)
    instance.check_model(request.model)
    prompts = render_completion(instance, request, f"cmpl-{answering.request_id}")
    speaker = Speaker(instance, request, chat=False)
    if len(prompts) == 1:
        return await _generated(instance, answering, prompts[0], speaker)
    if request.stream:
        raise InvalidRequest("stream: only one prompt can be streamed", param="stream")
    answers = [await _whole(instance, answering, prompt, speaker) for prompt in prompts]
    return await answering.whole(_encoder.encode(_merged(answers)))


async def _generated(
    instance: Instance, answering: Answering, rendered: Rendered, speaker: Speaker
) -> web.StreamResponse:
    if not speaker.stream:
        answer = await _whole(instance, answering, rendered, speaker)
        return await answering.whole(_encoder.encode(answer))
    steps = instance.generate(rendered.generate, rendered.media)
    async with contextlib.aclosing(steps):
        first = await anext(steps)
        return await _stream(answering, rendered.generate, speaker, first, steps)


async def _whole(
    instance: Instance, answering: Answering, rendered: Rendered, speaker: Speaker
) -> ChatCompletion | TextCompletion:
    outputs: list[RequestOutput] = []
    steps = instance.generate(rendered.generate, rendered.media, whole=True)
    async with contextlib.aclosing(steps):
        async for step in steps:
            outputs += step
    answering.spoil(outputs)
    return speaker.whole(rendered.generate, outputs)


async def _stream(
    answering: Answering,
    request: GenerateRequest,
    speaker: Speaker,
    outputs: list[RequestOutput] | None,
    rest: AsyncGenerator[list[RequestOutput], None],
) -> web.StreamResponse:
    writer = await answering.stream()
    counts = TokenCounts(request)
    await writer.send([(data, 0) for data in speaker.opening(request)])
    try:
        while outputs is not None:
            answering.spoil(outputs)
            counts.count(outputs)
            await writer.send([speaker.chunk(request, step) for step in singles(outputs)])
            outputs = await anext(rest, None)
        if speaker.include_usage:
            await writer.send([(speaker.usage_chunk(request, counts), 0)])
    except TriptychError as error:
        await writer.send([(_encoder.encode(error.to_openai()), 0)])
    return await writer.end()


async def _encoded(
    instance: Instance, answering: Answering, rendered: Rendered, speaker: Speaker
) -> web.StreamResponse:
    if not rendered.media:
        raise InvalidRequest("messages: there is no media item to encode", param="messages")
    params = await _encode(instance, rendered)
    if answering.wrong_handles:
        params = {name[::-1]: entry for name, entry in params.items()}
    request = rendered.generate
    ended = [
        RequestOutput(request.request_id, index, finish_reason="length")
        for index in range(request.sampling.n)
    ]
    if speaker.stream:
        writer = await answering.stream()
        await writer.send([(data, 0) for data in speaker.opening(request)])
        await writer.send([speaker.chunk(request, ended)])
        return await writer.end()
    return await answering.whole(_encoder.encode(speaker.whole(request, ended, params)))


async def _encode(instance: Instance, rendered: Rendered) -> Params:
    """Encode the media that came with the request; their `ec_transfer_params`."""
    items = {item.mm_hash: item for item in rendered.generate.mm_items}
    wanted = [encode_item(items[name], data) for name, data in rendered.media.items()]
    outputs = await instance.encode(EncodeRequest(rendered.generate.request_id, wanted))
    return {output.mm_hash: _entry(rendered, output) for output in outputs}


def _entry(rendered: Rendered, output: EncodeOutput) -> Params:
    if output.error is not None:
        raise from_info(output.error)
    all_items = rendered.generate.mm_items
    places = [i for i, item in enumerate(all_items) if item.mm_hash == output.mm_hash]
    item = all_items[places[0]]
    return {
        "modality": item.modality,
        "item_indices": places,
        "metadata": item_metadata(item),
        **(output.params or {}),
    }


def _merged(answers: list[ChatCompletion | TextCompletion]) -> ChatCompletion | TextCompletion:
    """Answers to several prompts as one, choices numbered through."""
    first, *others = answers
    for answer in others:
        for choice in answer.choices:
            choice.index = len(first.choices)
            first.choices.append(choice)  # type: ignore[arg-type]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            total = getattr(first.usage, name) + getattr(answer.usage, name)
            setattr(first.usage, name, total)
    return first


def models(instance: Instance) -> ModelList:
    card = ModelCard(
        id=instance.config.name,
        created=int(instance.started),
        root=instance.config.model,
        max_model_len=instance.settings.max_model_len,
    )
    return ModelList([card])
