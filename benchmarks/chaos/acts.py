"""What is done to the parts of a stack, one act after the other: kill, drain, stall, spoil."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.soak.interposer import MODES, Interposer
from benchmarks.soak.load import Outcome
from benchmarks.soak.stack import Service, Stack

CLIENTS = 4
SEED = 11
TOKENS = 120
VERSIONS = ("torch", "transformers", "nixl", "ucxx-cu13", "pyzmq")
_PAUSE_S = 3.0  # of undisturbed load between two acts
_STALL_S, _SPOIL_S, _SPOILED = 12.0, 20.0, 3
_HTTP, _ENGINE = slice(0, 1), slice(1, None)  # of a worker's processes
_IDLE_S = 60.0
TERMINATE, KILL = "terminate proxy-1", "kill proxy-1"


@dataclass(frozen=True)
class Act:
    """A fault done to a worker. Times are monotonic seconds."""

    what: str  # the fault and the worker
    began: float
    back: float  # when the worker served again


@dataclass
class Play:
    """One act after the other, with a pause of steady load between them."""

    stack: Stack
    acts: list[Act] = field(default_factory=list)
    unmet: int = 0  # of the acts that spoil answers, those that no request met

    def run(self, quick: bool, only: str) -> None:
        for what, act in self._script(quick):
            if not re.search(only, what):
                continue
            time.sleep(_PAUSE_S)
            began = time.monotonic()
            act()
            self.acts.append(Act(what, began, time.monotonic()))
            print(f"  {what}: {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(_PAUSE_S)

    def _script(self, quick: bool) -> Iterator[tuple[str, Callable[[], None]]]:
        workers, first = self.stack.workers, self.stack.workers[::2]
        for number, worker in enumerate(first if quick else workers):
            part = ("worker", "engine")[number % 2]
            yield f"kill {worker.name}'s {part}", partial(_kill, worker, number % 2)
        if not quick:
            for worker in first:
                yield f"drain {worker.name}", partial(_drain, worker)
            for worker in first:
                yield f"stall {worker.name}", partial(_stall, worker)
        for worker in first:
            yield f"freeze {worker.name}'s engine", partial(_stall, worker, _ENGINE)
            yield f"freeze {worker.name}'s worker", partial(_stall, worker, _HTTP)
        for mode in MODES:  # one role's modes apart: its breakers have closed again by the next
            for role, alike in self._interposers().items():
                yield f"a busy {role} answers {mode}", partial(self._spoil, alike, mode)
        yield "kill master", partial(_kill, self.stack.masters[0], 0)
        yield TERMINATE, partial(_terminate, self.stack.proxies[1])
        yield KILL, partial(_kill, self.stack.proxies[1], 0)

    def _interposers(self) -> dict[str, list[Interposer]]:
        """What stands before the workers, by their role."""
        roles: dict[str, list[Interposer]] = {}
        for name, one in self.stack.interposers.items():
            roles.setdefault(name.rpartition("-")[0], []).append(one)
        return roles

    def _spoil(self, alike: Sequence[Interposer], mode: str) -> None:
        """Spoils the answers of the busiest worker until a few requests have met it, or for
        `_SPOIL_S`. No request may meet it: decode workers compute short rests of prompts, and the
        master may choose another worker meanwhile."""
        worker = _busiest(alike)
        wanted = worker.spoiled + _SPOILED
        worker.mode, until = mode, time.monotonic() + _SPOIL_S
        while worker.spoiled < wanted and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(_PAUSE_S)
        worker.mode = ""
        met = _SPOILED + worker.spoiled - wanted
        self.unmet += not met
        print(f"    {met} answers", flush=True)


def _busiest(alike: Sequence[Interposer]) -> Interposer:
    """The worker that got most work within `_PAUSE_S`; waits for up to `_SPOIL_S` until one gets
    any."""
    begun, until = [one.passed for one in alike], time.monotonic() + _SPOIL_S
    time.sleep(_PAUSE_S)
    while time.monotonic() < until and begun == [one.passed for one in alike]:
        time.sleep(0.1)
    gained = [one.passed - was for one, was in zip(alike, begun, strict=True)]
    return alike[gained.index(max(gained))]


def _kill(service: Service, victim: int) -> None:
    service.kill(victim)
    time.sleep(1.0)
    service.start()
    service.wait_ready()


def _terminate(proxy: Service) -> None:
    """The proxy ends its requests and comes back."""
    _again(proxy, "SIGTERM")


def _drain(worker: Service) -> None:
    """The worker takes nothing new, ends its requests, stops by itself and comes back."""
    worker.call("POST", "/drain")
    deadline = time.monotonic() + _IDLE_S
    while _busy(worker):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{worker.name} is still busy {_IDLE_S:g} s after /drain")
        time.sleep(0.1)
    _again(worker, "/drain")


def _again(service: Service, after: str) -> None:
    """`RuntimeError` if it ends with an error; `after`: what it was told before."""
    if status := service.stop():
        raise RuntimeError(f"{service.name} ended with {status} after {after}")
    service.start()
    service.wait_ready()


def _busy(worker: Service) -> bool:
    gauges = worker.call("GET", "/integrity")[1]["gauges"]
    names = ("num_requests_running", "num_requests_waiting", "num_items_encoding")
    return any(gauges.get(name) for name in names)


def _stall(worker: Service, victims: slice = slice(None)) -> None:
    worker.stall(_STALL_S, victims)
    worker.wait_ready()


def meets(outcome: Outcome, act: Act) -> bool:
    return outcome.began < act.back and outcome.ended > act.began
