"""What a rendered request needs of the workers, by exact keys."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.keys import block_keys, root_key
from protocol.kv_events import short_key
from protocol.placement import MediaNeed
from protocol.types import GenerateRequest
from proxy.placement.planner import Need
from services.frontend.render import Frontend


@dataclass(frozen=True)
class ModelNames:
    """`served`: for clients and masters. `keyed` and `revision`: in content keys. `alone`: all
    workers of the proxy serve it."""

    served: str = ""
    keyed: str = ""
    revision: str = ""
    alone: bool = True

    @staticmethod
    def of(frontend: Frontend, *, alone: bool) -> ModelNames:
        info = frontend.info
        return ModelNames(frontend.name, info.name, info.revision, alone)


def need_of(wanted: GenerateRequest, names: ModelNames) -> Need:
    """Of an attempt of a rendered request. Keys are made only if a master is asked."""
    adapted = bool(wanted.adapter_revision)

    def keys(block_size: int) -> list[int]:
        root = root_key(
            model=names.keyed,
            revision=names.revision,
            cache_salt=wanted.cache_salt,
            adapter=wanted.adapter_revision,
        )
        made = block_keys(wanted.token_ids, block_size, root, wanted.mm_items)
        return [short_key(key) for key in made]

    items = [
        MediaNeed(item.mm_hash, item.end - item.offset, item.offset, modality=item.modality)
        for item in wanted.mm_items
    ]
    return Need(
        wanted.request_id,
        len(wanted.token_ids),
        wanted.sampling.max_tokens,
        items,
        keys,
        wanted.model if adapted else names.served,
        selective=adapted or not names.alone,
        pooling=wanted.pooling is not None,
    )
