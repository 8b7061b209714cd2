"""What relayed requests need of the workers, for a master that places them.

With a model the proxy renders the request, and asks by the very keys that the workers' cache events
come under. Without one, or for a request that it cannot render, keys are over the message parts and
the media's bytes: the same prompt has the same keys, and the same beginning the same first ones.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from typing import Any

import msgspec

from protocol.errors import TriptychError
from protocol.openai import (
    CHAT_PATH,
    ChatCompletionRequest,
    CompletionRequest,
    decode_chat,
    decode_completion,
)
from protocol.types import GenerateRequest
from proxy.fleet.fleet import Fleet
from proxy.placement.planner import ModelNames, Need, need_of
from proxy.relay.data_urls import STAND_IN
from proxy.relay.media import MediaItem
from proxy.relay.message_keys import predicted_need
from proxy.relay.request_state import Description, RelayedRequest, ServedAs
from services.frontend.prompts.maker import OFFLOAD_BYTES, offloaded
from services.frontend.render import Frontend

# What begins so has its bytes in the request, or kept aside by `DataUrls`.
_AT_HAND = ("data:", STAND_IN)
_UNRENDERED = ServedAs(None, "", ModelNames())


class Needs:
    """`frontend` None: no model to render with."""

    def __init__(self, fleet: Fleet, frontend: Frontend | None) -> None:
        self._fleet = fleet
        self._frontend = frontend

    async def of(self, request: RelayedRequest) -> Need:
        """The need of the attempt that begins; `names` of the request's media are set with it.

        The request is rendered once, however often it is tried or waits for a worker: again only
        if the fleet serves its model by another name by now."""
        # Clients may repeat an id: the master would take the second request for the first one.
        name = f"{request.request_id}-{random.getrandbits(64):016x}"
        known = request.description
        if known is None or known.served_as != self._served_as(known.asked):
            known = request.description = await self._described(request, name)
        request.names, request.exact = known.names, known.exact
        # With encode workers the encode stage names the items, where it does not replace them.
        if known.exact and known.names and not self._fleet.encode:
            request.body.name_items(known.names)
        need = known.need
        return need if need.request_id == name else replace(need, request_id=name)

    async def _described(self, request: RelayedRequest, name: str) -> Description:
        """`name`: of the attempt that begins."""
        prompt = await self._readable(request)
        asked = None if prompt is None else prompt.model
        served_as = self._served_as(asked)
        wanted: GenerateRequest | None = None
        if self._frontend is not None and prompt is not None:
            prompt.model = served_as.name
            size = len(request.client.body)
            wanted = await _render(self._frontend, prompt, request.request_id, size)
        items = len(request.body.items)
        if wanted is not None and len(wanted.mm_items) == items:
            need, exact = need_of(_packed(wanted, name), served_as.keyed), True
            names = [item.mm_hash for item in wanted.mm_items]
        else:
            (need, names), exact = predicted_need(request.body, name), False
        return Description(need, names, exact, asked, served_as)

    async def _readable(
        self, request: RelayedRequest
    ) -> ChatCompletionRequest | CompletionRequest | None:
        """None for what only the workers know how to render; they judge it too."""
        if self._frontend is None or not all(map(_is_at_hand, request.body.items)):
            return None
        decode = decode_chat if request.client.path == CHAT_PATH else decode_completion
        body = request.client.body
        try:
            return await offloaded(lambda: decode(body), large=len(body) > OFFLOAD_BYTES)
        except TriptychError:
            return None

    def _served_as(self, asked: str | None) -> ServedAs:
        if self._frontend is None:
            return _UNRENDERED
        revision = self._frontend.served.adapters.get(asked or "", "")
        return ServedAs(self._ours(asked), revision, self._names())

    def _ours(self, asked: str | None) -> str | None:
        """The name for the frontend: none, which it takes for its own model, if workers serve that
        by this one. An adapter's name stays, and is unknown to the frontend: its KV is another."""
        workers = (*self._fleet.prefill, *self._fleet.decode)
        one = len({worker.model for worker in workers}) == 1
        plain = any(asked == worker.model or asked in worker.aliases for worker in workers)
        return "" if one and plain else asked

    def _names(self) -> ModelNames:
        """As the workers are registered: their cache events are named so."""
        for worker in (*self._fleet.prefill, *self._fleet.decode):
            if worker.model:
                return ModelNames(worker.model, worker.model, worker.revision)
        return ModelNames()


async def _render(
    frontend: Frontend,
    prompt: ChatCompletionRequest | CompletionRequest,
    request_id: str,
    size: int,
) -> GenerateRequest | None:
    """None for what only the workers know how to render. `size`: bytes of its JSON."""
    try:
        if isinstance(prompt, ChatCompletionRequest):
            return (await frontend.render_chat(prompt, request_id=request_id, size=size)).generate
        prompts = await frontend.render_completion(prompt, request_id=request_id)
    except TriptychError:
        return None
    return prompts[0].generate if len(prompts) == 1 else None


def _packed(wanted: GenerateRequest, name: str) -> GenerateRequest:
    """With this id, and with token ids of four bytes instead of some thirty: they are kept as long
    as the request."""
    packed: Any = array("i", wanted.token_ids)
    return msgspec.structs.replace(wanted, request_id=name, token_ids=packed)


def _is_at_hand(item: MediaItem) -> bool:
    """Whether a media item came with its bytes: others are not worth fetching twice. Of clips, each
    engine takes frames of its own choice: keys made here would not be theirs."""
    if item.modality != "image":
        return False
    content = item.content.get(f"{item.modality}_url")
    url = content.get("url") if isinstance(content, dict) else content
    return isinstance(url, str) and url.startswith(_AT_HAND)
