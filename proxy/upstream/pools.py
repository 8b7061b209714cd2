"""The connection pools to all workers of a fleet."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from protocol.fleet_key import NO_KEY, FleetKey
from proxy.fleet.worker import Instance
from proxy.upstream.connection_pool import ConnectionPool


class ConnectionPools:
    """Owns one pool for each URL that was asked; `close` closes them. `urls` are those of the
    fleet: others are forgotten when a new one comes."""

    def __init__(
        self,
        urls: Callable[[], Iterable[str]],
        connect_timeout_s: float,
        encode_at_once: int,
        key: FleetKey = NO_KEY,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._key, self._tls = key, tls
        self._urls = urls
        self._connect_timeout_s = connect_timeout_s
        self._encode_at_once = encode_at_once
        self._pools: dict[str, ConnectionPool] = {}
        self._sent_before = 0

    def give_up(self, instances: Iterable[Instance]) -> None:
        """End the calls at those of `instances` that have been silent for too long."""
        for instance in instances:
            if instance.lost and instance.url in self._pools:
                self._pools[instance.url].give_up()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    @property
    def sent(self) -> int:
        """Bytes of all bodies that were sent, to workers that have left too."""
        return self._sent_before + sum(pool.sent for pool in self._pools.values())

    def of(self, instance: Instance) -> ConnectionPool:
        """The pool of a worker."""
        pool = self._pools.get(instance.url)
        if pool is None:
            self._prune()
            pool = ConnectionPool(
                instance.url, self._connect_timeout_s, self._encode_at_once, self._key, self._tls
            )
            self._pools[instance.url] = pool
        return pool

    def _prune(self) -> None:
        for url in self._pools.keys() - set(self._urls()):
            pool = self._pools.pop(url)
            pool.close()
            self._sent_before += pool.sent
