"""The connection pools to all workers of a fleet."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from protocol.fleet_key import NO_KEY, FleetKey
from proxy.fleet.worker import Instance
from proxy.upstream.connection_pool import ConnectionPool, Traffic


class ConnectionPools:
    """Owns one pool for each URL that was asked; `close` closes them. `urls` are those of the
    fleet, and of workers that leave it with calls under way: others are forgotten when a new one
    comes. All count what they send in `traffic`."""

    def __init__(
        self,
        urls: Callable[[], Iterable[str]],
        connect_timeout_s: float,
        encode_at_once: int,
        traffic: Traffic,
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._key, self._tls = key, tls
        self._urls = urls
        self._connect_timeout_s = connect_timeout_s
        self._encode_at_once = encode_at_once
        self._traffic = traffic
        self._pools: dict[str, ConnectionPool] = {}

    def give_up(self, instances: Iterable[Instance]) -> None:
        """End the calls at those of `instances` that have been silent for too long."""
        for instance in instances:
            if instance.lost and instance.url in self._pools:
                self._pools[instance.url].give_up()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def of(self, instance: Instance) -> ConnectionPool:
        """The pool of a worker."""
        pool = self._pools.get(instance.url)
        if pool is None:
            self._prune()
            pool = ConnectionPool(
                instance.url,
                self._connect_timeout_s,
                self._encode_at_once,
                self._traffic,
                self._key,
                self._tls,
            )
            self._pools[instance.url] = pool
        return pool

    def _prune(self) -> None:
        for url in self._pools.keys() - set(self._urls()):
            self._pools.pop(url).close()
