"""Content keys: one name for a picture and one for a KV block, the same in every process.

`mm_hash` names a media item as a model sees it; a block key names a KV block by everything its
values depend on, and its last 8 bytes (`protocol.kv_events.short_key`) by what cache events of
other engines tell of that. Both are BLAKE3 (https://github.com/BLAKE3-team/BLAKE3-specs) over
length-prefixed fields, so no two field lists share an encoding.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from blake3 import blake3

from protocol.types import MMItem

MM_HASH_VERSION = b"triptych-mm-1"
BLOCK_KEY_VERSION = b"triptych-block-1"
_TOLD_BYTES = 8
_SAMPLE_BYTES = 1 << 16
_SAMPLES = 9


def _digest(fields: Iterable[bytes]) -> blake3:
    hasher = blake3()
    for field in fields:
        # Without lengths ("ab", "c") and ("a", "bc") would be one name.
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def mm_hash(
    data: bytes, *, modality: str, processor: dict[str, Any], model: str, revision: str
) -> str:
    """Name of a media item: 64 hex digits.

    `data` are the bytes as the client sent them (the encoded file), `processor` the options and
    version of the media processor, `model` and `revision` the weights that will encode it.
    """
    fields = (
        MM_HASH_VERSION,
        modality.encode(),
        canonical_json(processor),
        model.encode(),
        revision.encode(),
        data,
    )
    return _digest(fields).hexdigest()


def root_key(*, model: str, revision: str, cache_salt: str = "", adapter: str = "") -> bytes:
    """Parent of a request's first block, 32 bytes. `cache_salt` keeps tenants apart; `adapter` is
    the revision of the LoRA adapter that computes the KV, "" for none."""
    fields = [BLOCK_KEY_VERSION, model.encode(), revision.encode(), cache_salt.encode()]
    if adapter:
        fields.append(adapter.encode())
    return _digest(fields).digest()


def block_key(
    parent: bytes, token_ids: Sequence[int], media: Sequence[tuple[str, int]] = ()
) -> bytes:
    """Key of one full block, 32 bytes.

    `media`: (mm_hash, offset of the block's first token within the item, negative if the item
    starts inside the block) for every item that overlaps the block, in prompt order.
    """
    fields = [parent, array("i", token_ids).tobytes()]
    for name, offset in media:
        fields.append(name.encode())
        fields.append(offset.to_bytes(8, "little", signed=True))
    return _digest(fields).digest()


class BlockKeyChain:
    """Keys of the full blocks of one growing token list; each block is hashed once, and from the
    first media item that has a grid on twice."""

    def __init__(self, root: bytes, block_size: int, mm_items: Sequence[MMItem] = ()) -> None:
        self.root = root
        self.block_size = block_size
        self._items = sorted(mm_items, key=lambda item: item.offset)
        self._first_item = 0
        # Other engines tell of a medium its hash and offset alone: blocks that they hold are found
        # by the short key, so that must depend on nothing else. KV is shared by whole keys.
        self._told = root
        self._whole = root
        self.keys: list[bytes] = []

    def extend(self, token_ids: Sequence[int]) -> list[bytes]:
        """Keys of all full blocks of `token_ids`, which must extend what was given before."""
        size = self.block_size
        for start in range(len(self.keys) * size, len(token_ids) - size + 1, size):
            self.keys.append(self._next(token_ids[start : start + size], start))
        return self.keys

    def _next(self, token_ids: Sequence[int], start: int) -> bytes:
        items = self._overlapping(start, start + self.block_size)
        if not items and self._whole is self._told:  # of text, as most blocks are
            self._whole = self._told = block_key(self._told, token_ids)
            return self._told
        told = [(item.mm_hash, start - item.offset) for item in items]
        whole = [(_named(item), start - item.offset) for item in items]
        same = whole == told and self._whole is self._told
        self._told = block_key(self._told, token_ids, told)
        self._whole = self._told if same else block_key(self._whole, token_ids, whole)
        return self._whole[:-_TOLD_BYTES] + self._told[-_TOLD_BYTES:]

    def _overlapping(self, start: int, end: int) -> list[MMItem]:
        items = self._items
        # Blocks come in order: items before them are never looked at again.
        while self._first_item < len(items) and items[self._first_item].end <= start:
            self._first_item += 1
        overlapping = []
        for item in items[self._first_item :]:
            if item.offset >= end:
                break
            overlapping.append(item)
        return overlapping


def _named(item: MMItem) -> str:
    """What of an item decides on the KV of its tokens. Their places in time and in the picture
    follow from its grid and pace, which a client that names it by reference says itself."""
    if not (item.grid or item.seconds_per_grid or item.gaps):
        return item.mm_hash
    named = f"{item.mm_hash} {'x'.join(map(str, item.grid))} {item.seconds_per_grid!r}"
    return f"{named} {'+'.join(map(str, item.gaps))}" if item.gaps else named


def block_keys(
    token_ids: Sequence[int], block_size: int, root: bytes, mm_items: Sequence[MMItem] = ()
) -> list[bytes]:
    """Keys of every full block of a prompt, first block first."""
    return BlockKeyChain(root, block_size, mm_items).extend(token_ids)


def model_revision(model_dir: Path) -> str:
    """A name for the weights in `model_dir`: the hub's commit if the path tells it, else a digest.

    The digest covers the configuration files whole and, of each weight file, its size and nine
    samples from its header to its end, so that it costs milliseconds for any model.
    """
    parts = model_dir.resolve().parts
    if len(parts) > 1 and parts[-2] == "snapshots":
        return parts[-1]
    fields: list[bytes] = []
    for path in sorted(model_dir.glob("*config.json")):
        fields += [path.name.encode(), path.read_bytes()]
    for path in sorted(model_dir.glob("*.safetensors")):
        fields += [path.name.encode(), *_sample(path)]
    return _digest(fields).hexdigest()[:40]


def _sample(path: Path) -> list[bytes]:
    size = path.stat().st_size
    fields = [size.to_bytes(8, "little")]
    with path.open("rb") as file:
        for i in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            fields.append(file.read(_SAMPLE_BYTES))
    return fields
