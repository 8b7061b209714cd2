"""RTP-LLM's frontend: rendered chats, the tokenizer, and raw prompts (`rtp_raw`)."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.decoding import converted
from protocol.rtp_requests import json_object
from services.frontend.spec import RenderedRequest
from services.frontend.tokenizer import Tokenizer
from services.http.bodies import counted
from services.http.openai import JSON, Service
from services.http.rtp_raw import raw_prompts

ALIAS_PATH = "/chat/completions"
_MAX_BODY = 16 << 20  # as /tokenize
_TIMES = 8  # the time of tokenizing alone: every token is decoded, or placed, by itself


class Encode(msgspec.Struct):
    """Body of `/tokenizer/encode`."""

    prompt: str
    return_offsets_mapping: bool = False


class Encoded(msgspec.Struct, omit_defaults=True):
    token_ids: list[int]
    offset_mapping: list[list[int]] | None = None
    tokens: list[str] | None = None


class RenderedChat(msgspec.Struct):
    """Answer of `/chat/render`: what the model is asked."""

    input_prompt: str  # the prompt, decoded from its tokens
    input_ids: list[int]  # tokens, placeholders of media expanded
    input_urls: list[str]  # mm_hash of each medium: its URL is not kept
    tokenizer_info: str  # name and size
    max_seq_len: int  # tokens of prompt and output
    eos_token_id: int | None  # the least of several
    stop_word_ids_list: list[list[int]]  # stop tokens, a list each
    stop_words_list: list[str]  # stop strings
    renderer_info: dict[str, Any]  # the family, and the template
    generate_config: dict[str, Any]  # sampling parameters by their names in RTP-LLM


def rtp_frontend(service: Service) -> APIRouter:
    """The routes of RTP-LLM's frontend that OpenAI's and vLLM's do not have."""
    routes = raw_prompts(service)
    first = service.models.first

    @routes.post(ALIAS_PATH)
    @counted(service.admitted)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions."""
        return await service.answer(request, await service.rendered_chat(request))

    @routes.post("/v1/chat/render")
    @routes.post("/chat/render")
    @counted(service.admitted)
    async def render(request: Request) -> Response:
        """What the model would be asked for a chat: its prompt, tokens and parameters."""
        rendered = await service.rendered_chat(request)
        return Response(msgspec.json.encode(_shown(service, rendered)), media_type=JSON)

    @routes.post("/tokenizer/encode")
    @counted(service.admitted)
    async def encode(request: Request) -> Response:
        """Tokens of a text, and with `return_offsets_mapping` where each begins and ends. Of
        several models the first one's."""
        async with service.bodies.read(request, _MAX_BODY) as body:
            wanted = await service.bodies.decoded(body, _wanted)
            size = _TIMES * len(wanted.prompt)
            work = functools.partial(_encoded, first.tokenizer, wanted)
            return await service.texts.answered(request, work, size)

    return routes


def _wanted(body: bytes) -> Encode:
    return converted(json_object(body), Encode, "prompt")


def _encoded(tokenizer: Tokenizer, wanted: Encode) -> Encoded:
    encoding = tokenizer.encode_with_offsets(wanted.prompt)
    ids: list[int] = list(encoding.ids)
    if wanted.return_offsets_mapping:
        return Encoded(ids, offset_mapping=[list(pair) for pair in encoding.offsets])
    return Encoded(ids, tokens=[tokenizer.decode([i], skip_special_tokens=False) for i in ids])


def _shown(service: Service, rendered: RenderedRequest) -> RenderedChat:
    frontend, generate = service.models.known(rendered.model), rendered.generate
    sampling = generate.sampling
    eos = sorted(frontend.info.eos_token_ids)
    return RenderedChat(
        input_prompt=frontend.tokenizer.decode(generate.token_ids, skip_special_tokens=False),
        input_ids=list(generate.token_ids),
        input_urls=[item.mm_hash for item in generate.mm_items],
        tokenizer_info=f"{frontend.info.name}, {frontend.tokenizer.size} tokens",
        max_seq_len=frontend.info.max_model_len,
        eos_token_id=eos[0] if eos else None,
        stop_word_ids_list=[[token] for token in sampling.stop_token_ids],
        stop_words_list=list(sampling.stop),
        renderer_info={
            "class_name": type(frontend.family).__name__,
            "renderer_model_type": frontend.info.model_type,
            "template": frontend.info.templates.get("default"),
        },
        generate_config={
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repetition_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "random_seed": sampling.seed,
            "num_return_sequences": sampling.n,
            "ignore_eos": sampling.ignore_eos,
        },
    )
