"""Where a worker publishes its cache events, which masters it tells, and how others reach it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from protocol.errors import ConfigError
from protocol.flag_lists import parse_urls
from protocol.kv_events import EC_TOPIC, KV_TOPIC, EventSource

_WILDCARDS = ("", "*", "0.0.0.0", "::")
_Positive = Annotated[int, Meta(ge=1)]


@dataclass(frozen=True)
class TopicOptions:
    """Where to bind, and with which name."""

    endpoint: str  # of the PUB socket; port 0 takes any free one
    replay: str  # of the ROUTER socket
    topic: str = KV_TOPIC  # first frame of each message
    blocks: bool = True  # whether it tells of blocks, or of embeddings
    buffer_steps: int = 10_000  # messages that can be replayed
    hwm: int = 100_000  # messages queued for a slow subscriber, which loses the rest


class EventsConfig(msgspec.Struct, frozen=True):
    """`--kv-events-config`. Endpoints are bound; a port of 0 takes any free one. Embeddings have a
    socket of their own, since readers of block events would not know what to make of them.
    """

    endpoint: str  # PUB socket of block events
    replay_endpoint: str  # ROUTER socket that replays them
    ec_endpoint: str  # PUB socket of embedding events
    ec_replay_endpoint: str  # ROUTER socket that replays those
    topic: str = KV_TOPIC  # topic of block events
    buffer_steps: _Positive = 10_000  # batches kept for replay
    hwm: _Positive = 100_000  # batches queued for a slow reader before some are dropped

    def hosts(self) -> list[str]:
        """Addresses that the sockets are bound to, one for each that is of TCP."""
        parts = (
            one.partition("://")
            for one in (self.endpoint, self.replay_endpoint, self.ec_endpoint,
                        self.ec_replay_endpoint)
        )  # fmt: skip
        return [rest.rpartition(":")[0] for scheme, _, rest in parts if scheme == "tcp"]

    def blocks(self) -> TopicOptions:
        return TopicOptions(
            self.endpoint, self.replay_endpoint, self.topic,
            buffer_steps=self.buffer_steps, hwm=self.hwm,
        )  # fmt: skip

    def embeddings(self) -> TopicOptions:
        return TopicOptions(
            self.ec_endpoint, self.ec_replay_endpoint, EC_TOPIC, blocks=False,
            buffer_steps=self.buffer_steps, hwm=self.hwm,
        )  # fmt: skip


def free_endpoint(host: str) -> str:
    """Any free port of `host`, as ZMQ binds it."""
    if host in _WILDCARDS:
        return "tcp://*:0"
    return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"


def parse_events(text: str, host: str, *, default: bool) -> EventsConfig | None:
    """vLLM's JSON object; None if no events are to be published. Empty: any free ports of `host` if
    `default`. `ConfigError` names what is wrong."""
    flag, anywhere = "--kv-events-config", free_endpoint(host)
    if not text:
        return EventsConfig(anywhere, anywhere, anywhere, anywhere) if default else None
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"{flag}: {error}") from None
    enabled = fields.pop("enable_kv_cache_events", True)
    publisher = fields.pop("publisher", None) or ("zmq" if enabled else "null")
    # Of vLLM's own thread, which there is none of here.
    fields.pop("max_queue_size", None)
    if publisher not in ("zmq", "null") or not isinstance(enabled, bool):
        raise ConfigError(f"{flag}: publisher {publisher!r} is not one of zmq, null")
    fields = {name: value for name, value in fields.items() if value is not None}
    # vLLM's object has no endpoints for embeddings: what is not named gets any free port.
    for name in ("endpoint", "replay_endpoint", "ec_endpoint", "ec_replay_endpoint"):
        fields[name] = fields.get(name) or anywhere
    unknown = sorted(set(fields) - set(EventsConfig.__struct_fields__))
    if unknown:
        raise ConfigError(f"{flag}: unknown fields {', '.join(unknown)}")
    try:
        config = msgspec.convert(fields, EventsConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag}: {error}") from None
    return config if enabled and publisher == "zmq" else None


def reachable(sources: Sequence[EventSource], host: str) -> list[EventSource]:
    """Event sources with `host` in the place of a wildcard."""
    return [EventSource(_named(s.endpoint, host), _named(s.replay, host), s.topic) for s in sources]


def _named(endpoint: str, host: str) -> str:
    scheme, _, address = endpoint.partition("://")
    bound, _, port = address.rpartition(":")
    if scheme != "tcp" or bound.strip("[]") not in _WILDCARDS:
        return endpoint
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def advertised_url(
    given: str, host: str, port: int, masters: Sequence[str], *, secure: bool = False
) -> str:
    """The URL that others reach a worker by, which listens at `host`:`port`; `secure`: with TLS.

    Unless it is `given` or `host` says it, it is the address that this machine would speak to the
    first master from. `ConfigError` if that cannot be told.
    """
    if given:
        return parse_urls("--advertise-url", given)[0]
    if host in _WILDCARDS:
        host = _own_address(masters[0]) if masters else "127.0.0.1"
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _own_address(master: str) -> str:
    """Nothing is sent: connecting a datagram socket only chooses the address."""
    there = urlsplit(master)
    try:
        # Any port does: the route depends on the address alone.
        found = socket.getaddrinfo(there.hostname, there.port or 80, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"--advertise-url is needed: there is no route to {master}: {error}"
        ) from None
