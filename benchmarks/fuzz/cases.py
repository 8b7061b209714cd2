"""The requests of a run: each is drawn from the seed and its own number alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fuzz.samples import QUERIES, RPC, SAMPLES
from benchmarks.fuzz.values import FORM_TYPE, Form, as_form, as_json, as_msgpack, damaged, mutated
from benchmarks.fuzz.wire import PATIENCE, Wire, mangled
from protocol.generate import ENCODE_PATH, MSGPACK
from protocol.registry import DRAIN_PATH

_BODIED_WEIGHT = 6
_MASTER = "master"


@dataclass(frozen=True)
class Target:
    """A process that is attacked. `routes`: (path, method) of its tables; `headers`: its keys."""

    name: str
    host: str
    port: int
    routes: Sequence[tuple[str, str]]
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One connection's bytes. `cut`: they end in the middle of a request. `mangled`: the head is no
    head of good faith, so that it may be left without an answer. `told`: what was done to it."""

    number: int  # of the case, from 0: with the seed it makes the same bytes again
    target: Target  # route that it is sent to
    sent: bytes  # bytes of the connection
    cut: bool
    mangled: bool
    told: str


def case(seed: int, number: int, targets: Sequence[Target]) -> Case:
    """The same for the same arguments."""
    chance = random.Random(f"{seed}:{number}")
    target = chance.choice(targets)
    path, method = _route(target, chance)
    body, kind, told = _body(path, method, chance)
    wire = Wire(method.encode(), _filled(path).encode(), body, _fields(target, kind), told=told)
    if path in QUERIES:
        wire.target += b"?" + QUERIES[path].encode()
    changes = chance.choice((0, 0, 0, 1, 1, 2)) if body else chance.choice((1, 1, 2))
    for _ in range(changes):
        mangled(wire, chance)
    sent = wire.encoded()
    if chance.random() < 0.02:
        sent, wire.cut = sent[: chance.randrange(len(sent))], True
        wire.told.append("cut off")
    elif chance.random() < 0.03:
        sent += sent  # pipelined
        wire.told.append("twice")
    name = f"{target.name} {method} {path}: {'; '.join(wire.told)}"
    return Case(number, target, sent, wire.cut, changes > 0, name)


def _route(target: Target, chance: random.Random) -> tuple[str, str]:
    weights = [
        _BODIED_WEIGHT * len(SAMPLES.get(path, ())) ** 0.5 or 1.0 if method != "GET" else 1.0
        for path, method in target.routes
    ]
    path, method = chance.choices(target.routes, weights)[0]
    drains = path == DRAIN_PATH and target.name != _MASTER
    return path, "GET" if drains else method  # a worker that is told to drain does


def _filled(path: str) -> str:
    """A path with something for its parameters."""
    return path.partition("{")[0] + "x" if "{" in path else path


def _body(path: str, method: str, chance: random.Random) -> tuple[bytes, str, list[str]]:
    """(bytes, content type, what was done)"""
    samples = SAMPLES.get(path)
    if samples is None or method == "GET":
        return b"", "application/json", []
    number = chance.randrange(len(samples))
    value: Any = samples[number]
    form = isinstance(value, Form)
    value = value.fields if form else value
    changes = chance.choice((0, 1, 1, 1, 2, 3))
    for _ in range(changes):
        value = mutated(value, chance) if isinstance(value, dict | list) else value
    data, kind = _encoded(value, form, path, chance)
    told = [f"sample {number}, {changes} values changed"]
    if chance.random() < 0.15:
        data = damaged(data, chance)
        told.append("damaged")
    return data, kind, told


def _encoded(value: Any, form: bool, path: str, chance: random.Random) -> tuple[bytes, str]:
    """(bytes, content type)"""
    if form and isinstance(value, dict):
        return as_form(value), FORM_TYPE
    if path == ENCODE_PATH or (path in RPC and chance.random() < 0.3):
        return as_msgpack(value), MSGPACK
    return as_json(value), "application/json"


def _fields(target: Target, kind: str) -> list[tuple[bytes, bytes]]:
    own = [(name.encode(), value.encode()) for name, value in target.headers.items()]
    return [
        (b"host", f"{target.host}:{target.port}".encode()), (b"connection", b"close"),
        (b"content-type", kind.encode()), (b"x-request-timeout", PATIENCE), *own,
    ]  # fmt: skip
