"""The workers this proxy knows, and who of them may be asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from blake3 import blake3

from protocol.refs import fits
from protocol.types import Role
from proxy.fleet.circuit_breaker import Breaker
from proxy.fleet.own_model import OwnModels, models_of
from proxy.fleet.refusals import NoWorker, Unreadable, WrongTokenizer
from proxy.fleet.rendered_models import RenderedModels
from proxy.fleet.served_models import ServedModels
from proxy.fleet.worker import Dialect, Instance
from proxy.fleet.worker_lists import WorkerLists
from proxy.worker_urls import split_urls

Relayed = Literal["none", "media", "all"]
Some = Sequence[Instance]
_COMPUTING: tuple[Role, Role] = ("prefill", "decode")


@dataclass
class Fleet(WorkerLists):
    """Its lists are kept true to the facts by `proxy.fleet.probing` or a master.

    `breaker`: makes the circuit breaker of a worker that is added.
    `relayed`: which requests could meet a worker that speaks only the `openai` dialect.
    `forced`: the dialect of all workers, by --dialect; None: each is asked.
    `watched`: a master says who is up, and only workers in doubt are probed.
    `own`: what this proxy was told they serve. `models`: what they serve, as they or a master tell.
    `unserved`: models of a master's workers that are none of this proxy's; where that has one model
    alone, only while no worker serves it. `misfits`: how many workers read other tokens than it
    renders.
    `resumers`: how many decode workers could resume a stream that another one has begun.
    `pushed_to`: whether there are workers that encoders push embeddings to.
    `_leaving` are removed, but may have calls. `_doubtful` are to be probed at once.
    """

    breaker: Callable[[], Breaker] = Breaker
    relayed: Relayed = "none"
    forced: Dialect | None = None
    watched: bool = False
    resumers: int = 0
    pushed_to: bool = False
    own: OwnModels = field(default_factory=OwnModels)
    models: ServedModels = field(init=False)
    unserved: tuple[str, ...] = ()
    misfits: int = 0
    _leaving: list[Instance] = field(default_factory=list)
    _doubtful: list[Instance] = field(default_factory=list)
    _in_doubt: asyncio.Event = field(default_factory=asyncio.Event)
    _observers: list[Callable[[], None]] = field(default_factory=list)
    _turns: Counter[Role] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        names = [one.names for one in self.own.all]
        self.models = RenderedModels(names) if self.own.several else ServedModels()

    @staticmethod
    def from_urls(
        encode: str,
        prefill: str,
        decode: str,
        breaker: Callable[[], Breaker] = Breaker,
        own: OwnModels | None = None,
    ) -> Fleet:
        """From the comma-separated flags; `ConfigError` if a list is not one of URLs."""
        fleet = Fleet(breaker=breaker, own=own or OwnModels())
        lists: tuple[tuple[Role, str], ...] = (
            ("encode", encode),
            ("prefill", prefill),
            ("decode", decode),
        )
        for role, urls in lists:
            for url in split_urls(f"--{role}-servers-urls", urls)[0]:
                fleet.add(url, role).listed = True
        return fleet

    def add(self, url: str, role: Role) -> Instance:
        """A worker that may be asked from here on."""
        instance = Instance(url, role, self.breaker())
        instance.dialect = self.forced
        self.of(role).append(instance)
        return instance

    def remove(self, instance: Instance) -> None:
        """It gets no more requests; what it was asked goes on, as long as it is not silent."""
        if instance in self.of(instance.role):
            self.of(instance.role).remove(instance)
            self._leaving.append(instance)
        instance.removed, instance.up = True, False

    def to_probe(self) -> Iterable[Instance]:
        """Workers that no master knows, that have not said all of themselves, or that leave."""
        self._leaving = [i for i in self._leaving if i.in_flight]
        if not self.watched:
            return [*self.all(), *self._leaving]
        return [*(i for i in self.all() if i.doubtful), *self._leaving]

    def quiet(self) -> list[Instance]:
        """Workers that a master knows, and whose calls here have said nothing for a while: a master
        notices only after a lease that they cannot be reached."""
        now = time.monotonic()
        known = (i for i in self.all() if self.watched and i.known_to_master)
        return [i for i in known if i.up and i.quiet(now)]

    def doubt(self, instance: Instance) -> None:
        """It is to be probed at once."""
        if instance not in self._doubtful:
            self._doubtful.append(instance)
        self._in_doubt.set()

    def force_dialect(self, dialect: str) -> None:
        """`tokens` and `openai` hold for all workers; with any other word they are asked."""
        if dialect in ("tokens", "openai"):
            self.forced = "openai" if dialect == "openai" else "tokens"
            for instance in self.all():
                instance.dialect = self.forced
        self.news()

    def news(self) -> None:
        """Workers have come, gone or changed: what follows from that."""
        self._choose_relayed()
        for instance in self.all():
            self.judge(instance)
        self.misfits = sum(instance.misfit for instance in self.all())
        self.models.look(self.all())
        self.resumers = sum(i.resumes and i.up and not i.draining for i in self.decode)
        self.pushed_to = any(i.ec_zmq_addrs for i in (*self.prefill, *self.decode))
        for observe in self._observers:
            observe()

    def judge(self, instance: Instance) -> None:
        """Which of this proxy's models it serves, and whether it reads what is rendered for that:
        to be called once it has said what it is. Where all requests are relayed, workers render
        them."""
        names = instance.models - instance.adapters.keys()
        instance.rendered = self.models.named(instance.model, names)
        own = self.own.of(instance.rendered)
        instance.misfit = self.relayed != "all" and own.misreads(instance)

    def subscribe(self, observe: Callable[[], None]) -> None:
        """Have `observe` called whenever workers may have come, gone or changed."""
        self._observers.append(observe)

    def lose(self, instance: Instance, cause: str) -> None:
        """A call has found that the worker takes no requests: it gets none until a probe, which is
        made at once, finds it well."""
        instance.up, instance.suspect = False, True
        instance.cause = cause
        self.doubt(instance)
        self.news()

    async def doubtful(self, timeout_s: float) -> list[Instance]:
        """Workers in doubt since this was asked last, awaited for so long; none if none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._in_doubt.wait()
        self._in_doubt.clear()
        found, self._doubtful = self._doubtful, []
        return found

    def _choose_relayed(self) -> None:
        """Requests that could meet a worker which speaks only `openai` are relayed: all if one
        prefills or decodes, those with media if only encoders are such."""
        if self.forced == "openai" or any(
            i.dialect == "openai" for i in (*self.prefill, *self.decode)
        ):
            self.relayed = "all"
        elif any(i.dialect == "openai" for i in self.encode):
            self.relayed = "media"
        else:
            self.relayed = "none"

    def usable(
        self, role: Role, avoid: Some = (), model: str | None = None, reader: str = ""
    ) -> list[Instance]:
        """Workers of a role that may be asked. Those to `avoid` are left out while another worker
        can do the work, then suspects are. `model`: the name that a request gives, None for any.
        `reader`: the EC compatibility of the worker that is to read their embeddings."""
        now = time.monotonic()
        able = [instance for instance in self.of(role) if instance.usable(now)]
        if model is not None:
            able = self.models.serving(able, model)
        if reader:
            able = [instance for instance in able if fits(instance.ec_compatibility, reader)]
        if avoid:
            able = [instance for instance in able if instance not in avoid] or able
        return [instance for instance in able if not instance.suspect] or able

    def choose(self, role: Role, avoid: Some = (), model: str | None = None) -> Instance:
        """The usable worker with the fewest calls of ours, in turn if several have; or
        `NoWorker`."""
        workers = self.of(role)
        if len(workers) == 1 and not self.models.several:
            (only,) = workers
            if only.up and not (only.draining or only.misfit) and only.breaker.closed:
                return only
        able = self.usable(role, avoid, model)
        if not able:
            raise self.no_worker(role, model)
        return self.lightest(able)

    def lightest(self, able: Sequence[Instance]) -> Instance:
        """Of these, which are some, the one with the fewest calls of ours, in turn if several
        have. Each role has turns of its own: as a request takes one of each, turns in common would
        give the same worker of a pair to every request."""
        role = able[0].role
        start = self._turns[role] % len(able)
        self._turns[role] += 1
        return min((*able[start:], *able[:start]), key=attrgetter("in_flight"))

    def replaceable(self, instance: Instance) -> bool:
        """Whether a worker that answers in time could take this one's work."""
        computing = instance.role != "encode" and self.relayed != "all"
        peers = [*self.prefill, *self.decode] if computing else self.of(instance.role)
        now = time.monotonic()
        others = (
            peer
            for peer in peers
            if peer is not instance and not peer.late_probes and peer.rendered == instance.rendered
        )
        return any(peer.usable(now) for peer in others)

    def by_content(
        self, mm_hash: str, avoid: Some = (), model: str | None = None, reader: str = ""
    ) -> Instance:
        """The encoder that this item goes to as long as it is usable (rendezvous hashing), so that
        a repeated picture meets its cache. Without an encoder, one that could become one. `model`,
        `reader`: as of `usable`."""
        able = self.usable("encode", avoid, model, reader)
        if not able and reader and self.usable("encode", (), model):
            raise Unreadable
        if not able:
            computing = (self.usable(role, avoid, model) for role in _COMPUTING)
            able = [one for some in computing for one in some if one.changes_role]
        if not able:
            raise self.no_worker("encode", model)
        return rendezvous(able, mm_hash)

    def able(self, pictures: bool, model: str | None = None) -> bool:
        """Whether a request could be placed; `pictures`: also one with any, if they are encoded
        apart. Without relaying, prefill and decode workers stand in for each other. `model`: as of
        `usable`."""
        decode = bool(self.usable("decode", (), model))
        prefill = bool(self.usable("prefill", (), model))
        relays = self.relayed == "all"
        computed = decode and (prefill or not self.prefill) if relays else decode or prefill
        return computed and (not pictures or self._encodes(model))

    def _encodes(self, model: str | None) -> bool:
        """Whether pictures can be encoded, apart or by the workers that compute."""
        known = self.encode if model is None else self.models.serving(self.encode, model)
        return not known or bool(self.usable("encode", (), model))

    def no_worker(self, role: Role, model: str | None = None) -> NoWorker:
        """Why no worker of a role can be asked, and when to ask again. `model`: as of `usable`."""
        meant = self.models.meant(model)
        misfits = [one for one in self.computing(meant) if one.misfit and one.up]
        if misfits and role != "encode":
            own = self.own.of(misfits[0].rendered)
            return WrongTokenizer(own.refusal(misfits), retry_after_s=1.0)
        if others := self._others(meant):
            return NoWorker(self.own.of(meant).unserved(others), retry_after_s=1.0)
        now = time.monotonic()
        waits = [i.breaker.wait_s(now) for i in self.of(role) if i.up and not i.draining]
        why = f"no {role} worker is up"
        if self.models.rendered and model:
            why = f"no {role} worker that serves '{model}' is up"
        elif model in self.models.adapters and self.usable(role):
            other = "prefill" if role == "decode" else "decode"
            why = f"no {role} worker has adapter '{model}' in the files that {other} workers have"
        return NoWorker(why, retry_after_s=min(waits, default=1.0))

    def _others(self, meant: str) -> Sequence[str]:
        """Models that workers serve, where none serves the one that a request means."""
        if not self.own.several:
            return self.unserved
        if not meant or any(one.rendered == meant for one in self.all()):
            return ()
        return self.unserved or models_of(one for one in self.all() if not one.rendered)


def rendezvous(instances: Sequence[Instance], key: str) -> Instance:
    """The same one for the same key, as long as it is among them. Source: Thaler and Ravishankar,
    highest random weight."""
    return max(instances, key=lambda i: blake3(f"{i.url} {key}".encode()).digest())
