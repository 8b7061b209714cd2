"""A stack restarted one process at a time, while the others serve.

A worker takes no more requests, finishes those it has, ends, starts, and is back with the master
and the proxy before the next one's turn. The proxy's successor listens on the same socket before
the proxy ends, so that no client finds the port closed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.launch.membership import Membership, call
from triptych.launch.plan import Service
from triptych.launch.processes import LaunchError, Processes

ORDER = ("encode", "prefill", "decode", "any", "master", "proxy")


@dataclass(frozen=True)
class Stack:
    """What runs. `membership`: how workers leave the fleet and come back; `stop_s`: what a process
    may take to end, `start_s`: to be up."""

    workers: Sequence[Service]  # workers of all roles
    master: Service | None  # None where there is none
    proxy: Service  # the proxy before them
    membership: Membership
    stop_s: float
    start_s: float

    def of(self, role: str) -> list[Service]:
        if role == "proxy":
            return [self.proxy]
        if role == "master":
            return [self.master] if self.master else []
        return [service for service in self.workers if service.name.rpartition("-")[0] == role]


class RollingRestart:
    """Of one stack. `say` gets a line for each step."""

    def __init__(
        self, stack: Stack, processes: Processes, patience_s: float, say: Callable[[str], None]
    ) -> None:
        """`patience_s`: what a worker's requests may take to end before it is told to stop, which
        gives them the stack's --shutdown-timeout more."""
        self._stack, self._processes = stack, processes
        self._patience_s, self._say = patience_s, say

    def run(self, roles: Sequence[str]) -> None:
        """`LaunchError` if a process does not come back; those after it stay as they are."""
        services = [service for role in roles for service in self._stack.of(role)]
        # What could not be used before the restart is not waited for after it.
        before = self._known()
        for role in roles:
            if len(self._stack.of(role)) == 1 and role not in ("master", "proxy"):
                self._say(f"there is one {role} worker: requests wait while it is restarted")
        for number, service in enumerate(services, 1):
            began = time.monotonic()
            self._one(service, before)
            took = time.monotonic() - began
            self._say(f"{service.name} is restarted ({number} of {len(services)}, {took:.1f} s)")

    def _one(self, service: Service, before: Mapping[str, int]) -> None:
        stack = self._stack
        if service is stack.proxy:
            self._processes.replace(service, stack.start_s, stack.stop_s)
            return
        if service is not stack.master:
            self._drain(service)
        # A master that starts anew may know none of the workers that were listed with it.
        returning = stack.workers if service is stack.master else [service]
        try:
            self._processes.restart(service, stack.start_s, stack.stop_s)
        except LaunchError:
            with contextlib.suppress(LaunchError):  # it may come back later
                stack.membership.back(returning)
            raise
        stack.membership.back(returning)
        self._processes.wait_until(
            lambda: self._complete(before),
            stack.start_s,
            f"{service.name} runs again, but the master and the proxy do not use it",
        )

    def _drain(self, service: Service) -> None:
        """Until the worker has finished what it had. One that cannot be asked, for it has ended or
        another key opens it, is told to stop at once, and drains by itself then."""
        membership, deadline = self._stack.membership, time.monotonic() + self._patience_s
        if refusal := membership.leave(service):
            self._say(refusal)
            return
        while membership.load(service) > 0 and time.monotonic() < deadline:
            self._processes.pause()

    def _complete(self, before: Mapping[str, int]) -> bool:
        known = self._known()
        return all(known.get(name, 0) >= count for name, count in before.items())

    def _known(self) -> dict[str, int]:
        """How many workers the proxy and the master can use. A proxy that shows its health to those
        alone who have a key says nothing: its master does."""
        proxy = _health(self._stack.proxy.url)
        stages = [workers for workers in proxy.values() if isinstance(workers, dict)]
        known = {"proxy": sum(state == "up" for each in stages for state in each.values())}
        if self._stack.master is not None:
            models = _health(self._stack.master.url).get("models", {})
            known["master"] = sum(count for kinds in models.values() for count in kinds.values())
        return known


def _health(url: str) -> dict[str, Any]:
    """What a proxy or master says of its workers; nothing if it does not answer."""
    try:
        told = json.loads(call(f"{url}/health", {}))
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
