"""Raw prompts with pictures: no chat template is around the text.

A picture stands where the text has RTP-LLM's mark `<img/>`, or what the model's own chat template
writes for one. Pictures for which the text has no mark stand before it, as RTP-LLM has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import InvalidRequest
from protocol.openai import CompletionRequest
from protocol.rtp_config import MAX_NEW_TOKENS
from protocol.types import GenerateRequest
from services.frontend.families import Placeholder
from services.frontend.media.items import ItemLoader
from services.frontend.media.lookups import ANONYMOUS, Caller
from services.frontend.prompts.guard import Guarded
from services.frontend.prompts.maker import PromptMaker
from services.frontend.prompts.messages import MediaPart
from services.frontend.prompts.tokenizing import Prompt, Span
from services.frontend.requests import RequestMaker

MARK = "<img/>"


class RawPrompts:
    """The raw prompts of one frontend, whose parts these are."""

    def __init__(
        self,
        items: ItemLoader,
        prompts: PromptMaker,
        placeholder: Placeholder | None,
        requests: RequestMaker,
    ) -> None:
        self._items = items
        self._prompts = prompts
        self._placeholder = placeholder
        self._requests = requests

    async def render(
        self,
        request: CompletionRequest,
        images: Sequence[str],
        *,
        request_id: str,
        pixels: Mapping[str, Any] | None = None,
        caller: Caller = ANONYMOUS,
    ) -> tuple[GenerateRequest, dict[str, bytes]]:
        """The request's text, which has a mark for each of `images`, URLs, as tokens, or its token
        ids, which have one pad token for each; and the pictures by mm_hash. The output is as long
        as there is room for, at most as long as `max_tokens` says. `pixels`: how large pictures
        become, as `mm_processor_kwargs`."""
        given = request.prompt
        if not given:
            raise InvalidRequest("the prompt is empty", param="prompt")
        parts = [MediaPart(f"images[{i}]", url=url) for i, url in enumerate(images)]
        if parts and self._placeholder is None:
            raise InvalidRequest(
                "images: this model takes no pictures", param="images", code="unsupported_media"
            )
        items = []
        if parts:
            items = await self._items.load(
                parts, asked=self._items.asked(pixels), salt="", resolved={}, caller=caller
            )
        spans = [item.span for item in items]
        prompt = await (
            self._of_text(given, spans) if isinstance(given, str) else self._of_ids(given, spans)
        )
        room = self._prompts.room_beside(len(prompt.token_ids), "prompt")
        # RTP-LLM cuts the output where others refuse the request.
        request.max_tokens = min(request.max_tokens or MAX_NEW_TOKENS, room)
        sampling = await self._requests.checked(request)
        generate = self._requests.made(request, request_id, prompt.token_ids, sampling, "prompt")
        generate.mm_items = [
            item.at(offset, gaps)
            for item, offset, gaps in zip(items, prompt.offsets, prompt.gaps, strict=True)
        ]
        return generate, {item.mm_hash: item.data for item in items if item.data is not None}

    async def _of_text(self, text: str, spans: Sequence[Span]) -> Prompt:
        guarded = self._guarded(text, len(spans))
        try:
            return await self._prompts.of_chat(
                lambda: guarded, len(text), spans, add_special_tokens=True
            )
        except InvalidRequest as error:
            error.param = "prompt"
            raise

    async def _of_ids(self, given: Sequence[Any], spans: Sequence[Span]) -> Prompt:
        """Token ids, in which each pad token becomes as many as its picture has embeddings, with
        the text between them where these stand apart."""
        pad = self._placeholder.pad_id if self._placeholder is not None else None
        places = [place for place, token in enumerate(given) if token == pad]
        if len(places) != len(spans):
            raise InvalidRequest(
                f"images: the prompt has {len(places)} media tokens for {len(spans)} pictures",
                param="images",
            )
        plain = [token for token in given if token != pad]
        # Checks alone: the tokens beside the media must be of the vocabulary, and no other pads.
        await self._prompts.of_completion(plain or [0], "prompt", add_special_tokens=False)
        prompt, done = Prompt([], []), 0
        for place, span in zip(places, spans, strict=True):
            prompt.token_ids.extend(given[done:place])
            expanded = await self._expanded(span, given[place])
            prompt.offsets.append(len(prompt.token_ids) + expanded.offsets[0])
            prompt.gaps.extend(expanded.gaps)
            prompt.token_ids.extend(expanded.token_ids)
            done = place + 1
        prompt.token_ids.extend(given[done:])
        return prompt

    async def _expanded(self, span: Span, pad: int) -> Prompt:
        """The tokens of one picture alone."""
        if not span.before:
            return Prompt([pad] * span.length, [0], [()])
        assert self._placeholder is not None
        one = Guarded(self._placeholder.written, (0,), ())
        return await self._prompts.of_chat(lambda: one, 0, [span], add_special_tokens=False)

    def _guarded(self, text: str, count: int) -> Guarded:
        """The text with `count` placeholders in it."""
        if self._placeholder is None or not count:
            return Guarded(text, (), ())
        written, inline = self._placeholder.written, self._placeholder.inline
        text = text.replace(MARK, inline)
        # As RTP-LLM does with pictures that the prompt does not place.
        text = inline * (count - text.count(written)) + text
        places, place = list[int](), text.find(written)
        while place >= 0:
            places.append(place)
            place = text.find(written, place + len(written))
        if len(places) != count:
            raise InvalidRequest(
                f"images: the prompt has {len(places)} marks for {count} pictures", param="images"
            )
        # Without cuts: special tokens of a raw prompt are meant as such.
        return Guarded(text, tuple(places), ())
