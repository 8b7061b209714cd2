"""Who of the workers that this proxy knows may be asked, and why none may be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from blake3 import blake3

from protocol.errors import IncompatiblePeer, Unavailable
from protocol.types import Role
from proxy.fleet.own_model import OwnModels, models_of
from proxy.fleet.roster import Roster
from proxy.fleet.worker import Breaker, Instance
from proxy.worker_options import split_urls

Some = Sequence[Instance]
_COMPUTING: tuple[Role, Role] = ("prefill", "decode")
# Calls beyond twice those of the least busy encoder: waiting costs more than its cache spares.
_BUSIER = 4


class NoWorker(Unavailable):
    """No worker of a role can be asked."""

    code = "no_worker"


class WrongTokenizer(NoWorker):
    """The workers that are up would read another text than this proxy renders."""

    code = "wrong_tokenizer"


class Unreadable(NoWorker):
    """A request with media goes nowhere, though there are workers for each stage."""

    code = IncompatiblePeer.code

    def __init__(self) -> None:
        super().__init__(
            "no encode worker makes embeddings that a worker which is to read them can read: give "
            "all of them the same --model, --dtype and transport in --ec-transfer-config",
            retry_after_s=1.0,
        )


class WorkerUnknown(Unavailable):
    """A place was found, at a worker that has just come or gone: another one may do."""


@dataclass
class Fleet(Roster):
    """Chooses among the workers of its roster."""

    _turns: Counter[Role] = field(default_factory=Counter)  # choices made so far of each role

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

    def usable(
        self, role: Role, avoid: Some = (), model: str | None = None, reader: str = ""
    ) -> list[Instance]:
        """Workers of a role that may be asked. Those to `avoid` are left out while another worker
        can do the work, then suspects are. `model`: the name that a request gives, None for any.
        `reader`: the EC compatibility of the worker that is to read their embeddings."""
        now = time.monotonic()
        able = [instance for instance in self.by_role[role] if instance.usable(now)]
        if model is not None:
            able = self.models.serving(able, model)
        if reader:
            # One that does not say what its embeddings are like fits every reader.
            able = [instance for instance in able if instance.ec_compatibility in ("", reader)]
        # From here on a rule gives way where it leaves no worker. Those above never do: a worker of
        # another model cannot do the work at all.
        if avoid:
            able = [instance for instance in able if instance not in avoid] or able
        return [instance for instance in able if not instance.suspect] or able

    def choose(self, role: Role, avoid: Some = (), model: str | None = None) -> Instance:
        """The usable worker with the fewest calls of ours, in turn if several have; or
        `NoWorker`."""
        if (only := self._only(role)) is not None:
            return only
        able = self.usable(role, avoid, model)
        if not able:
            raise self.no_worker(role, model)
        return self.lightest(able)

    def any_usable(self, role: Role, model: str | None = None) -> bool:
        """Whether `choose` finds one."""
        return self._only(role) is not None or bool(self.usable(role, (), model))

    def _only(self, role: Role) -> Instance | None:
        """The worker of a role that has no other, if it may be asked: a small fleet has one, and no
        lists are made for each of its requests."""
        workers = self.by_role[role]
        if len(workers) == 1 and not self.models.several:
            (only,) = workers
            if only.up and not (only.draining or only.misfit) and only.breaker.closed:
                return only
        return None

    def lightest(self, able: Sequence[Instance]) -> Instance:
        """Of these, which are some, the one with the fewest calls of ours, in turn if several
        have."""
        # Each role has turns of its own: as a request takes one of each, turns in common would
        # give the same worker of a pair to every request.
        role = able[0].role
        start = self._turns[role] % len(able)
        self._turns[role] += 1
        return min((*able[start:], *able[:start]), key=attrgetter("in_flight"))

    def replaceable(self, instance: Instance) -> bool:
        """Whether a worker that answers in time could take this one's work."""
        encodes = instance.role == "encode"
        peers = self.encode if encodes else [*self.prefill, *self.decode]
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
        a repeated picture meets its cache, unless it is much busier than the others. Without an
        encoder, one that could become one. `model`, `reader`: as of `usable`."""
        able = self.usable("encode", avoid, model, reader)
        if not able and reader and self.usable("encode", (), model):
            raise Unreadable
        if not able:
            computing = (self.usable(role, avoid, model) for role in _COMPUTING)
            # The master moves such a worker to the role that is missing.
            able = [one for some in computing for one in some if one.changes_role]
        if not able:
            raise self.no_worker("encode", model)
        most = 2 * min(one.in_flight for one in able) + _BUSIER
        return rendezvous([one for one in able if one.in_flight <= most], mm_hash)

    def able(self, pictures: bool, model: str | None = None) -> bool:
        """Whether a request could be placed; `pictures`: also one with any, if they are encoded
        apart. Prefill and decode workers stand in for each other. `model`: as of `usable`."""
        computed = any(self.usable(role, (), model) for role in _COMPUTING)
        return computed and (not pictures or self._encodes(model))

    def unencoded(self, model: str | None = None) -> str:
        """Why requests with media are refused, "" if they are not. `model`: as of `usable`."""
        if self._encodes(model):
            return ""
        why = self.no_worker("encode", model).message
        return f"{why}: requests with pictures, clips or audio are refused"

    def _encodes(self, model: str | None) -> bool:
        """Whether pictures can be encoded, apart or by the workers that compute."""
        known = self.encode if model is None else self.models.serving(self.encode, model)
        if not known or self.usable("encode", (), model):
            return True
        computing = (self.usable(role, (), model) for role in _COMPUTING)
        return any(one.does_all or one.changes_role for some in computing for one in some)

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
        # A client is told to come back when the first open breaker lets a trial through.
        waits = [i.breaker.wait_s(now) for i in self.by_role[role] if i.up and not i.draining]
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
