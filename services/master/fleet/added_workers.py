"""Workers that cannot register: added by hand, kept by probes. vLLM's registration contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.decoding import accepted
from protocol.encoder_cache import consumer_addresses
from protocol.errors import InvalidRequest, Unavailable
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo, InstanceName, InstanceRole, Load, Url
from services.master.config import MasterConfig
from services.master.fleet.registry import Registry
from services.master.fleet.validation import check_events, check_url, same_process

MAX_BLOCK_SIZE = 65536
_MAX_REMOVED = 4096  # names, kept from masters that were cut off when they were removed
_BLOCK_SIZE = 16  # vLLM's on a GPU


class ProbedInstance(msgspec.Struct, omit_defaults=True):
    """Body of `POST /instances`: vLLM's four fields, then ours."""

    # The stage that the worker serves
    role: Literal["encode", "prefill", "decode", "prefill_decode"]
    url: Url  # where it answers
    # Where encoders push embeddings to, for each of its data-parallel ranks; none: it fetches them
    ec_zmq_addrs: list[str] | str | None = None
    dp_size: Annotated[int, Meta(ge=1, le=4096)] = 1  # how many ranks it has
    model: str = ""  # "" for what the worker's `/v1/models` says
    # The proxy's name for the weights, or its block keys meet none of this worker's
    revision: str = ""
    # Tokens of a KV block, 0 for what its metrics say, or 16
    block_size: Annotated[int, Meta(ge=0, le=MAX_BLOCK_SIZE)] = 0
    # vLLM's `--kv-events-config` endpoints
    events: Annotated[list[EventSource], Meta(max_length=64)] = []
    # A prefill worker that has the vision model too: it encodes where encoders are busier
    encodes: bool = False

    @property
    def name(self) -> str:
        return f"{self.role}@{self.url.rstrip('/')}"

    def info(self, model: str, block_size: int) -> InstanceInfo:
        role: InstanceRole = self.role
        return InstanceInfo(
            self.name, role, self.url.rstrip("/"), model, revision=self.revision,
            dialect="openai", block_size=self.block_size or block_size or _BLOCK_SIZE,
            events=self.events, foreign=True, encodes=self.encodes,
            ec_zmq_addrs=consumer_addresses(self.ec_zmq_addrs, self.dp_size, role),
        )  # fmt: skip


_instances = msgspec.json.Decoder(ProbedInstance)


def decode_probed(data: bytes) -> ProbedInstance:
    """The body of a call, or `InvalidRequest`."""
    found = accepted(_instances.decode, data)
    if found.encodes and found.role != "prefill":
        message = f"encodes: only a worker of the role prefill may have it, not {found.role}"
        raise InvalidRequest(message, param="encodes")
    check_events(found.events)
    consumer_addresses(found.ec_zmq_addrs, found.dp_size, found.role)
    return found


@dataclass(frozen=True)
class WorkerMetrics:
    """`load`: over all ranks, without rates. `block_size`: tokens of a KV block, 0 if not said."""

    load: Load
    block_size: int = 0


@dataclass(eq=False)
class Probed:
    """A worker with what its probes said."""

    instance: ProbedInstance  # as it was added
    seen: float  # when it last answered, or was added (s of the monotonic clock)
    learned: str = ""  # the model that it names, until it fails: another one may be started there
    # `aliases`, `adapters`: as it names them
    aliases: list[str] = field(default_factory=list)
    adapters: list[str] = field(default_factory=list)  # LoRA adapters
    block_size: int = 0  # tokens of a KV block, as its metrics say
    asking: bool = False  # a probe is under way
    failures: int = 0  # probes in a row that have failed
    up: bool = False  # whether it is registered
    error: str = ""  # what the last probe failed with, "" if it did not

    @property
    def url(self) -> str:
        return self.instance.url.rstrip("/")

    @property
    def is_new(self) -> bool:
        """No probe has ended yet."""
        return not self.up and not self.failures

    @property
    def model(self) -> str:
        return self.instance.model or self.learned

    def info(self) -> InstanceInfo:
        aliases = [name for name in self.aliases if name != self.model]
        info = self.instance.info(self.model, self.block_size)
        return msgspec.structs.replace(info, aliases=aliases, adapters=self.adapters)


@dataclass
class AddedWorkers:
    """Registered while they answer, forgotten when they are long gone. `added` is called when there
    is a new one to probe. Every master of a fleet has the whole list."""

    config: MasterConfig
    registry: Registry
    added: Callable[[], None] = lambda: None
    _probed: dict[str, Probed] = field(default_factory=dict)
    _removed: dict[str, float] = field(default_factory=dict)

    def all(self) -> list[Probed]:
        return list(self._probed.values())

    def add(self, instance: ProbedInstance, now: float) -> None:
        """Probed from the next round on; adding it again changes nothing but `ec_zmq_addrs`, if
        these are given."""
        self._add(instance, now, fresh=True)
        self._removed.pop(instance.name, None)

    def _add(self, instance: ProbedInstance, now: float, *, fresh: bool) -> None:
        check_url(instance.url)
        if len(self._probed) >= self.config.max_instances:
            raise Unavailable("the fleet has reached --max-instances")
        for name, known in self._probed.items():
            if known.url == instance.url.rstrip("/") and name != instance.name:
                raise InvalidRequest(
                    f"{instance.url} is registered already, with the role {known.instance.role}",
                    param="url",
                    code="duplicate_instance",
                )
        known = self._probed.setdefault(instance.name, Probed(instance, now))
        # Only by the call itself: what a master says again later may be older than such a call.
        if fresh and instance.ec_zmq_addrs is not None:
            known.instance = msgspec.structs.replace(
                known.instance, ec_zmq_addrs=instance.ec_zmq_addrs, dp_size=instance.dp_size
            )
        self.added()

    def forget(self, name: str, now: float) -> bool:
        """It was removed, here or at another master; False if it was not there."""
        # Out and in again: in the order of removal, the oldest are forgotten first.
        self._removed.pop(name, None)
        self._removed[name] = now
        if len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        found = self._probed.pop(name, None)
        if found is not None:
            self.registry.deregister(InstanceName(name))
        return found is not None

    def learn(self, body: bytes, now: float, *, fresh: bool) -> str:
        """Another master was told of a worker: at this moment, or some time ago. The name of one
        that was removed lately: a master that was cut off then may still take it to be there."""
        instance = decode_probed(body)
        if fresh:
            self._removed.pop(instance.name, None)
        removed = self._removed.get(instance.name)
        if removed is not None and now - removed < self.config.probe_forget:
            return instance.name
        self._add(instance, now, fresh=fresh)
        return ""

    def bodies(self) -> dict[str, bytes]:
        """What other masters may not have heard, by name: those that answer, or are new."""
        known = self._probed.items()
        return {n: msgspec.json.encode(one.instance) for n, one in known if not one.failures}

    def list(self) -> list[dict[str, object]]:
        return [
            {
                **msgspec.to_builtins(probed.instance),
                "model": probed.model,
                "healthy": probed.up,
                "failures": probed.failures,
                "error": probed.error,
            }
            for probed in self._probed.values()
        ]

    def alive(self, probed: Probed, now: float, metrics: WorkerMetrics | None = None) -> None:
        """Register it, or renew its lease; one that registers itself speaks for itself."""
        if not self._is_there(probed):
            return
        if metrics is not None:
            probed.block_size = metrics.block_size
        info = probed.info()
        known = self.registry.at(info.url)
        if known is None or known.info.instance_id == info.instance_id:
            self._keep(info, now)
            if metrics is not None:
                self.registry.observed(info.instance_id, metrics.load, now * 1e3)
        probed.up, probed.failures, probed.seen, probed.error = True, 0, now, ""

    def _keep(self, info: InstanceInfo, now: float) -> None:
        """It tells no load, and every master finds it by itself."""
        known = self.registry.instances.get(info.instance_id)
        if known is not None and same_process(known.info, info):
            self.registry.rename(info)
            self.registry.touch(info.instance_id, now * 1e3, self._lease_s)
        else:
            self.registry.register(info, now * 1e3, self._lease_s)

    @property
    def _lease_s(self) -> float:
        """A worker is taken out by its failed probes; the lease is for a prober that is stuck."""
        rounds = self.config.probe_failures + 2
        return rounds * (self.config.probe_interval + self.config.probe_timeout)

    def failed(self, probed: Probed, error: str, now: float) -> None:
        """A probe had no good answer."""
        if not self._is_there(probed):
            return
        probed.failures += 1
        probed.error = error
        probed.learned = ""
        if probed.up and probed.failures >= self.config.probe_failures:
            probed.up = False
            self.registry.deregister(InstanceName(probed.instance.name, failed=True))
        if now - probed.seen > self.config.probe_forget:
            self._probed.pop(probed.instance.name, None)

    def _is_there(self, probed: Probed) -> bool:
        """Whether it was not removed, or removed and added again, while it was asked."""
        return self._probed.get(probed.instance.name) is probed
