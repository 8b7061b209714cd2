"""The fleet as the master sees it, followed without polling."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from urllib.parse import quote

from protocol.logs import worker_line
from protocol.refs import compatibility_of
from protocol.registry import WORKERS_PATH, InstanceInfo, InstanceRole, Workers, WorkerView
from protocol.types import Role
from proxy.fleet.fleet import Fleet
from proxy.fleet.served_models import RenderedModels
from proxy.fleet.worker import Instance, stage_of
from proxy.placement.master_client import MasterAway, MasterClient

logger = logging.getLogger(__name__)
_WAIT_S = 2.0  # for which the master may hold the call until there is news
_TIMEOUT_S = 6.0  # wait included; below the 7 s after which a master counts as away
_PAUSE_S = 0.25  # before a master that did not answer is asked again
_ORPHAN_S = 60.0  # for which a master that has just started may not have heard of a worker


class FleetWatcher:
    """`by_id` are the workers of the fleet that a master has named. While no master answers the
    fleet stays as it was, and the proxy probes its workers itself; so it does with those that a
    master which has just started has not heard of yet.

    `names` are those of the proxy's model, none if it takes any. `model` is the name by which the
    workers serve it: one of these, or, where no worker knows these but all serve one model, that
    one; then the proxy's names are aliases. Empty until a worker has come. Of a fleet with
    `RenderedModels`, these say which workers are the proxy's, and `names` are none.
    """

    def __init__(self, link: MasterClient, fleet: Fleet, names: Sequence[str] = ()) -> None:
        self._link = link
        self._fleet = fleet
        self._names = tuple(names)
        self._views: dict[str, WorkerView] = {}
        self._rendered = fleet.models if isinstance(fleet.models, RenderedModels) else None
        self.model = ""
        self._version = ""
        self._of = ""
        self._orphaned: dict[str, float] = {}
        self.by_id: dict[str, Instance] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not await self.once(_WAIT_S):
                await asyncio.sleep(_PAUSE_S)

    async def once(self, wait_s: float) -> bool:
        """Ask for news, or wait for them; whether a master has answered."""
        # Versions are each master's own: another one has to tell of all workers.
        if self._of != self._link.url:
            self._of, self._version = self._link.url, ""
        path = f"{WORKERS_PATH}?after={quote(self._version)}&wait_s={wait_s}"
        try:
            news = await self._link.get(path, Workers, _TIMEOUT_S)
        except MasterAway:
            self._fleet.watched = self._link.present
            if not self._fleet.watched:
                self._on_our_own()
            return False
        self._fleet.watched = True
        self._apply(news)
        # Only once they are applied: news that could not be are asked for again.
        self._version = news.version
        return True

    def _on_our_own(self) -> None:
        """No worker counts as known to a master, until one tells of all."""
        self._version = ""
        for instance in self.by_id.values():
            instance.known_to_master = False

    def _apply(self, news: Workers) -> None:
        now = time.monotonic()
        if news.full:
            for name in self.by_id.keys() - {view.info.instance_id for view in news.workers}:
                self.by_id[name].known_to_master = False
                # The first time counts: a master that tells of all again may still not name it.
                self._orphaned.setdefault(name, now)
        late = {name for name, since in self._orphaned.items() if now - since > _ORPHAN_S}
        gone = self.by_id.keys() & (late | set(news.gone))
        for name in gone:
            told = name in news.gone
            unnamed = f"no master has named it for {_ORPHAN_S:g} s"
            cause = "the master has forgotten it" if told else unnamed
            self._leave(name, cause, given_up=name in news.retired)
        # Workers of other models are in no list of this proxy's, and none waits for them.
        known = self.by_id.keys() if news.full else self._views.keys() - set(news.gone)
        self._views = {n: v for n, v in self._views.items() if n in known and n not in gone} | {
            view.info.instance_id: view for view in news.workers if _role(view.info.role)
        }
        chosen = self._choose_model()
        for view in [*self._views.values()] if chosen else news.workers:
            if self._is_ours(view.info):
                self._change(view)
            elif view.info.instance_id in self.by_id:
                self._leave(view.info.instance_id, "it serves another model")
        if gone or news.gone or news.workers:
            self._fleet.news()

    def _choose_model(self) -> bool:
        """Whether the workers' name of the model is another from here on."""
        if self._rendered is not None:
            infos = [view.info for view in self._views.values()]
            self._fleet.unserved = tuple(sorted({i.model for i in infos if not self._is_ours(i)}))
            return False
        served = {view.info.model for view in self._views.values()}
        chosen = next((name for name in self._names if name in served), "")
        if not chosen and len(served) == 1:
            (chosen,) = served
        self._fleet.unserved = () if chosen or not self._names else tuple(sorted(served))
        if chosen == self.model:
            return False
        self.model = chosen
        if self._names and chosen and chosen not in self._names:
            logger.info("all workers serve %s: %s is an alias of it", chosen, self._names[0])
        return True

    def _is_ours(self, info: InstanceInfo) -> bool:
        if _role(info.role) is None:
            return False
        if self._rendered is not None:
            return bool(self._rendered.named(info.model, info.aliases))
        return not self._names or info.model == self.model

    def asked_for(self, name: str) -> str:
        """The workers' name of the model that a request names."""
        if self._rendered is not None:
            return self._rendered.workers_name(name)
        return self.model or name if name in self._names else name

    def _leave(self, name: str, cause: str, *, given_up: bool = False) -> None:
        instance = self.by_id.pop(name)
        self._orphaned.pop(name, None)
        instance.left()
        # A worker that a flag names stays, and is probed by the proxy itself from here on.
        if not instance.listed:
            self._fleet.remove(instance, given_up=given_up)
        worker_line(logger, logging.INFO, "left", instance.role, instance.url, cause)

    def _change(self, view: WorkerView) -> None:
        info = view.info
        known = self.by_id.get(info.instance_id)
        if known is not None and not _same_process(known, info):
            self._leave(info.instance_id, "it restarted")
            known = None
        if known is None:
            known = self._join(info)
        self._serve(known, info)
        self._orphaned.pop(info.instance_id, None)
        known.draining, known.known_to_master = view.draining, True
        known.does_all = info.role == "pdfusion"
        known.kv_endpoint, known.ec_endpoint = info.kv_endpoint, info.ec_endpoint
        known.kv_compatibility = compatibility_of(info.kv_endpoint)
        known.ec_compatibility = info.ec_compatibility
        # A flag may have named them where the master knows none.
        known.ec_zmq_addrs = tuple(info.ec_zmq_addrs) or known.ec_zmq_addrs
        known.max_running, known.block_size = info.max_running, info.block_size
        known.model, known.revision, known.tokenizer = info.model, info.revision, info.tokenizer
        known.models = frozenset((info.model, *info.aliases, *info.adapters))
        known.aliases = frozenset(info.aliases)
        known.adapters = {name: info.adapter_revisions.get(name, "") for name in info.adapters}
        known.dialect = self._fleet.forced or info.dialect
        self._fleet.judge(known)

    def _serve(self, instance: Instance, info: InstanceInfo) -> None:
        """It is in the list of the role that it serves."""
        role, instance.changes_role = _role(info.role), bool(info.roles)
        if role is not None and role != instance.role:
            cause = f"it was {instance.role}: a master moved it"
            self._fleet.move(instance, role)
            worker_line(logger, logging.INFO, "moved", role, instance.url, cause)

    def _join(self, info: InstanceInfo) -> Instance:
        """A worker of the fleet from here on."""
        role, url = _role(info.role), _url(info)
        assert role is not None
        instance = self._fleet.find(role, url) or self._fleet.add(url, role)
        self._forget(instance)
        instance.instance_id, instance.generation = info.instance_id, info.generation
        instance.known = (self._fleet.forced or info.dialect) != "openai"  # may it resume streams?
        instance.answered()
        self.by_id[info.instance_id] = instance
        worker_line(logger, logging.INFO, "joined", role, url, "the master names it")
        return instance

    def _forget(self, instance: Instance) -> None:
        """The names that it had before it restarted: that they leave says nothing of it now."""
        for name in [name for name, known in self.by_id.items() if known is instance]:
            del self.by_id[name]
            self._orphaned.pop(name, None)


def _same_process(instance: Instance, info: InstanceInfo) -> bool:
    """A worker whose role is not to change is another one with another role."""
    if (instance.generation, instance.url) != (info.generation, _url(info)):
        return False
    return instance.changes_role or instance.role == _role(info.role)


def _url(info: InstanceInfo) -> str:
    return info.url.rstrip("/")


def _role(role: InstanceRole) -> Role | None:
    """The stage that a worker serves, if it serves any."""
    return None if role == "store" else stage_of(role)
