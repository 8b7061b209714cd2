"""The workers this proxy knows, who of them is up, and who gets the next request."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from blake3 import blake3

from protocol.errors import ConfigError, DeadlineExceeded, TriptychError, Unavailable
from protocol.types import Role
from proxy.client import UpstreamClient

Dialect = Literal["tokens", "openai"]
Relayed = Literal["none", "media", "all"]
_LATE_PROBES = 3
_OFF = ("", "none", "disable", "disabled")


@dataclass(eq=False)
class Instance:
    """One worker. `in_flight` counts this proxy's requests there; `kv_endpoint` is where a decode
    worker asks for KV that a prefill worker is still computing, `ec_endpoint` where a consumer asks
    for embeddings that an encoder is still making; None if they cannot be asked. `dialect` is None
    until it has been asked for it. A `suspect` has not answered in time; it is asked only if there
    is nobody else, until it has been probed again."""

    url: str
    role: Role
    up: bool = True
    in_flight: int = 0
    late_probes: int = 0
    kv_endpoint: dict[str, Any] | None = None
    ec_endpoint: dict[str, Any] | None = None
    dialect: Dialect | None = None
    suspect: bool = False

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Count a request on this worker while it is there."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


@dataclass
class Fleet:
    """Static lists of workers; `probe` keeps `up` true to the facts."""

    encode: Sequence[Instance] = ()
    prefill: Sequence[Instance] = ()
    decode: Sequence[Instance] = ()
    random: random.Random = field(default_factory=random.Random)
    relayed: Relayed = "none"
    forced: bool = False

    @staticmethod
    def from_urls(encode: str, prefill: str, decode: str) -> Fleet:
        """From the comma-separated flags; `ConfigError` if nobody decodes."""
        fleet = Fleet(
            encode=_instances("encode", encode),
            prefill=_instances("prefill", prefill),
            decode=_instances("decode", decode),
        )
        if not fleet.decode:
            raise ConfigError("--decode-servers-urls: at least one worker is needed")
        return fleet

    def all(self) -> list[Instance]:
        return [*self.encode, *self.prefill, *self.decode]

    def force_dialect(self, dialect: str) -> None:
        """`tokens` and `openai` hold for all workers; with any other word they are asked."""
        self.forced = dialect in ("tokens", "openai")
        if self.forced:
            for instance in self.all():
                instance.dialect = "openai" if dialect == "openai" else "tokens"
        self._choose_relayed()

    def _choose_relayed(self) -> None:
        """Requests that could meet a worker which speaks only `openai` are relayed: all if one
        prefills or decodes, those with media if only encoders are such."""
        if any(i.dialect == "openai" for i in (*self.prefill, *self.decode)):
            self.relayed = "all"
        elif any(i.dialect == "openai" for i in self.encode):
            self.relayed = "media"
        else:
            self.relayed = "none"

    def least_loaded(self, role: Role, avoid: Sequence[Instance] = ()) -> Instance:
        """The worker with the fewest requests of ours, ties at random; `avoid` only if need be."""
        able = _up(self.of(role))
        choices = [i for i in able if i not in avoid] or able
        if not choices:
            raise Unavailable(f"no {role} worker is up", retry_after_s=1.0)
        fewest = min(instance.in_flight for instance in choices)
        return self.random.choice([i for i in choices if i.in_flight == fewest])

    def by_content(self, mm_hash: str) -> Instance:
        """The encoder that this item goes to as long as it is up (rendezvous hashing), so that a
        repeated picture meets its cache."""
        able = _up(self.encode)
        if not able:
            raise Unavailable("no encode worker is up", retry_after_s=1.0)
        return rendezvous([i for i in able if not i.suspect] or able, mm_hash)

    def of(self, role: Role) -> Sequence[Instance]:
        """The workers of a role."""
        if role == "encode":
            return self.encode
        return self.prefill if role == "prefill" else self.decode

    async def probe(self, client: UpstreamClient, interval_s: float) -> None:
        """Ask every worker for its health, again and again, until cancelled."""
        while True:
            await self.probe_once(client)
            await asyncio.sleep(interval_s)

    async def probe_once(self, client: UpstreamClient) -> None:
        await asyncio.gather(*(_probe_one(client, i, not self.forced) for i in self.all()))
        self._choose_relayed()


def rendezvous(instances: Sequence[Instance], key: str) -> Instance:
    """The same one for the same key, as long as it is among them. Source: Thaler and Ravishankar,
    highest random weight."""
    return max(instances, key=lambda i: blake3(f"{i.url} {key}".encode()).digest())


def _instances(role: Role, urls: str) -> list[Instance]:
    if urls.strip().lower() in _OFF:
        return []
    found = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
    for url in found:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--{role}-servers-urls: '{url}' is not an http(s) URL")
    return [Instance(url, role) for url in found]


def _up(instances: Sequence[Instance]) -> list[Instance]:
    return [instance for instance in instances if instance.up]


async def _probe_one(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """A refused connection means down at once; a late answer only if it happens again and again,
    for a busy machine is not a dead worker."""
    try:
        await client.get(f"{instance.url}/health")
        if ask_dialect and not (instance.up and instance.dialect):
            instance.dialect = await _dialect(client, instance) or instance.dialect
        if instance.role == "prefill" and not (instance.up and instance.kv_endpoint):
            instance.kv_endpoint = await _endpoint(client, instance, "kv_transfer_params")
        if instance.role == "encode" and not (instance.up and instance.ec_endpoint):
            instance.ec_endpoint = await _endpoint(client, instance, "ec_transfer_params")
        instance.up, instance.late_probes, instance.suspect = True, 0, False
    except DeadlineExceeded:
        instance.late_probes += 1
        instance.up = instance.up and instance.late_probes < _LATE_PROBES
    except TriptychError:
        instance.up = False


async def _endpoint(client: UpstreamClient, instance: Instance, name: str) -> dict[str, Any] | None:
    found = (await _server_info(client, instance)).get(name)
    return found if isinstance(found, dict) else None


async def _dialect(client: UpstreamClient, instance: Instance) -> Dialect | None:
    """Our workers say theirs. Others are taken for vLLM's if they say what models they serve; one
    that says neither may be late in starting."""
    if (await _server_info(client, instance)).get("dialect") == "tokens":
        return "tokens"
    models = await _json(client, f"{instance.url}/v1/models")
    version = models or await _json(client, f"{instance.url}/version")
    return "openai" if version else None


async def _server_info(client: UpstreamClient, instance: Instance) -> dict[str, Any]:
    return await _json(client, f"{instance.url}/server_info")


async def _json(client: UpstreamClient, url: str) -> dict[str, Any]:
    """The object at a URL, empty if there is none."""
    try:
        found = msgspec.json.decode(await client.get(url))
    except (TriptychError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}
