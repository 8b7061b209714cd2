"""The media items of a request: fetched, measured and named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.encoder_cache import content_name, is_mm_hash, reported
from protocol.errors import InvalidRequest
from protocol.keys import mm_hash
from protocol.types import FrameSampling, MMItem, Modality
from services.frontend.audio.kind import Sounds
from services.frontend.config import FrontendConfig
from services.frontend.families import Extent, Family
from services.frontend.media.fetching import OFFLOAD_BYTES, MediaFetcher, beginning
from services.frontend.media.kinds import Kind, Pictures, Videos, Wanted, naming
from services.frontend.media.lookups import ANONYMOUS, Caller
from services.frontend.media.pixel_bounds import IO_PARAM
from services.frontend.media.store import KnownMedia, MediaStore, ReferenceBook
from services.frontend.model_info import ModelInfo
from services.frontend.prompts.messages import MediaPart
from services.frontend.prompts.tokenizing import Span

_AS_IT_IS = Wanted()
Asked = Mapping[Modality, Wanted]
_Source = tuple[Modality, str]


@dataclass(frozen=True)
class Item:
    """`data` is None where the medium is only referred to."""

    mm_hash: str
    extent: Extent
    data: bytes | None = None
    modality: Modality = "image"
    wanted: Wanted = _AS_IT_IS

    def at(self, offset: int, gaps: tuple[int, ...] = ()) -> MMItem:
        """The item in a prompt."""
        return MMItem(
            self.mm_hash,
            self.modality,
            offset,
            self.extent.length,
            self.extent.grid,
            self.wanted.pixels,
            self.wanted.frames,
            self.extent.seconds,
            gaps,
        )

    @property
    def span(self) -> Span:
        return Span(self.modality, self.extent.length, self.extent.before)


class ItemLoader:
    def __init__(
        self,
        config: FrontendConfig,
        info: ModelInfo,
        family: Family,
        store: MediaStore | None = None,
    ) -> None:
        """`store`: where the bytes of items are; None: in one of its own."""
        self._config = config
        self._info = info
        self._fetcher = MediaFetcher(config.media)
        self._references = ReferenceBook(config.max_references)
        self._kinds: dict[Modality, Kind] = {"image": Pictures(config, family)}
        self._why_no_clips = ""
        if not config.allow_clips:
            self._why_no_clips = " with --no-allow-clips"
        elif family.clips is not None:
            self._kinds["video"] = Videos(config, family.clips)
        elif family.why_no_clips:
            self._why_no_clips = f": {family.why_no_clips}"
        media = config.media
        self.store = store or MediaStore(media.memory_bytes, media.spill_folder)
        if family.audio is not None:
            self._kinds["audio"] = Sounds(config, family.audio)
        self._unasked: Asked = {name: kind.wanted({}, {}) for name, kind in self._kinds.items()}

    async def close(self) -> None:
        await self._fetcher.close()
        for kind in self._kinds.values():
            await kind.close()

    def asked(self, kwargs: Mapping[str, Any] | None, io: Mapping[str, Any] | None = None) -> Asked:
        """What a request's `mm_processor_kwargs` and `media_io_kwargs` ask for. `InvalidRequest`
        names the option at fault."""
        if not (kwargs or io):  # as nearly all are
            return self._unasked
        if io and "video" not in self._kinds:
            raise InvalidRequest(
                f"{IO_PARAM}: this server takes no video input{self._why_no_clips}", param=IO_PARAM
            )
        return {name: kind.wanted(kwargs or {}, io or {}) for name, kind in self._kinds.items()}

    async def load(
        self,
        parts: Sequence[MediaPart],
        reports: dict[str, Any] | None = None,
        *,
        asked: Asked,
        salt: str,
        resolved: Mapping[str, bytes],
        caller: Caller = ANONYMOUS,
    ) -> list[Item]:
        """One item per part; each URL is fetched once. The first error in prompt order is raised.

        `reports`: the request's `ec_transfer_params`, which may name items by uuid. `resolved`:
        bytes by URL of media at hand. `salt` keeps tenants' uuids apart. `caller`: who asks.
        `asked`: what becomes of each kind, as `asked` has it.
        """
        self._check_kinds(parts)
        self._check_number(parts)
        # Reversed: of parts with one URL the first is kept, whose field errors name.
        first_parts = {
            (part.modality, part.url): part for part in reversed(parts) if part.url is not None
        }
        fetches = [
            self._fetched(source, part, resolved, caller, asked[part.modality])
            for source, part in first_parts.items()
        ]
        # Exceptions are kept: the first in the order of the prompt is told, not the fastest.
        results = await asyncio.gather(*fetches, return_exceptions=True)
        by_source = dict(zip(first_parts, results, strict=True))
        items = []
        for part in parts:
            wanted = asked[part.modality]
            item = (
                self._known(part, reports, salt, wanted)
                if part.url is None
                else by_source[part.modality, part.url]
            )
            if isinstance(item, BaseException):
                raise item
            if part.url is not None and part.uuid is not None:
                known = KnownMedia(item.mm_hash, item.extent)
                self._references.remember(salt, part.uuid, known, (part.modality, wanted))
            items.append(item)
        return items

    def _check_number(self, parts: Sequence[MediaPart]) -> None:
        limit = self._config.limit_mm_per_prompt
        if len(parts) > limit:
            nouns = sorted({f"{self._kinds[part.modality].noun}s" for part in parts}, reverse=True)
            raise InvalidRequest(
                f"{len(parts)} {' and '.join(nouns)}, but at most {limit} are allowed in one"
                " request",
                param="messages",
                code="too_many_media",
            )

    def _check_kinds(self, parts: Sequence[MediaPart]) -> None:
        for part in parts:
            if part.modality not in self._kinds:
                raise InvalidRequest(
                    f"this server takes no {part.modality} input{self._why_no_clips}",
                    param=part.param,
                    code="unsupported_media",
                )

    async def _fetched(
        self,
        source: _Source,
        part: MediaPart,
        resolved: Mapping[str, bytes],
        caller: Caller,
        wanted: Wanted,
    ) -> Item:
        kind, url = self._kinds[part.modality], source[1]
        data = resolved.get(url)
        if data is None:
            if len(url) > OFFLOAD_BYTES and (start := beginning(url)):
                kind.refuse_other_formats(start, part.param)  # before megabytes are decoded
            data = await self._fetcher.fetch(url, param=part.param, caller=caller)
        return await kind.run(lambda: self._item(data, part, wanted), len(data))

    def _item(self, data: bytes, part: MediaPart, wanted: Wanted) -> Item:
        # First: what is refused is neither hashed nor kept.
        extent = self._kinds[part.modality].measure(data, wanted, part.param)
        name = self._name_of(data, part.modality, wanted)
        return Item(name, extent, self.store.keep(data), part.modality, wanted)

    def name_of(
        self,
        data: bytes,
        pixels: tuple[int, int] | None = None,
        modality: Modality = "image",
        frames: FrameSampling | None = None,
    ) -> str:
        """The mm_hash of a medium as this model's encoders see it; `pixels` and `frames` as in
        `MMItem`. `InvalidRequest` if the model takes none of its kind."""
        if modality not in self._kinds:
            raise InvalidRequest(f"this model takes no {modality} input", code="unsupported_media")
        return self._name_of(data, modality, Wanted(pixels, frames))

    def _name_of(self, data: bytes, modality: Modality, wanted: Wanted) -> str:
        return mm_hash(
            data,
            modality=modality,
            processor=self._kinds[modality].processor(wanted),
            model=self._info.name,
            revision=self._info.revision,
        )

    def _known(
        self, part: MediaPart, reports: dict[str, Any] | None, salt: str, wanted: Wanted
    ) -> Item:
        """An item without its bytes: its embeddings, or its uuid, are known."""
        assert part.uuid is not None
        if not self._config.allow_references:
            raise InvalidRequest(
                "uuid: this server takes no media by reference (--allow-media-references)",
                param=part.param,
            )
        kind = self._kinds[part.modality]
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
            extent = naming(part.param, kind.extent_of, metadata)
            return Item(name, extent, modality=part.modality)
        known = self._references.find(salt, part.uuid, (part.modality, wanted))
        if known is None:
            raise InvalidRequest(
                f"no {kind.noun} with the uuid '{part.uuid[:64]}' is known; send it again",
                param=part.param,
                code="unknown_media",
            )
        return Item(known.mm_hash, known.extent, modality=part.modality, wanted=wanted)
