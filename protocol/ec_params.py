"""`ec_transfer_params` of chat requests: what encoders reported, found by the client's own names.

vLLM keys an entry by the client's uuid where there is one; embeddings here are kept by content.
An entry keyed by a uuid therefore says the content's `mm_hash` too, and proxies hand it back as
they got it.
"""

from __future__ import annotations

import re
from typing import Any, TypeGuard

MAX_NAME_CHARS = 256
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]*")
_CONTENT = "mm_hash"


def is_mm_hash(name: object) -> TypeGuard[str]:
    """Whether `name` can be an mm_hash. It may become a file's name, so it has only letters, digits
    and _-.: and does not begin with a dot."""
    return isinstance(name, str) and len(name) <= MAX_NAME_CHARS and bool(_NAME.fullmatch(name))


def named_entry(uuid: str, mm_hash: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry that an encoder reports under the client's `uuid`."""
    return entry if uuid == mm_hash else {**entry, _CONTENT: mm_hash}


def reported(params: dict[str, Any] | None, uuid: str) -> dict[str, Any]:
    """What an encoder said of the item that the client calls `uuid`; {} if nothing."""
    entry = (params or {}).get(uuid)
    return entry if isinstance(entry, dict) else {}


def content_name(params: dict[str, Any] | None, uuid: str) -> str:
    """The mm_hash of the item that the client calls `uuid`: `uuid` itself if no entry says."""
    name = reported(params, uuid).get(_CONTENT)
    return name if isinstance(name, str) else uuid


def by_content(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """`params`, whose entries are also found by the mm_hash of their content."""
    if not params:
        return params
    found = {content_name(params, uuid): reported(params, uuid) for uuid in params}
    return {**{name: entry for name, entry in found.items() if is_mm_hash(name)}, **params}
