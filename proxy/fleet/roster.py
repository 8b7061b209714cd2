"""The workers that this proxy knows, by the stage that they serve: who comes, goes and changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from protocol.types import Role
from proxy.fleet.own_model import OwnModels
from proxy.fleet.served_models import RenderedModels, ServedModels
from proxy.fleet.worker import Breaker, Dialect, Instance

Relayed = Literal["none", "media", "all"]


@dataclass
class Roster:
    """Its lists are kept true to the facts by `proxy.fleet.probing` or a master."""

    encode: list[Instance] = field(default_factory=list)  # workers that serve this stage
    prefill: list[Instance] = field(default_factory=list)  # likewise
    decode: list[Instance] = field(default_factory=list)  # likewise, and workers of all stages
    by_role: dict[Role, list[Instance]] = field(init=False)  # the same lists
    breaker: Callable[[], Breaker] = Breaker  # makes the circuit breaker of a worker that is added
    relayed: Relayed = "none"  # requests that could meet a worker which speaks only `openai`
    forced: Dialect | None = None  # of all workers, by --dialect; None: each is asked
    watched: bool = False  # a master says who is up, and only workers in doubt are probed
    resumers: int = 0  # decode workers that could resume a stream that another one has begun
    pushed_to: bool = False  # there are workers that encoders push embeddings to
    own: OwnModels = field(default_factory=OwnModels)  # what this proxy was told they serve
    models: ServedModels = field(init=False)  # what they serve, as they or a master tell
    # Models of a master's workers that are none of this proxy's; where that has one model alone,
    # only while no worker serves it.
    unserved: tuple[str, ...] = ()
    # Roles that have had workers, unless the last one left on purpose.
    roles: set[Role] = field(default_factory=set)
    misfits: int = 0  # workers that read other tokens than this proxy renders
    _leaving: list[Instance] = field(default_factory=list)  # removed, but may have calls
    _doubtful: list[Instance] = field(default_factory=list)  # to be probed at once
    _in_doubt: asyncio.Event = field(default_factory=asyncio.Event)  # there are some of these
    _observers: list[Callable[[], None]] = field(default_factory=list)  # told by `news`

    def __post_init__(self) -> None:
        other = dict.fromkeys(get_args(Role), self.decode)
        self.by_role = {**other, "encode": self.encode, "prefill": self.prefill}
        names = [one.names for one in self.own.all]
        self.models = RenderedModels(names) if self.own.several else ServedModels()

    def all(self) -> list[Instance]:
        return [*self.encode, *self.prefill, *self.decode]

    def asked(self) -> list[Instance]:
        """All, and those that leave while calls wait there: what ends those calls needs them."""
        return [*self.all(), *(one for one in self._leaving if one.in_flight)]

    def computing(self, rendered: str = "") -> list[Instance]:
        """Those that prefill or decode. `rendered`: for the model of this first name alone, of
        several that the proxy renders for."""
        return [
            one for one in (*self.prefill, *self.decode) if not rendered or one.rendered == rendered
        ]

    def find(self, role: Role, url: str) -> Instance | None:
        return next((i for i in self.by_role[role] if i.url == url), None)

    def move(self, instance: Instance, role: Role) -> None:
        """A worker serves another role from here on; its calls go on."""
        if instance in self.by_role[instance.role]:
            self.by_role[instance.role].remove(instance)
            self.by_role[role].append(instance)
            self.roles.add(role)
        instance.role = role

    def add(self, url: str, role: Role) -> Instance:
        """A worker that may be asked from here on."""
        instance = Instance(url, role, self.breaker())
        instance.dialect = self.forced
        self.by_role[role].append(instance)
        self.roles.add(role)
        return instance

    def remove(self, instance: Instance, *, given_up: bool = False) -> None:
        """It gets no more requests; what it was asked goes on, as long as it is not silent.
        `given_up`: on purpose, so that a role of which it was the last is not missed."""
        if instance in self.by_role[instance.role]:
            self.by_role[instance.role].remove(instance)
            self._leaving.append(instance)
        instance.removed, instance.up = True, False
        if given_up:
            self._give_up_roles(instance)

    def _give_up_roles(self, instance: Instance) -> None:
        """Those that no worker serves any more now that this one has left."""
        roles = {instance.role}
        if instance.changes_role:
            # What a worker of the role any could have been moved to, the other ones could be too.
            others = any(one.changes_role for one in self.all())
            roles = set() if others else set(get_args(Role))
        self.roles -= {role for role in roles if not self.by_role[role]}

    def to_probe(self) -> Iterable[Instance]:
        """Workers that no master knows, that have not said all of themselves, or that leave."""
        # Kept no longer than calls wait there: only to give those up is it still probed.
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

    def doubt_neighbours(self, instance: Instance) -> None:
        """Probe the workers that share the host of one that is cut off: they may be cut off too,
        and a request would wait for each of them."""
        host = urlsplit(instance.url).hostname
        for other in self.all():
            if other is not instance and other.up and urlsplit(other.url).hostname == host:
                self.doubt(other)

    def force_dialect(self, dialect: str) -> None:
        """`tokens` and `openai` hold for all workers; with any other word they are asked."""
        if dialect in ("tokens", "openai"):
            self.forced = "openai" if dialect == "openai" else "tokens"
            for instance in self.all():
                instance.dialect = self.forced
        self.news()

    def news(self) -> None:
        """Workers have come, gone or changed: what follows from that."""
        # Before `judge`, which goes by `relayed`.
        self._choose_relayed()
        for instance in self.all():
            self.judge(instance)
        self.misfits = sum(instance.misfit for instance in self.all())
        # `look` goes by what `judge` has found, and that by `relayed`.
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
        # Both in one step of the loop: a worker that comes into doubt later sets the event again.
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
