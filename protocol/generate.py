"""Wire form of the token-in token-out call, `POST /inference/v1/generate`, and of `/encode`.

The body is vLLM's (`--enable-scale-out`), with four additions: `emitted`, `deadline_s`,
`adapter_revision` and `pooling`. A media item's grid travels where vLLM's EPD protocol has it: in
`ec_transfer_params[mm_hash].metadata`; so do the seconds between frames of a clip, and how many
tokens audio becomes, under transformers' names.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.bounds import MAX_CHOICES, Int64, Natural, Seconds
from protocol.decoding import accepted, check_opaque, finite
from protocol.encoder_cache import gaps_of, grid_of, item_metadata, metadata_of, seconds_of
from protocol.errors import InvalidRequest, ModelNotFound, TriptychError, Unavailable
from protocol.pooling import PoolingParams
from protocol.types import (
    EncodeItem,
    EncodeRequest,
    GenerateRequest,
    MMItem,
    Modality,
    SamplingParams,
)

GENERATE_PATH = "/inference/v1/generate"
INSTANCE_HEADER = "x-triptych-instance"
"""Header by which each answer of a worker names its instance."""
RENDER_PATH = "/v1/chat/completions/render"
ENCODE_PATH = "/inference/v1/encode"
ABORT_PATH = "/inference/v1/abort_requests"
MSGPACK = "application/msgpack"
_SHOWN = 64


def not_served(model: str, adapter_revision: str) -> TriptychError:
    """What a worker answers that has no such model or adapter. Where the prompt was rendered, there
    was an adapter of that revision: other workers may still have it."""
    if not adapter_revision:
        return ModelNotFound(f"model: this worker does not serve '{model}'", param="model")
    return Unavailable(
        f"LoRA adapter '{model}' is not loaded on this worker: load it on all workers",
        code="adapter_missing",
        retry_after_s=1.0,
    )


class Placeholder(msgspec.Struct, frozen=True):
    offset: Natural
    length: Natural


class Features(msgspec.Struct, omit_defaults=True):
    mm_hashes: dict[Modality, list[str]] = {}
    mm_placeholders: dict[Modality, list[Placeholder]] = {}


class GenerateBody(msgspec.Struct, omit_defaults=True):
    """The JSON body, field for field; see `protocol.types.GenerateRequest`."""

    token_ids: list[Int64]  # the prompt, placeholders of media expanded
    request_id: str = ""  # empty: the worker draws one
    model: str = ""  # name of the model or a LoRA adapter; empty: the worker's own model
    adapter_revision: str = ""  # weights that the adapter must have, "" for any
    features: Features | None = None  # hashes and placeholder spans of media
    sampling_params: SamplingParams = SamplingParams()  # how to choose tokens and when to stop
    # choice index (as text) → tokens that the client has already
    emitted: dict[str, list[Int64]] = {}
    output_mode: str = "tokens"  # only tokens is served
    stream: bool = False  # whether outputs come as server-sent events
    cache_salt: str = ""  # keeps the KV of tenants apart
    priority: Int64 = 0  # lower runs first
    deadline_s: Seconds | None = None  # seconds left when the message was sent
    # handle of KV on another worker, or a request to keep it
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None  # mm_hash → handle of its embeddings
    pooling: PoolingParams | None = None  # a vector or a score is wanted, and no tokens


class AbortBody(msgspec.Struct):
    request_ids: list[str]


def encode_generate(request: GenerateRequest, *, stream: bool) -> bytes:
    """The JSON body that asks a worker for `request`."""
    features: Features | None = None
    params = request.ec_transfer_params
    if request.mm_items:
        features = Features()
        params = dict(params or {})
        for item in request.mm_items:
            features.mm_hashes.setdefault(item.modality, []).append(item.mm_hash)
            features.mm_placeholders.setdefault(item.modality, []).append(
                Placeholder(item.offset, item.length)
            )
            params[item.mm_hash] = {
                "modality": item.modality,
                "metadata": item_metadata(item),
                # Last: what the encoder has reported stands.
                **params.get(item.mm_hash, {}),
            }
    body = GenerateBody(
        token_ids=request.token_ids,
        request_id=request.request_id,
        model=request.model,
        adapter_revision=request.adapter_revision,
        features=features,
        sampling_params=request.sampling,
        emitted={str(index): tokens for index, tokens in request.emitted.items()},
        stream=stream,
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_s=request.deadline_s,
        kv_transfer_params=request.kv_transfer_params,
        ec_transfer_params=params,
        pooling=request.pooling,
    )
    return msgspec.json.encode(body)


def check_ec_params(params: dict[str, Any] | None) -> None:
    """`InvalidRequest` unless every entry is an object that can be passed on."""
    check_opaque(params, "ec_transfer_params")
    for name, entry in (params or {}).items():
        if not isinstance(entry, dict):
            raise InvalidRequest(
                "an entry of ec_transfer_params must be an object",
                param=f"ec_transfer_params.{name[:_SHOWN]}",
            )


_GENERATE = msgspec.json.Decoder(GenerateBody, float_hook=finite)
_ENCODE = msgspec.msgpack.Decoder(EncodeRequest)
_ABORT = msgspec.json.Decoder(AbortBody)


def decode_generate(data: bytes) -> tuple[GenerateRequest, bool]:
    """(request, stream) of a body; `InvalidRequest` names the field at fault."""
    body = accepted(_GENERATE.decode, data)
    check_opaque(body.kv_transfer_params, "kv_transfer_params")
    check_ec_params(body.ec_transfer_params)
    if body.output_mode != "tokens":
        raise InvalidRequest("output_mode: this worker answers 'tokens' only", param="output_mode")
    request = GenerateRequest(
        request_id=body.request_id,
        token_ids=body.token_ids,
        sampling=body.sampling_params,
        mm_items=_items(body),
        emitted=_emitted(body),
        model=body.model,
        adapter_revision=body.adapter_revision,
        priority=body.priority,
        deadline_s=body.deadline_s,
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
        ec_transfer_params=body.ec_transfer_params,
        pooling=body.pooling,
    )
    return request, body.stream


def _emitted(body: GenerateBody) -> dict[int, list[int]]:
    found = {_choice(index): tokens for index, tokens in body.emitted.items()}
    if len(found) < len(body.emitted):
        raise InvalidRequest("emitted: one choice has two entries", param="emitted")
    return found


def _choice(index: str) -> int:
    number = int(index) if index.isascii() and index.isdigit() and len(index) < 4 else MAX_CHOICES
    if number >= MAX_CHOICES:
        raise InvalidRequest(
            f"emitted: keys must be choice indices, 0 to {MAX_CHOICES - 1}", param="emitted"
        )
    return number


def _items(body: GenerateBody) -> list[MMItem]:
    if body.features is None:
        return []
    entries = body.ec_transfer_params or {}
    items: list[MMItem] = []
    for modality, hashes in body.features.mm_hashes.items():
        spans = body.features.mm_placeholders.get(modality, [])
        if len(spans) != len(hashes):
            raise InvalidRequest(
                f"features: {len(hashes)} mm_hashes but {len(spans)} mm_placeholders "
                f"for {modality}",
                param="features",
            )
        for name, span in zip(hashes, spans, strict=True):
            items.append(_item(name, modality, span, metadata_of(entries.get(name))))
    return sorted(items, key=lambda item: item.offset)


def _item(name: str, modality: Modality, span: Placeholder, metadata: dict[str, Any]) -> MMItem:
    return MMItem(
        name,
        modality,
        span.offset,
        span.length,
        grid_of(metadata, modality),
        seconds_per_grid=seconds_of(metadata, "ec_transfer_params"),
        gaps=gaps_of(metadata),
    )


def encode_item(item: MMItem, data: bytes | None) -> EncodeItem:
    """A media item of a prompt, as an encoder is asked for it."""
    return EncodeItem(
        item.mm_hash, item.modality, item.length, item.grid, data, item.pixels, item.frames
    )


def encode_encode(request: EncodeRequest) -> bytes:
    """The msgpack body of `/inference/v1/encode`: media bytes travel raw, not as base64."""
    return msgspec.msgpack.encode(request)


def decode_encode(data: bytes) -> EncodeRequest:
    return accepted(_ENCODE.decode, data, "msgpack")


def decode_abort(data: bytes) -> list[str]:
    """The ids in the body of an abort call; `InvalidRequest` names the field at fault."""
    return accepted(_ABORT.decode, data).request_ids
