"""A request on its way through the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy.fleet.worker import Instance
from proxy.relay.bodies import EncodedMedia, RequestBody
from proxy.relay.request import ClientRequest
from proxy.relay.response import ClientResponse
from proxy.relay.resume.recorder import Recorder
from proxy.upstream.connection_pool import ConnectionPool
from proxy.upstream.exchange import Exchange


@dataclass
class RelayedRequest:
    """A request, and what has been achieved for it.

    `media` is what encoders said, `handed` prefill's handles, to be given back to `prefill` as long
    as nobody has taken them. `avoid` lists workers that have failed it. `recorder` notes what would
    be needed to resume its stream, None if that cannot be.
    """

    call: ClientRequest
    request: RequestBody
    reply: ClientResponse
    source: Callable[[Exchange | None], None]
    start: float
    media: EncodedMedia | None = None
    handed: dict[str, Any] | None = None
    prefill: ConnectionPool | None = None
    recorder: Recorder | None = None
    avoid: list[Instance] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fields = self.call.fields()
