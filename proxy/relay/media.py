"""The media items of a request: where they stand, and what encoders have said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from protocol.encoder_cache import ITEMS, TRANSFER_ID

MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
)
_EMBEDS = "_embeds"
_MARKS = (b'_url"', b'input_audio"')


@dataclass(frozen=True)
class MediaItem:
    """One media item: where its part stands, and which of its modality it is in the request."""

    message: int
    part: int
    modality: str
    index: int
    content: dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """What an encoder said of an item: its mm_hash and its entry of `ec_transfer_params`."""

    mm_hash: str
    entry: dict[str, Any]

    def part(self, modality: str) -> dict[str, Any]:
        """The content part that stands for the media: metadata and name, no bytes."""
        kind = modality + _EMBEDS
        return {"type": kind, kind: self.entry["metadata"], "uuid": self.mm_hash}


@dataclass(frozen=True)
class Pushed:
    """An embedding on its way from an encoder to the request's consumer: its mm_hash as the encoder
    has said it, and the transfer's id."""

    mm_hash: str
    id: str


@dataclass(frozen=True)
class EncodedMedia:
    """The items that encoders have, each with what they said of it; and of the others those that a
    worker is to know by our name for their content. `pushed`: the embeddings that encoders push, in
    the order of the items."""

    references: Sequence[tuple[MediaItem, Reference]]
    names: Sequence[tuple[MediaItem, str]] = ()
    pushed: Sequence[Pushed] = ()

    @property
    def changes_body(self) -> bool:
        """Whether the request goes on in another form than the client's."""
        return bool(self.references or self.names or self.pushed)

    def params(self) -> dict[str, Any]:
        """`ec_transfer_params`: one entry per mm_hash, with the item's places in this request, and
        the transfers under way."""
        params: dict[str, Any] = {}
        for item, reference in self.references:
            entry = params.setdefault(reference.mm_hash, {**reference.entry, "item_indices": []})
            entry["item_indices"].append(item.index)
        if self.pushed:
            params[ITEMS] = [{"mm_hash": one.mm_hash, TRANSFER_ID: one.id} for one in self.pushed]
        return params


def media_of(messages: Any) -> tuple[list[MediaItem], set[str]]:
    """Items with content of their own, and the modalities of those without. Ready-made embeddings
    are counted only."""
    found: list[MediaItem] = []
    seen_before: set[str] = set()
    counts: dict[str, int] = {}
    for place, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for number, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            modality = _modality(kind)
            if modality is None:
                continue
            index = counts.get(modality, 0)
            if kind in MEDIA_TYPES and part.get(kind) is not None:
                found.append(MediaItem(place, number, modality, index, part))
            elif kind in MEDIA_TYPES:
                seen_before.add(modality)
            counts[modality] = index + 1
    return found, seen_before


def _modality(kind: Any) -> str | None:
    if not isinstance(kind, str):
        return None
    return MEDIA_TYPES.get(kind) or (kind[: -len(_EMBEDS)] if kind.endswith(_EMBEDS) else None)


def replaced(messages: list[Any], parts: Sequence[tuple[MediaItem, dict[str, Any]]]) -> list[Any]:
    """`messages` with other parts in the places of items; what does not change is shared."""
    messages = list(messages)
    for place in {item.message for item, _ in parts}:
        messages[place] = {**messages[place], "content": list(messages[place]["content"])}
    for item, part in parts:
        messages[item.message]["content"][item.part] = part
    return messages


def may_hold_media(body: bytes) -> bool:
    """Whether a body could have media items, without parsing it."""
    # Large data URLs stand last in their part: little is read before a mark is found.
    return any(mark in body for mark in _MARKS)
