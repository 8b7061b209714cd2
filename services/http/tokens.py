"""`/v1/models`, `/tokenize`, `/detokenize` and `/tokenizer_info`: models and their tokenizers."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from protocol.bounds import Int64
from protocol.decoding import accepted, finite
from protocol.errors import InvalidRequest, TriptychError
from protocol.openai import ChatCompletionRequest, decode_chat
from protocol.openai_answers import encode
from protocol.sampling_checks import check_token_ids
from services.frontend.render import Frontend
from services.http.bodies import counted
from services.http.callers import caller_of
from services.http.openai import JSON, Service
from services.http.streams import while_connected

MAX_BODY = 16 << 20  # bytes


class _Hidden(TriptychError):
    status = 404
    code = "invalid_request"
    type = "invalid_request_error"


class Tokenize(msgspec.Struct):
    """Of a text, or of a chat, which has its own fields beside these."""

    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool = True
    return_token_strs: bool | None = None
    model: str | None = None


class Tokenized(msgspec.Struct):
    """`token_ids` are the `tokens` under the name that RTP-LLM's clients read."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None
    token_ids: list[int] = []


class Detokenize(msgspec.Struct):
    tokens: list[Int64]
    model: str | None = None


class Detokenized(msgspec.Struct):
    prompt: str


def informing(service: Service) -> APIRouter:
    """The models and their tokenizers."""
    routes = APIRouter()
    models, bodies, answered = service.models, service.bodies, service.texts.answered

    @routes.get("/v1/models")
    async def list_models() -> Response:
        return Response(encode(models.cards()), media_type=JSON)

    # A path: a model without a name of its own is called by the folder it lies in.
    @routes.get("/v1/models/{model:path}")
    async def one_model(model: str) -> Response:
        """One of them, by its name."""
        return Response(msgspec.json.encode(models.card(model)), media_type=JSON)

    @routes.get("/tokenizer_info")
    async def tokenizer_info(model: str = "") -> Response:
        """tokenizer_config.json and the chat template, if `--enable-tokenizer-info-endpoint`.
        `model`: of several, the first one by itself."""
        frontend = models.of(model)
        if not frontend.config.show_tokenizer:
            raise _Hidden("/tokenizer_info needs --enable-tokenizer-info-endpoint")
        info = frontend.info
        shown = {**info.tokenizer_config, "chat_template": info.templates.get("default")}
        return Response(msgspec.json.encode(shown), media_type=JSON)

    @routes.post("/tokenize")
    @counted(service.admitted)
    async def tokenize(request: Request) -> Response:
        """Token ids of a text, or of a chat as its template writes it, pictures included."""
        async with bodies.read(request, MAX_BODY) as body:
            wanted, chat = await bodies.decoded(body, _tokenize)
            frontend = models.of(wanted.model)
            if chat is not None:
                render = frontend.render_chat(
                    chat, request_id="tokenize", caller=caller_of(request), size=len(body)
                )
                ids = list((await while_connected(request, render)).generate.token_ids)
                return await answered(request, lambda: _shown(frontend, wanted, ids), len(ids))
            text = wanted.prompt or ""
            return await answered(request, lambda: _tokenized(frontend, wanted, text), len(text))

    @routes.post("/detokenize")
    @counted(service.admitted)
    async def detokenize(request: Request) -> Response:
        """Text of token ids."""
        async with bodies.read(request, MAX_BODY) as body:
            wanted = await bodies.decoded(body, _detokenize)
            frontend = models.of(wanted.model)
            size = len(wanted.tokens)
            return await answered(request, lambda: _detokenized(frontend, wanted), size)

    return routes


def _tokenized(frontend: Frontend, wanted: Tokenize, text: str) -> Tokenized:
    special = wanted.add_special_tokens
    try:
        ids = frontend.tokenizer.encode(text, add_special_tokens=special)
    except InvalidRequest as error:
        error.param = "prompt"
        raise
    return _shown(frontend, wanted, ids)


def _shown(frontend: Frontend, wanted: Tokenize, ids: list[int]) -> Tokenized:
    """Tokens, as the tokenizer's vocabulary spells them if that is asked for."""
    spelled = None
    if wanted.return_token_strs:
        spelled = [frontend.tokenizer.token(token) or "" for token in ids]
    return Tokenized(ids, len(ids), frontend.info.max_model_len, spelled, ids)


def _detokenized(frontend: Frontend, wanted: Detokenize) -> Detokenized:
    tokens = wanted.tokens
    # config.json may count more tokens than the tokenizer has, or leave added ones out.
    most = max(frontend.info.vocab_size, frontend.tokenizer.size)
    check_token_ids(tokens, "tokens", most)
    return Detokenized(frontend.tokenizer.decode(tokens))


def _tokenize(body: bytes) -> tuple[Tokenize, ChatCompletionRequest | None]:
    """The request, and its chat if it has one."""
    wanted = accepted(_TOKENIZE.decode, body)
    if (wanted.prompt is None) == (wanted.messages is None):
        raise InvalidRequest("either prompt or messages must be given", param="prompt")
    if wanted.prompt is not None:
        return wanted, None
    # The body without what only `/tokenize` knows.
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields.pop("return_token_strs", None)
    return wanted, decode_chat(msgspec.json.encode(fields))


def _detokenize(body: bytes) -> Detokenize:
    return accepted(_DETOKENIZE.decode, body)


_TOKENIZE = msgspec.json.Decoder(Tokenize, float_hook=finite)
_DETOKENIZE = msgspec.json.Decoder(Detokenize)
