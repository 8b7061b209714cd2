"""What relayed requests need of the workers, for a master that places them.

With a model the proxy renders the request, and asks by the very keys that the workers' cache events
come under. Without one, or for a request that it cannot render, keys are over the message parts and
the media's bytes: the same prompt has the same keys, and the same beginning the same first ones.
"""

from __future__ import annotations

import random
from dataclasses import replace

from protocol.errors import TriptychError
from protocol.openai import CHAT_PATH, decode_chat, decode_completion
from proxy.fleet.fleet import Fleet
from proxy.placement.needs import ModelNames, need_of
from proxy.placement.planner import Need
from proxy.relay.data_urls import STAND_IN
from proxy.relay.media import MediaItem
from proxy.relay.message_keys import predicted_need
from proxy.relay.request_state import RelayedRequest
from services.frontend.render import Frontend, RenderedRequest

_AT_HAND = ("data:", STAND_IN)


class Needs:
    """`frontend` None: no model to render with."""

    def __init__(self, fleet: Fleet, frontend: Frontend | None) -> None:
        self._fleet = fleet
        self._frontend = frontend

    async def of(self, request: RelayedRequest) -> Need:
        """The need of the attempt that begins; `names` of the request's media are set with it."""
        rendered = None
        if self._frontend is not None and all(map(_is_at_hand, request.body.items)):
            rendered = await self._rendered(self._frontend, request)
        # Clients may repeat an id: the master would take the second request for the first one.
        name = f"{request.request_id}-{random.getrandbits(64):016x}"
        if rendered is None:
            request.exact = False
            return predicted_need(request, name)
        return self._exact(request, rendered, name)

    async def _rendered(
        self, frontend: Frontend, request: RelayedRequest
    ) -> RenderedRequest | None:
        """None for what only the workers know how to render; they judge it too."""
        try:
            if request.client.path == CHAT_PATH:
                chat = decode_chat(request.client.body)
                chat.model = self._ours(chat.model)
                return await frontend.render_chat(chat, request_id=request.request_id)
            completion = decode_completion(request.client.body)
            completion.model = self._ours(completion.model)
            prompts = await frontend.render_completion(completion, request_id=request.request_id)
        except TriptychError:
            return None
        return prompts[0] if len(prompts) == 1 else None

    def _ours(self, asked: str | None) -> str | None:
        """The name for the frontend: none, which it takes for its own model, if workers serve that
        by this one. An adapter's name stays, and is unknown to the frontend: its KV is another."""
        workers = (*self._fleet.prefill, *self._fleet.decode)
        one = len({worker.model for worker in workers}) == 1
        plain = any(asked == worker.model or asked in worker.aliases for worker in workers)
        return "" if one and plain else asked

    def _exact(self, request: RelayedRequest, rendered: RenderedRequest, name: str) -> Need:
        wanted = rendered.generate
        request.exact = len(wanted.mm_items) == len(request.body.items)
        if not request.exact:
            return predicted_need(request, name)
        request.names = [item.mm_hash for item in wanted.mm_items]
        if request.names and not self._fleet.encode:
            request.body.name_items(request.names)
        return replace(need_of(wanted, self._names()), request_id=name)

    def _names(self) -> ModelNames:
        """As the workers are registered: their cache events are named so."""
        for worker in (*self._fleet.prefill, *self._fleet.decode):
            if worker.model:
                return ModelNames(worker.model, worker.model, worker.revision)
        return ModelNames()


def _is_at_hand(item: MediaItem) -> bool:
    """Whether a media item came with its bytes: others are not worth fetching twice. Of clips, each
    engine takes frames of its own choice: keys made here would not be theirs."""
    if item.modality != "image":
        return False
    content = item.content.get(f"{item.modality}_url")
    url = content.get("url") if isinstance(content, dict) else content
    return isinstance(url, str) and url.startswith(_AT_HAND)
