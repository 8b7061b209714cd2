"""Workers that cannot register: added by hand, kept by probes. vLLM's registration contract."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Annotated, Literal

import aiohttp
import msgspec
from msgspec import Meta

from protocol.errors import InvalidRequest, TriptychError, Unavailable
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo, InstanceName, InstanceRole, Url
from services.master.config import MasterConfig
from services.master.service import MasterService


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

    def info(self) -> InstanceInfo:
        role: InstanceRole = self.role
        return InstanceInfo(
            self.name, role, self.url.rstrip("/"), self.model, revision=self.revision,
            dialect="openai", block_size=self.block_size, events=self.events, foreign=True,
        )  # fmt: skip


@dataclass(eq=False)
class _Probed:
    """A worker with what its probes said. Times are seconds of the monotonic clock."""

    instance: ProbedInstance
    seen: float
    failures: int = 0
    up: bool = False
    error: str = ""


@dataclass
class Prober:
    """Probes every added worker; registers it while it answers, forgets it when it is long gone."""

    service: MasterService
    config: MasterConfig
    _probed: dict[str, _Probed] = field(default_factory=dict)

    async def run(self) -> None:
        """Probe again and again, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self.config.probe_timeout)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                probed = list(self._probed.values())
                await asyncio.gather(*(self._probe(session, one) for one in probed))
                await asyncio.sleep(self.config.probe_interval)

    def add(self, instance: ProbedInstance) -> None:
        """Probed from the next round on; adding it again changes nothing."""
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

    def remove(self, instance: ProbedInstance) -> bool:
        """Forget at once; False if it was not there."""
        found = self._probed.pop(instance.name, None)
        if found is not None:
            self._deregister(found)
        return found is not None

    def list(self) -> list[dict[str, object]]:
        return [
            {
                **msgspec.to_builtins(probed.instance),
                "healthy": probed.up,
                "failures": probed.failures,
                "error": probed.error,
            }
            for probed in self._probed.values()
        ]

    async def _probe(self, session: aiohttp.ClientSession, probed: _Probed) -> None:
        url = probed.instance.url.rstrip("/")
        try:
            async with session.get(f"{url}/health") as response:
                response.raise_for_status()
            if not probed.instance.model:
                probed.instance.model = await _model_of(session, url)
            self._alive(probed)
        except (aiohttp.ClientError, TimeoutError, TriptychError) as error:
            self._failed(probed, str(error) or type(error).__name__)

    def _alive(self, probed: _Probed) -> None:
        if self._probed.get(probed.instance.name) is not probed:
            return
        now, lease = time.monotonic(), self._lease_s
        known = self.service.master.registry.touch(probed.instance.name, now * 1e3, lease)
        if not (probed.up and known):
            self.service.register(probed.instance.info(), lease)
        probed.up, probed.failures, probed.seen, probed.error = True, 0, now, ""

    @property
    def _lease_s(self) -> float:
        """A worker is taken out by its failed probes; the lease is for a prober that is stuck."""
        rounds = self.config.probe_failures + 2
        return rounds * (self.config.probe_interval + self.config.probe_timeout)

    def _failed(self, probed: _Probed, error: str) -> None:
        probed.failures += 1
        probed.error = error
        if probed.up and probed.failures >= self.config.probe_failures:
            probed.up = False
            self._deregister(probed)
        if time.monotonic() - probed.seen > self.config.probe_forget:
            self._probed.pop(probed.instance.name, None)

    def _deregister(self, probed: _Probed) -> None:
        self.service.deregister(InstanceName(probed.instance.name))


async def _model_of(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        response.raise_for_status()
        body = await response.read()
    try:
        return str(msgspec.json.decode(body)["data"][0]["id"])
    except (msgspec.DecodeError, LookupError, TypeError):
        raise InvalidRequest(f"{url}/v1/models names no model") from None
