"""OpenAI requests as tokens, by a template and a tokenizer that need no files.

A text's tokens are its UTF-8 bytes, a media item is `PLACEHOLDER` repeated. Ids below 128 read as
their ASCII character, others as their number in angle brackets.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import msgspec

from protocol.chat_messages import ContentPart
from protocol.errors import InvalidRequest
from protocol.keys import mm_hash
from protocol.openai import ChatCompletionRequest, CompletionRequest, SharedFields
from protocol.types import GenerateRequest, MMItem, Modality, SamplingParams
from services.mock.batches import PATCHES_PER_TOKEN
from services.mock.instance import Instance

PLACEHOLDER = 256


@dataclass(frozen=True)
class Rendered:
    """`media` are the items' sources by mm_hash, for those that came with the request."""

    generate: GenerateRequest
    media: dict[str, bytes]


def text_of(tokens: list[int]) -> str:
    return "".join(chr(token) if 0 <= token < 128 else f"<{token}>" for token in tokens)


def render_chat(instance: Instance, request: ChatCompletionRequest, request_id: str) -> Rendered:
    """`InvalidRequest` names the part that cannot be read."""
    tokens: list[int] = []
    items: list[MMItem] = []
    media: dict[str, bytes] = {}
    if not request.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    for message in request.messages:
        tokens += f"<{message.role}>".encode()
        content = message.content or ""
        for part in [content] if isinstance(content, str) else content:
            if isinstance(part, str) or part.type in ("text", "input_text", "refusal"):
                text = part if isinstance(part, str) else part.text or part.refusal or ""
                tokens += text.encode()
                continue
            item, data = _item(instance, part, len(tokens), request.ec_transfer_params)
            items.append(item)
            tokens += [PLACEHOLDER] * item.length
            if data is not None:
                media[item.mm_hash] = data
    tokens += b"<assistant>"
    most = request.max_completion_tokens or request.max_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    sampling = _sampling(instance, request, most, logprobs)
    return Rendered(_generate(request, request_id, tokens, items, sampling), media)


def render_completion(
    instance: Instance, request: CompletionRequest, request_id: str
) -> list[Rendered]:
    """One for each prompt."""
    sampling = _sampling(instance, request, request.max_tokens or 16, request.logprobs)
    prompts = _prompts(request.prompt)
    names = [request_id, *(f"{request_id}-{number}" for number in range(1, len(prompts)))]
    rendered = [
        Rendered(_generate(request, name, tokens, [], sampling), {})
        for name, tokens in zip(names, prompts, strict=True)
    ]
    for other in rendered[1:]:
        other.generate.kv_transfer_params = None  # an answer has room for one handle
    return rendered


def _prompts(prompt: str | list[str | int | list[int]]) -> list[list[int]]:
    if isinstance(prompt, str):
        return [list(prompt.encode())]
    ids = [token for token in prompt if isinstance(token, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    if ids or not prompt:
        raise InvalidRequest("prompt: texts and token ids cannot be mixed", param="prompt")
    return [list(one.encode()) if isinstance(one, str) else list(one) for one in prompt]  # type: ignore[arg-type]


def _generate(
    request: SharedFields,
    request_id: str,
    tokens: list[int],
    items: list[MMItem],
    sampling: SamplingParams,
) -> GenerateRequest:
    return GenerateRequest(
        request_id=request_id,
        token_ids=tokens,
        sampling=sampling,
        mm_items=items,
        model=request.model or "",
        priority=request.priority,
        cache_salt=request.cache_salt or "",
        kv_transfer_params=request.kv_transfer_params,
        ec_transfer_params=request.ec_transfer_params,
    )


def _sampling(
    instance: Instance, request: SharedFields, most: int | None, logprobs: int | None
) -> SamplingParams:
    """What a mock can honour; stop strings are refused rather than overlooked."""
    if request.stop:
        raise InvalidRequest("stop: a mock worker knows stop_token_ids only", param="stop")
    return SamplingParams(
        max_tokens=instance.config.default_max_tokens if most is None else most,
        min_tokens=request.min_tokens,
        n=1 if request.n is None else request.n,
        temperature=1.0 if request.temperature is None else request.temperature,
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
    )


def _item(
    instance: Instance, part: ContentPart, offset: int, params: dict[str, Any] | None
) -> tuple[MMItem, bytes | None]:
    """A media part: the medium itself, or a reference by mm_hash with or without its metadata."""
    kind, _, form = part.type.rpartition("_")
    names: dict[str, Modality] = {"image": "image", "video": "video", "audio": "audio"}
    modality = names.get("audio" if part.type == "input_audio" else kind)
    if modality is None:
        raise InvalidRequest(f"content part '{part.type}' is not known here", param="messages")
    value = getattr(part, part.type, None)
    if value is msgspec.UNSET:
        value = None
    source = None if form == "embeds" else _source(value)
    if source is None and not part.uuid:
        raise InvalidRequest(f"content part '{part.type}' has no {form}", param="messages")
    name = part.uuid or _name(instance, modality, source or b"")
    grid = _grid(value if form == "embeds" else None, modality) or _entry_grid(
        params, name, modality
    )
    grid = grid or default_grid(instance.config.media_tokens)
    length = max(1, prod(grid) // PATCHES_PER_TOKEN)
    return MMItem(name, modality, offset, length, grid), source


def _source(value: Any) -> bytes | None:
    """A URL or inline data, as bytes."""
    if isinstance(value, str):
        return value.encode() or None
    found = getattr(value, "url", None) or getattr(value, "data", None)
    return found.encode() if isinstance(found, str) and found else None


def _name(instance: Instance, modality: str, source: bytes) -> str:
    settings = instance.settings
    return mm_hash(
        source,
        modality=modality,
        processor={},
        model=settings.model,
        revision=settings.revision,
    )


def default_grid(tokens: int) -> tuple[int, ...]:
    """The squarest (1, h, w) in patches that becomes `tokens` embeddings."""
    height = next(h for h in range(isqrt(tokens), 0, -1) if tokens % h == 0)
    return (1, 2 * height, 2 * (tokens // height))


def _entry_grid(params: dict[str, Any] | None, name: str, modality: str) -> tuple[int, ...]:
    entry = (params or {}).get(name)
    return _grid(entry.get("metadata") if isinstance(entry, dict) else None, modality)


def _grid(metadata: Any, modality: str) -> tuple[int, ...]:
    found = metadata.get(f"{modality}_grid_thw") if isinstance(metadata, dict) else None
    if isinstance(found, list) and found and isinstance(found[0], list):
        found = found[0]
    if isinstance(found, list) and found and all(type(n) is int and n > 0 for n in found):
        return tuple(found)
    return ()
