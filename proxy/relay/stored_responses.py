"""Which worker has a stored response, for the requests that name it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.errors import InvalidRequest
from proxy.fleet.worker import Instance

_MOST = 65536  # responses that are remembered: 15 MB
_LONGEST = 128
_PREVIOUS = "previous_response_id"
# In the first event of a stream, `response.created`, no other id comes before.
_ID = re.compile(rb'"id"\s*:\s*"(resp_[\w-]{1,123})"')


class _Named(msgspec.Struct):
    """A whole answer."""

    id: str = ""


@dataclass(frozen=True)
class _Held:
    worker: Instance
    tenant: str  # whose response it is


class StoredResponses:
    """The worker of each response; those that were not named for longest are forgotten."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._held = OrderedDict[str, _Held]()

    def __len__(self) -> int:
        return len(self._held)

    def note(self, answer: bytes, worker: Instance, tenant: str, *, streamed: bool) -> None:
        """A worker has answered with a response: the whole of it, or a stream's first events. A
        client may choose the id of its response; another client's stays that one's."""
        name = _first_id(answer) if streamed else _id_of(answer)
        if not name or len(name) > _LONGEST:
            return
        held = self._held.get(name)
        if held is not None and held.tenant != tenant:
            return
        self._held[name] = _Held(worker, tenant)
        if len(self._held) > self._most:
            self._held.popitem(last=False)

    def known(self, name: str) -> bool:
        return name in self._held

    def worker_of(self, name: str, tenant: str) -> Instance | None:
        """None if the response is not known, is another client's, or went with its worker."""
        held = self._held.get(name)
        if held is None or held.tenant != tenant:
            return None
        if held.worker.removed:
            self.forget(name)
            return None
        self._held.move_to_end(name)
        return held.worker

    def forget(self, name: str) -> None:
        self._held.pop(name, None)


def previous_of(fields: Mapping[str, Any]) -> str:
    """The response that a request goes on from, "" if none. `InvalidRequest` if it is no string:
    a proxy cannot know whose response another value would name at a worker."""
    given = fields.get(_PREVIOUS)
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(f"{_PREVIOUS} must be a string", param=_PREVIOUS, code="invalid_type")
    return given or ""


def is_stored(fields: Mapping[str, Any]) -> bool:
    """Whether a request's response is kept for later ones."""
    return fields.get("store") is not False


def _id_of(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_Named).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _first_id(events: bytes) -> str:
    found = _ID.search(events)
    return "" if found is None else found[1].decode()
