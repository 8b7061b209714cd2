"""Workers that cannot register: added by hand, kept by probes. vLLM's registration contract."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.decoding import accepted
from protocol.errors import InvalidRequest, TriptychError, Unavailable
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo, InstanceName, InstanceRole, Url
from services.master.api.service import MasterService
from services.master.config import MasterConfig
from services.master.fleet.validation import check_url
from services.master.replication.messages import Added, Removed

if TYPE_CHECKING:
    from services.master.fleet.probe_client import ProbeClient

_MAX_REMOVED = 4096


class ProbedInstance(msgspec.Struct, omit_defaults=True):
    """Body of `POST /instances`: vLLM's four fields, then ours.

    `model` empty: what the worker's `/v1/models` says. `revision` must be the proxy's name for the
    weights, or its block keys meet none of this worker's; `events` are vLLM's
    `--kv-events-config` endpoints.
    """

    role: Literal["encode", "prefill", "decode", "prefill_decode"]
    url: Url
    ec_zmq_addrs: list[str] | str | None = None
    dp_size: Annotated[int, Meta(ge=1, le=4096)] = 1
    model: str = ""
    revision: str = ""
    block_size: Annotated[int, Meta(ge=1, le=65536)] = 16
    events: Annotated[list[EventSource], Meta(max_length=64)] = []

    @property
    def name(self) -> str:
        return f"{self.role}@{self.url.rstrip('/')}"

    def info(self, model: str) -> InstanceInfo:
        role: InstanceRole = self.role
        return InstanceInfo(
            self.name, role, self.url.rstrip("/"), model, revision=self.revision,
            dialect="openai", block_size=self.block_size, events=self.events, foreign=True,
        )  # fmt: skip


_instances = msgspec.json.Decoder(ProbedInstance)


def decode_probed(data: bytes) -> ProbedInstance:
    """The body of a call, or `InvalidRequest`."""
    return accepted(_instances.decode, data)


@dataclass(eq=False)
class _Probed:
    """A worker with what its probes said. Times are seconds of the monotonic clock. `learned`: the
    model that it names, until it fails: another one may be started there."""

    instance: ProbedInstance
    seen: float
    learned: str = ""
    asking: bool = False
    failures: int = 0
    up: bool = False
    error: str = ""

    @property
    def model(self) -> str:
        return self.instance.model or self.learned


@dataclass
class Prober:
    """Probes every added worker; registers it while it answers, forgets it when it is long gone."""

    service: MasterService
    config: MasterConfig
    _probed: dict[str, _Probed] = field(default_factory=dict)
    _removed: dict[str, float] = field(default_factory=dict)
    _asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.service.exchange.by_hand = self

    async def run(self) -> None:
        """Probe again and again, until cancelled. Who takes long to answer delays nobody else."""
        await self._asked.wait()
        from services.master.fleet.probe_client import ProbeClient

        for probed in self._probed.values():
            probed.asking = False
        async with ProbeClient(self.config.probe_timeout) as client, asyncio.TaskGroup() as probes:
            while True:
                for probed in self._probed.values():
                    if not probed.asking:
                        probed.asking = True
                        probes.create_task(self._probe(client, probed))
                await asyncio.sleep(self.config.probe_interval)

    def add(self, instance: ProbedInstance) -> None:
        """Probed from the next round on; adding it again changes nothing."""
        self._add(instance)
        self._removed.pop(instance.name, None)
        self.service.exchange.tell(Added(instance.name, msgspec.json.encode(instance), True))

    def _add(self, instance: ProbedInstance) -> None:
        check_url(instance.url)
        if len(self._probed) >= self.config.max_instances:
            raise Unavailable("the master takes no more instances")
        for name, known in self._probed.items():
            same_url = known.instance.url.rstrip("/") == instance.url.rstrip("/")
            if same_url and name != instance.name:
                raise InvalidRequest(
                    f"{instance.url} is there already, as {known.instance.role}",
                    param="url",
                    code="duplicate_instance",
                )
        self._probed.setdefault(instance.name, _Probed(instance, time.monotonic()))
        self._asked.set()

    def remove(self, instance: ProbedInstance) -> bool:
        """Forget at once; False if it was not there."""
        found = instance.name in self._probed
        if found:
            self.forget(instance.name)
            self.service.exchange.tell(Removed(instance.name))
        return found

    def _was_removed(self, name: str) -> bool:
        """Lately: a master that was cut off then may still take it to be there."""
        removed = self._removed.get(name)
        return removed is not None and time.monotonic() - removed < self.config.probe_forget

    def bodies(self) -> dict[str, bytes]:
        """What other masters may not have heard, by name: those that answer, or are new."""
        known = self._probed.items()
        return {n: msgspec.json.encode(one.instance) for n, one in known if not one.failures}

    def learn(self, body: bytes, *, fresh: bool) -> None:
        """Another master was told of a worker: at this moment, or some time ago."""
        instance = decode_probed(body)
        if fresh:
            self._removed.pop(instance.name, None)
        if self._was_removed(instance.name):
            self.service.exchange.tell(Removed(instance.name))
        else:
            self._add(instance)

    def forget(self, name: str) -> None:
        """It was removed, here or at another master."""
        self._removed.pop(name, None)
        self._removed[name] = time.monotonic()
        if len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        found = self._probed.pop(name, None)
        if found is not None:
            self._deregister(found)

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

    async def _probe(self, client: ProbeClient, probed: _Probed) -> None:
        url = probed.instance.url.rstrip("/")
        try:
            await client.health(url, suspect=probed.failures > 0)
            if not probed.model:
                probed.learned = await client.model_of(url)
            self._alive(probed)
        except TriptychError as error:
            self._failed(probed, error.message)
        finally:
            probed.asking = False

    def _alive(self, probed: _Probed) -> None:
        """Register it, or renew its lease; one that registers itself speaks for itself."""
        if self._probed.get(probed.instance.name) is not probed:
            return
        now, info = time.monotonic(), probed.instance.info(probed.model)
        known = self.service.master.registry.at(info.url)
        if known is None or known.info.instance_id == info.instance_id:
            self.service.adopt(info, self._lease_s)
        probed.up, probed.failures, probed.seen, probed.error = True, 0, now, ""

    @property
    def _lease_s(self) -> float:
        """A worker is taken out by its failed probes; the lease is for a prober that is stuck."""
        rounds = self.config.probe_failures + 2
        return rounds * (self.config.probe_interval + self.config.probe_timeout)

    def _failed(self, probed: _Probed, error: str) -> None:
        probed.failures += 1
        probed.error = error
        probed.learned = ""
        if probed.up and probed.failures >= self.config.probe_failures:
            probed.up = False
            self._deregister(probed)
        if time.monotonic() - probed.seen > self.config.probe_forget:
            self._probed.pop(probed.instance.name, None)

    def _deregister(self, probed: _Probed) -> None:
        self.service.disown(InstanceName(probed.instance.name))
