"""Blocks of other engines under our names.

Another engine's block hashes depend on its own seed, algorithm and version, so they are never
computed here: what is common is what the block holds. From a block's tokens and media our own
content key follows, chained after its parent's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.keys import block_key, root_key
from protocol.kv_events import BlockHash, BlockStored, short_key


class ForeignBlocks:
    """Names of one worker's blocks, `limit` at most. `unmatched` counts blocks that could not be
    named: their parent is unknown, there is no room, or they depend on something a request cannot
    ask for (a LoRA adapter)."""

    def __init__(self, model: str, revision: str, limit: int) -> None:
        self._model = model
        self._revision = revision
        self.limit = limit
        self._root = root_key(model=model, revision=revision)
        self._keys: dict[BlockHash, bytes] = {}
        self.unmatched = 0

    def stored(self, event: BlockStored) -> list[int]:
        """Our short keys of the blocks an event stores, as far as they can be told."""
        parent = self._parent(event)
        size, tokens = event.block_size, event.token_ids
        whole = size > 0 and len(tokens) == size * len(event.block_hashes)
        named: list[int] = []
        if parent is not None and whole and not event.lora_name and event.lora_id is None:
            for i, name in enumerate(event.block_hashes):
                media = _media(event.extra_keys, i)
                # The rest too: later blocks are chained to this one, and have no names without it.
                if media is None or len(self._keys) >= self.limit:
                    break
                if i == 0 and event.parent_block_hash is None:
                    parent = self._first_parent(event)
                try:
                    parent = block_key(parent, tokens[i * size : (i + 1) * size], media)
                except OverflowError:  # no token id or offset is so large
                    break
                self._keys[name] = parent
                named.append(short_key(parent))
        self.unmatched += len(event.block_hashes) - len(named)
        return named

    def removed(self, names: Iterable[BlockHash]) -> list[int]:
        """Our short keys of blocks that are gone."""
        keys = (self._keys.pop(name, None) for name in names)
        return [short_key(key) for key in keys if key is not None]

    def clear(self) -> None:
        self._keys.clear()

    def _parent(self, event: BlockStored) -> bytes | None:
        if event.parent_block_hash is None:
            return self._root
        return self._keys.get(event.parent_block_hash)

    def _first_parent(self, event: BlockStored) -> bytes:
        """A cache salt stands among the first block's extra keys, as a string."""
        extra = (event.extra_keys or [None])[0] or []
        salts = [part for part in extra if isinstance(part, str)]
        if not salts:
            return self._root
        return root_key(model=self._model, revision=self._revision, cache_salt=salts[0])


def _media(extra_keys: list[list[Any] | None] | None, i: int) -> list[tuple[str, int]] | None:
    """Media of the i-th block as `block_key` takes them, None if malformed.

    vLLM counts an item's offset from the block's start, our keys the block's from the item's.
    """
    if extra_keys is None:
        return []
    if i >= len(extra_keys):
        return None
    found = []
    for part in extra_keys[i] or ():
        if isinstance(part, str) and i == 0:
            continue
        if not (isinstance(part, list) and len(part) == 2):
            return None
        name, offset = part
        if not (isinstance(name, str) and type(offset) is int):
            return None
        found.append((name, -offset))
    return found
