"""What those who register workers may not claim: `InvalidRequest` that names the field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from protocol.addresses import hosts_in, is_plain_host, is_tcp, url_host
from protocol.encoder_cache import is_consumer_address
from protocol.errors import InvalidRequest
from protocol.kv_events import EventSource
from protocol.registry import InstanceInfo, Load

if TYPE_CHECKING:
    from services.master.fleet.instance import Instance

NAMES = ("aliases", "adapters", "adapter_revisions")
"""Fields of a worker that may change while it lives."""
_LARGEST = 1 << 20
_DEEPEST = 64
_STRANGE = re.compile(r"[\s@?#\\\x00-\x20\x7f]")


def check_url(url: str) -> None:
    """An address that a client can be given: with a host, a port that exists, and labels that the
    domain name system has; without what readers of URLs take for different things."""
    if strange := _STRANGE.search(url):
        raise _bad_url(url, f"{strange[0]!r} is no part of one")
    try:
        host = url_host(url)
    except ValueError as error:
        raise _bad_url(url, str(error)) from None
    if not host:
        raise _bad_url(url, "it has no host")


def _bad_url(url: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"url: '{url}' is not an address: {problem}", param="url", code="bad_url")


def check_events(sources: Iterable[EventSource]) -> None:
    """An endpoint of TCP names one host: ZMQ connects to the last that it finds in an address."""
    for source in sources:
        for address in (source.endpoint, source.replay):
            if address.startswith("tcp:") and not is_tcp(address):
                raise _no_address("events", f"'{address[:128]}' is not tcp://HOST:PORT")


def _check_endpoints(info: InstanceInfo) -> None:
    """Where others are sent to for KV and embeddings, and where encoders push these to."""
    ends = {"kv_endpoint": info.kv_endpoint, "ec_endpoint": info.ec_endpoint}
    for name, endpoint in ends.items():
        for field, host in hosts_in(endpoint):
            if not is_plain_host(host):
                raise _no_address(name, f"{field} must be a host, not {host!r:.128}")
    for address in info.ec_zmq_addrs:
        if not is_consumer_address(address):
            raise _no_address("ec_zmq_addrs", f"'{address[:128]}' is not tcp://HOST:PORT")


def _no_address(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {problem}", param=name, code="bad_address")


def check_load(load: Load) -> None:
    if load.free_blocks > load.total_blocks:
        raise _absurd("load.free_blocks exceeds load.total_blocks")
    if not all(map(math.isfinite, msgspec.structs.astuple(load.rates))):
        raise _absurd("load.rates must be finite numbers")


def _absurd(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="load", code="absurd_load")


def check_info(info: InstanceInfo) -> None:
    """It is told on to proxies and masters, as JSON and as msgpack: what either cannot write (a
    number of more than 64 bits, an extension type, a key that is no string) or what is very large
    is refused before it is told to another process."""
    check_load(info.load)
    check_url(info.url)
    check_events(info.events)
    _check_endpoints(info)
    if info.roles:
        _check_roles(info)
    # As a whole first, which is what is told on: fields are tried only to name one.
    problem = _unwritable(info)
    if problem is None:
        return
    for name in info.__struct_fields__:
        found = _unwritable(getattr(info, name))
        if found is not None:
            raise _unusable(name, found)
    raise _unusable("info", problem)


def _check_roles(info: InstanceInfo) -> None:
    among = ", ".join(info.roles)
    if info.stage is None:
        raise _unusable("role", f"{info.role} is none of its roles, {among}")
    if len(set(info.roles)) < len(info.roles):
        raise _unusable("roles", f"one is named twice: {among}")
    if info.dialect != "tokens":
        raise _unusable("roles", f"workers of the dialect {info.dialect} keep their role")


def check_newer(info: InstanceInfo, since: float, known: Iterable[Instance]) -> None:
    """One process answers at a URL. What is told of it, there `since` then (ms), may come late, or
    be repeated by a master that has not heard that the worker has restarted since."""
    for other in known:
        if other.info.url == info.url and other.since > since:
            raise InvalidRequest(
                "stale generation: the worker has restarted since this message was sent",
                code="stale_generation",
            )


def _unwritable(value: Any) -> str | None:
    """Why it cannot be told on, None if it can."""
    if _deeper(value, _DEEPEST):
        return f"nested deeper than {_DEEPEST} levels"
    try:
        written = (msgspec.json.encode(value), msgspec.msgpack.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return str(error)
    return None if max(map(len, written)) <= _LARGEST else f"more than {_LARGEST} bytes"


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects lie within each other more than `most` deep. How deep Python itself
    goes depends on its version, and those who are told may run another one."""
    level = [value]
    for _ in range(most + 1):
        level = [inner for each in level for inner in _within(each)]
    return bool(level)


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, msgspec.Struct):
        return [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _unusable(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {problem}", param=name, code="unusable_info")


def same_process(known: InstanceInfo, info: InstanceInfo) -> bool:
    """Whether only the load, what is in `NAMES` and, of a worker that may have several, the role
    differ."""
    told = {name: getattr(info, name) for name in NAMES}
    if info.role in known.roles:
        told["role"] = info.role
    return msgspec.structs.replace(known, load=info.load, **told) == info
