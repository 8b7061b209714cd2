"""The media items of a request: fetched, measured and named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from protocol.ec_params import content_name, is_mm_hash, reported
from protocol.errors import InvalidRequest
from protocol.keys import mm_hash
from services.frontend.base64_data import beginning
from services.frontend.config import FrontendConfig
from services.frontend.families import Extent, Family
from services.frontend.image import probe, refuse_other_formats
from services.frontend.lookups import NOBODY, Caller
from services.frontend.media import OFFLOAD_BYTES, MediaFetcher
from services.frontend.messages import MediaPart
from services.frontend.model_info import ModelInfo
from services.frontend.references import KnownMedia, ReferenceBook
from services.frontend.spill import MediaStore

_INLINE_BYTES = 1 << 14  # a header of as many parts as fit takes less than a millisecond
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """`data` is None where the picture is only referred to."""

    mm_hash: str
    extent: Extent
    data: bytes | None = None


class ItemLoader:
    def __init__(self, config: FrontendConfig, info: ModelInfo, family: Family) -> None:
        self._config = config
        self._info = info
        self._family = family
        self._fetcher = MediaFetcher(config.media)
        self._references = ReferenceBook(config.max_references)
        self.store = MediaStore(config.media.memory_bytes, config.media.spill_folder)

    async def close(self) -> None:
        await self._fetcher.close()

    async def load(
        self,
        parts: Sequence[MediaPart],
        reports: dict[str, Any] | None = None,
        *,
        salt: str,
        resolved: Mapping[str, bytes],
        caller: Caller = NOBODY,
    ) -> list[Item]:
        """One item per part; each URL is fetched once. The first error in prompt order is raised.

        `reports`: the request's `ec_transfer_params`, which may name items by uuid. `resolved`:
        bytes by URL of media at hand. `salt` keeps tenants' uuids apart. `caller`: who asks.
        """
        self._check_number(len(parts))
        first_parts = {part.url: part for part in reversed(parts) if part.url is not None}
        fetches = [self._fetched(url, part, resolved, caller) for url, part in first_parts.items()]
        results = await asyncio.gather(*fetches, return_exceptions=True)
        by_url = dict(zip(first_parts, results, strict=True))
        items = []
        for part in parts:
            item = self._known(part, reports, salt) if part.url is None else by_url[part.url]
            if isinstance(item, BaseException):
                raise item
            if part.url is not None and part.uuid is not None:
                self._references.remember(salt, part.uuid, KnownMedia(item.mm_hash, item.extent))
            items.append(item)
        return items

    def _check_number(self, number: int) -> None:
        limit = self._config.limit_mm_per_prompt
        if number > limit:
            raise InvalidRequest(
                f"{number} pictures, but at most {limit} are allowed in one request",
                param="messages",
                code="too_many_media",
            )

    async def _fetched(
        self, url: str, part: MediaPart, resolved: Mapping[str, bytes], caller: Caller
    ) -> Item:
        data = resolved.get(url)
        if data is None:
            if len(url) > OFFLOAD_BYTES and (start := beginning(url)):
                refuse_other_formats(start, part.param)  # before megabytes are decoded
            data = await self._fetcher.fetch(url, param=part.param, caller=caller)
        if len(data) > _INLINE_BYTES:
            return await asyncio.to_thread(self._item, data, part.param)
        return self._item(data, part.param)

    def _item(self, data: bytes, param: str) -> Item:
        width, height = probe(data, max_pixels=self._config.media.max_pixels, param=param)
        extent = _naming(param, self._family.measure_image, width, height)
        return Item(self.name_of(data), extent, self.store.keep(data))

    def name_of(self, data: bytes) -> str:
        """The mm_hash of a picture, as this model's encoders see it."""
        return mm_hash(
            data,
            modality="image",
            processor=self._family.processor,
            model=self._info.name,
            revision=self._info.revision,
        )

    def _known(self, part: MediaPart, reports: dict[str, Any] | None, salt: str) -> Item:
        """An item without its picture: its embeddings, or the picture's uuid, are known."""
        assert part.uuid is not None
        if not self._config.allow_references:
            raise InvalidRequest(
                "uuid: this server takes no media by reference (--allow-media-references)",
                param=part.param,
            )
        metadata = part.metadata
        if metadata is None:  # vLLM's cached reference; what was reported says the size
            metadata = reported(reports, part.uuid).get("metadata")
        if isinstance(metadata, dict):
            name = content_name(reports, part.uuid)
            if not is_mm_hash(name):
                raise InvalidRequest(
                    "no entry of ec_transfer_params says which embeddings this uuid names",
                    param=f"{part.param.rpartition('.')[0]}.uuid",
                )
            return Item(name, _naming(part.param, self._family.extent_of, metadata))
        known = self._references.find(salt, part.uuid)
        if known is None:
            raise InvalidRequest(
                f"no picture with the uuid '{part.uuid[:64]}' is known; send it again",
                param=part.param,
                code="unknown_media",
            )
        return Item(known.mm_hash, known.extent)


def _naming(param: str, measure: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`measure(…)`, whose `InvalidRequest` is about the field `param`."""
    try:
        return measure(*args, **kwargs)
    except InvalidRequest as error:
        error.param = param
        raise
