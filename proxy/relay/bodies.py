"""What each stage is asked: the client's body with handles in it, without media where it can be.

Nothing is rendered. A body that needs no change goes on byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from protocol.errors import InvalidRequest
from protocol.json_size import check_json
from protocol.sampling_checks import check_priority
from proxy.relay.client_fields import HANDLES, PARAMS, fields_of
from proxy.relay.data_urls import DataUrls
from proxy.relay.json_fields import json_of
from proxy.relay.media import EncodedMedia, MediaItem, media_of, replaced
from proxy.upstream.answer import Body

# vLLM's connectors look for each of these keys, though prefill is what fills them.
_REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
TOKEN_IDS = "return_token_ids"
# Each would contradict a single token that is not streamed.
_NOT_FOR_PREFILL = ("stream_options", "min_tokens", "n", "best_of")
_PROCESSING = ("mm_processor_kwargs", "media_io_kwargs")
_URGENCY = 1 << 31
_FOR_ENCODERS = ("model", *_PROCESSING)


@dataclass
class RequestBody:
    """A client's request.

    `raw`: the body as it came.
    `data_urls`: its large data URLs, kept aside.
    `fields`: the rest, decoded, without what no client may give.
    `stream`: the client wants the answer as a stream.
    `as_given`: the raw bytes may go on.
    `items`: the media that an encoder could encode, once `find_media` has been called.
    `seen_before`: modalities of parts that only refer to media of an earlier request; as `items`.
    """

    raw: bytes
    data_urls: DataUrls
    fields: dict[str, Any]
    stream: bool
    as_given: bool = True
    items: list[MediaItem] = field(default_factory=list)
    seen_before: set[str] = field(default_factory=set)

    @staticmethod
    def parse(body: bytes, *, references: bool = False) -> RequestBody:
        """Only what the proxy itself needs is checked; the rest is the workers' business.
        `references`: as of `fields_of`. Raises `InvalidRequest`, or `PayloadTooLarge` for JSON that
        would take long to decode."""
        check_json(body)
        data_urls = DataUrls(body)
        fields, as_given = fields_of(data_urls.small, references=references)
        stream = fields.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise InvalidRequest("stream must be true or false", param="stream")
        return RequestBody(body, data_urls, fields, bool(stream), as_given)

    def find_media(self, limit: int) -> None:
        """Fill `items` with all media that an encoder could encode; `limit` is their number."""
        self.items, self.seen_before = media_of(self.fields.get("messages"))
        if len(self.items) > limit:
            raise InvalidRequest(
                f"{len(self.items)} media items, but at most {limit} are allowed in one request",
                param="messages",
                code="too_many_media",
            )

    def priority(self, lowest: int) -> int:
        """Lower is earlier; `InvalidRequest` below `lowest`. What is no number at all is the
        workers' to refuse."""
        given = self.fields.get("priority")
        if given is None:
            return 0
        check_priority(_as_number(given), lowest)
        return given if type(given) is int and abs(given) < _URGENCY else 0

    @property
    def model(self) -> str:
        """The name that the client uses, "" if it gives none."""
        given = self.fields.get("model")
        return given if isinstance(given, str) else ""

    def rename_model(self, name: str) -> None:
        """Workers are asked for the model by another name than the client used."""
        self.fields["model"], self.as_given = name, False

    def name_items(self, names: Sequence[str]) -> None:
        """Give media that has none a uuid, by which workers that hash in another way know it."""
        parts = [(i, self._named(i, name)) for i, name in zip(self.items, names, strict=True)]
        self.fields["messages"], self.as_given = replaced(self.fields["messages"], parts), False

    def encode_body(
        self, item: MediaItem, name: str = "", push: dict[str, Any] | None = None
    ) -> Body:
        """One item alone, without text, with what decides how it is processed. `name`: what its
        embedding is to be called, where the client and its options leave that open. `push`: where
        the encoder is to send it."""
        body = {name: self.fields[name] for name in _FOR_ENCODERS if name in self.fields}
        message = {"role": "user", "content": [self._named(item, name) if name else item.content]}
        body |= {"messages": [message], "max_tokens": 1, "temperature": 0, "stream": False}
        if push is not None:
            body[PARAMS] = push
        return self.data_urls.fill(json_of(body))

    def prefill_body(self, media: EncodedMedia | None, *, references: bool) -> Body:
        """One token, not streamed, its KV kept for a decode worker."""
        body = {name: v for name, v in self.fields.items() if name not in _NOT_FOR_PREFILL}
        body |= {"max_tokens": 1, "stream": False, "kv_transfer_params": _REMOTE_DECODE}
        if "max_completion_tokens" in body:
            body["max_completion_tokens"] = 1
        return self.data_urls.fill(json_of(self._with_media(body, media, references)))

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's own tokens are scored: a worker that gets KV cannot do that."""
        echoed = self.fields.get("echo") and self.fields.get("logprobs") is not None
        return bool(echoed) or self.fields.get("prompt_logprobs") is not None

    @property
    def bare(self) -> Body:
        """As the client sent it, without what it may not give."""
        return (self.raw,) if self.as_given else self.data_urls.fill(json_of(self.fields))

    def body_with(self, params: dict[str, Any]) -> Body:
        """As `bare`, with `ec_transfer_params` beside those that the client gives."""
        if not params:
            return self.bare
        params = _beside(self.fields.get(PARAMS), params)
        return self.data_urls.fill(json_of({**self.fields, PARAMS: params}))

    def decode_body(
        self,
        media: EncodedMedia | None,
        handed: dict[str, Any] | None,
        *,
        references: bool,
        ids: bool = False,
    ) -> Body:
        """The whole request, with prefill's handles where there are some. `ids`: token ids are
        asked for, which the client has not."""
        more: dict[str, Any] = {} if handed is None else {HANDLES: handed}
        if ids:
            more[TOKEN_IDS] = True
        if media is None and self.as_given:
            return self._spliced(more) if more else (self.raw,)
        body = {**self.fields, **more} if more else self.fields
        return self.data_urls.fill(json_of(self._with_media(body, media, references)))

    def _spliced(self, more: dict[str, Any]) -> Body:
        """The client's own bytes with more fields, so that media need not be encoded again."""
        # The object's own: the body could be decoded, so that only white space follows.
        end = self.raw.rindex(b"}")
        comma = b"," if self.fields else b""
        return (memoryview(self.raw)[:end], comma + json_of(more)[1:])

    def _with_media(
        self, body: dict[str, Any], media: EncodedMedia | None, references: bool
    ) -> dict[str, Any]:
        if media is None or not media.changes_body:
            return body
        params = _beside(body.get(PARAMS), media.params())
        nameable = self._nameable(media) if references else set()
        parts = [
            (item, reference.part(item.modality))
            if item.modality in nameable
            # The name too: should the worker hash in another way than the encoder, it still fits.
            else (item, self._named(item, reference.mm_hash))
            for item, reference in media.references
        ]
        parts += [(item, self._named(item, name)) for item, name in media.names]
        messages = replaced(body["messages"], parts)
        return {**body, "messages": messages, **({PARAMS: params} if params else {})}

    def _nameable(self, media: EncodedMedia) -> set[str]:
        """Modalities whose media are named instead of sent."""
        # vLLM refuses media and names of one modality in a request: one item without a name keeps
        # the others of its modality as they are.
        named = {(item.message, item.part) for item, _ in media.references}
        unnamed = {i.modality for i in self.items if (i.message, i.part) not in named}
        return {item.modality for item, _ in media.references} - unnamed - self.seen_before

    def _named(self, item: MediaItem, name: str) -> dict[str, Any]:
        """The part with a uuid, unless the client has given one."""
        # vLLM takes a name as it is only if nothing else decides how the media is processed.
        if item.content.get("uuid") or any(self.fields.get(name) for name in _PROCESSING):
            return item.content
        return {**item.content, "uuid": name}


def _beside(given: Any, params: dict[str, Any]) -> dict[str, Any]:
    """What encoders said, beside what the client says of other items."""
    return {**given, **params} if isinstance(given, dict) else params


def _as_number(given: object) -> float:
    """As vLLM reads an integer: "-1" and -1.0 are -1 there, so that no spelling evades a bound."""
    if isinstance(given, int | float):
        return given
    try:
        return float(given) if isinstance(given, str) else 0
    except ValueError:
        return 0


def digest_of(body: Body, *more: bytes) -> bytes:
    """What makes two bodies the same, 32 bytes; `more` is what has to be the same beside them."""
    digest = blake3(b"\n".join((*more, b"")))
    for part in body:
        digest.update(part)
    return digest.digest()
