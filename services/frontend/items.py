"""The media items of a request: fetched, measured and named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from protocol.ec_params import content_name, is_mm_hash, reported
from protocol.errors import ConfigError, InvalidRequest
from protocol.keys import mm_hash
from protocol.types import MMItem
from services.frontend.base64_data import beginning
from services.frontend.config import FrontendConfig
from services.frontend.families import Extent, Family
from services.frontend.image import probe, refuse_other_formats
from services.frontend.lookups import ANONYMOUS, Caller
from services.frontend.media import OFFLOAD_BYTES, MediaFetcher
from services.frontend.messages import MediaPart
from services.frontend.model_info import ModelInfo
from services.frontend.pixel_bounds import PARAM, PixelBounds, bounds_of
from services.frontend.references import KnownMedia, ReferenceBook
from services.frontend.spill import MediaStore

_NO_BOUNDS = "this model has one size for all pictures"
_INLINE_BYTES = 1 << 14  # a header of as many parts as fit takes less than a millisecond
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """`data` is None where the picture is only referred to."""

    mm_hash: str
    extent: Extent
    data: bytes | None = None
    pixels: PixelBounds | None = None  # as in `MMItem`

    def at(self, offset: int) -> MMItem:
        """The item in a prompt."""
        extent = self.extent
        return MMItem(self.mm_hash, "image", offset, extent.length, extent.grid, self.pixels)


class ItemLoader:
    def __init__(self, config: FrontendConfig, info: ModelInfo, family: Family) -> None:
        self._config = config
        self._info = info
        self._family = family
        self._fetcher = MediaFetcher(config.media)
        self._references = ReferenceBook(config.max_references)
        self._default = self._default_bounds()
        self.store = MediaStore(config.media.memory_bytes, config.media.spill_folder)

    async def close(self) -> None:
        await self._fetcher.close()

    def _default_bounds(self) -> PixelBounds | None:
        """As --mm-processor-kwargs says, or the model's own."""
        kwargs, own = self._config.mm_processor_kwargs, self._family.bounds
        if not kwargs:
            return own
        if own is None:
            raise ConfigError(f"--mm-processor-kwargs: {_NO_BOUNDS}")
        try:
            return bounds_of(kwargs, own)
        except InvalidRequest as error:
            raise ConfigError(f"--mm-processor-kwargs: {error.message}") from None

    def bounds(self, kwargs: Mapping[str, Any] | None) -> PixelBounds | None:
        """What a request's `mm_processor_kwargs` ask for, at most as large as without them; None
        where pictures have the model's own bounds. `InvalidRequest` names the option at fault."""
        default = self._default
        if kwargs and default is None:
            raise InvalidRequest(f"{PARAM}: {_NO_BOUNDS}", param=PARAM)
        wanted = bounds_of(kwargs, default) if kwargs and default else default
        if wanted is not None and default is not None and wanted.most > default.most:
            raise InvalidRequest(
                f"{PARAM}: max_pixels must be at most {default.most}, not {wanted.most}",
                param=PARAM,
            )
        return None if wanted == self._family.bounds else wanted

    async def load(
        self,
        parts: Sequence[MediaPart],
        reports: dict[str, Any] | None = None,
        *,
        bounds: PixelBounds | None = None,
        salt: str,
        resolved: Mapping[str, bytes],
        caller: Caller = ANONYMOUS,
    ) -> list[Item]:
        """One item per part; each URL is fetched once. The first error in prompt order is raised.

        `reports`: the request's `ec_transfer_params`, which may name items by uuid. `resolved`:
        bytes by URL of media at hand. `salt` keeps tenants' uuids apart. `caller`: who asks.
        `bounds`: what pictures are resized to, None for the model's own.
        """
        self._check_number(len(parts))
        first_parts = {part.url: part for part in reversed(parts) if part.url is not None}
        fetches = [
            self._fetched(url, part, resolved, caller, bounds) for url, part in first_parts.items()
        ]
        results = await asyncio.gather(*fetches, return_exceptions=True)
        by_url = dict(zip(first_parts, results, strict=True))
        items = []
        for part in parts:
            item = (
                self._known(part, reports, salt, bounds) if part.url is None else by_url[part.url]
            )
            if isinstance(item, BaseException):
                raise item
            if part.url is not None and part.uuid is not None:
                known = KnownMedia(item.mm_hash, item.extent)
                self._references.remember(salt, part.uuid, known, bounds)
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
        self,
        url: str,
        part: MediaPart,
        resolved: Mapping[str, bytes],
        caller: Caller,
        bounds: PixelBounds | None,
    ) -> Item:
        data = resolved.get(url)
        if data is None:
            if len(url) > OFFLOAD_BYTES and (start := beginning(url)):
                refuse_other_formats(start, part.param)  # before megabytes are decoded
            data = await self._fetcher.fetch(url, param=part.param, caller=caller)
        if len(data) > _INLINE_BYTES:
            return await asyncio.to_thread(self._item, data, part.param, bounds)
        return self._item(data, part.param, bounds)

    def _item(self, data: bytes, param: str, bounds: PixelBounds | None) -> Item:
        width, height = probe(data, max_pixels=self._config.media.max_pixels, param=param)
        extent = _naming(param, self._family.measure_image, width, height, bounds)
        return Item(self.name_of(data, bounds), extent, self.store.keep(data), bounds)

    def name_of(self, data: bytes, bounds: tuple[int, int] | None = None) -> str:
        """The mm_hash of a picture, resized within `bounds`, as this model's encoders see it."""
        processor = self._family.processor
        return mm_hash(
            data,
            modality="image",
            processor=processor if bounds is None else {**processor, "bounds": bounds},
            model=self._info.name,
            revision=self._info.revision,
        )

    def _known(
        self,
        part: MediaPart,
        reports: dict[str, Any] | None,
        salt: str,
        bounds: PixelBounds | None,
    ) -> Item:
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
        known = self._references.find(salt, part.uuid, bounds)
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
