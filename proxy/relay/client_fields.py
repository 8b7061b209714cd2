"""The fields of a client's JSON body: without those that no client may give, and each said once."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from protocol.errors import InvalidRequest
from proxy.relay.json_fields import object_of, too_deep

HANDLES, PARAMS = "kv_transfer_params", "ec_transfer_params"
_EXTENSIONS = "vllm_xargs"  # vLLM merges these with KV handles
_SHORT = 1 << 14  # bytes; longer bodies are looked through only for what orders requests
_ORDERING = frozenset(("priority", "n", "best_of"))

# JSON leaves open which of two fields of one name counts: an engine that reads the first would do
# what was never judged.
_JUDGED = (
    "priority", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "stream",
    "model", "echo", "logprobs", "prompt_logprobs", "return_token_ids", "request_id", "cache_salt",
)  # fmt: skip
# A type for each: their decoding is told apart, and happens each time that a field stands there.
_TYPES: Mapping[str, Any] = MappingProxyType({name: type(name, (), {}) for name in _JUDGED})
_Judged = msgspec.defstruct(
    "_Judged", [(name, kind | UnsetType, UNSET) for name, kind in _TYPES.items()]
)
_VALUES: MappingProxyType[Any, Any] = MappingProxyType({kind: kind() for kind in _TYPES.values()})


def fields_of(data: bytes, *, references: bool) -> tuple[dict[str, Any], bool]:
    """The fields that may go on, and whether `data` says the same to every reader. `references`:
    clients may say where embeddings are. Raises `InvalidRequest`."""
    fields = object_of(data)
    try:
        once = _says_once(data, fields)
    except RecursionError:
        raise too_deep() from None
    # Both say where a worker fetches: they are no client's to give.
    kept = not _left_out(fields, HANDLES)
    if not references:
        kept = not _left_out(fields, PARAMS) and kept
    extensions = fields.get(_EXTENSIONS)
    if isinstance(extensions, dict) and (HANDLES in extensions or PARAMS in extensions):
        message = f"{_EXTENSIONS}: {HANDLES} and {PARAMS} are no client's to give"
        raise InvalidRequest(message, param=_EXTENSIONS)
    return fields, once and kept


def _left_out(fields: dict[str, Any], name: str) -> bool:
    """Whether the field was there."""
    if name not in fields:
        return False
    handles = fields.pop(name)
    if handles is not None and not isinstance(handles, dict):
        raise InvalidRequest(f"{name} must be an object", param=name, code="invalid_type")
    return True


def _says_once(data: bytes, fields: dict[str, Any]) -> bool:
    """Whether no judged field stands twice at the top level, in whatever spelling."""
    if len(data) > _SHORT and _ORDERING.isdisjoint(fields):
        return True
    try:
        # As a hook, `pop` hands out a type's value once, and then what it was given, which is of
        # another type. It is called from C: a function of Python would take three times as long.
        msgspec.json.decode(data, type=_Judged, dec_hook=_VALUES.copy().pop)
    except msgspec.ValidationError:
        return False
    return True
