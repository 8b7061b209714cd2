"""Cores of a machine that several engines compute on: each uses what the others leave.

With as many threads each as there are cores, engines that compute at the same time wait for one
another at the end of every operation; with a fixed share, a request that is alone has most of the
machine idle. So engines tell one another when they compute, by a file each in a folder that they
share, and each chooses its number of threads when a step begins.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from connectors.owners import create_locked, locked, make_private

_RECENT_S = 0.02  # what computed until so long ago is about to go on
_LOOK_S = 1.0  # from one look for other engines to the next
_PREFIX = "cores-"
_BYTES = 8  # of a file: when its engine has computed last, infinity while it does
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class CoreShare:
    """One engine's part. `least` threads are used beside any others."""

    def __init__(
        self,
        folder: Path,
        cores: int,
        least: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: seconds, the same for all processes of the machine."""
        self._folder = folder
        self._cores = cores
        self._least = least
        self._clock = clock
        make_private(folder, "set TRIPTYCH_NAMESPACE to another name")
        self._path = folder / f"{_PREFIX}{uuid.uuid4().hex}"
        self._file = create_locked(self._path)  # for as long as this engine lives
        os.ftruncate(self._file, _BYTES)
        # Not locked: readers find the former value or the new one of an aligned float64.
        self._mine = np.memmap(self._path, np.float64, "r+", shape=(1,))
        self._others: dict[Path, NDArray[np.float64]] = {}
        self._looked = -math.inf

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """While this is entered others see that this engine computes; the threads of its operations
        are as many as its share allows."""
        self._mine[0] = math.inf
        self._choose()
        try:
            yield
        finally:
            # Not −∞ as in `rest`: between two steps of a request others should not take the cores.
            self._mine[0] = self._clock()

    def watch(self, model: nn.Module) -> None:
        """Choose again before each of the model's layers: a long prompt must not keep the cores of
        an engine that has begun to compute meanwhile."""
        for layers in [module for module in model.modules() if isinstance(module, nn.ModuleList)]:
            for layer in layers:
                layer.register_forward_pre_hook(lambda *_: self._choose())

    def _choose(self) -> None:
        threads = self.threads()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)

    def rest(self) -> None:
        """There is nothing to compute: others need not wait to see whether this engine goes on."""
        self._mine[0] = -math.inf

    def threads(self) -> int:
        """What the share allows now."""
        now = self._clock()
        if now - self._looked > _LOOK_S:
            self._looked = now
            self._look()
        busy = sum(bool(last[0] > now - _RECENT_S) for last in self._others.values())
        return max(self._least, self._cores // (1 + busy))

    def _look(self) -> None:
        """Find engines that have come, and forget those that have ended."""
        found = {path for path in self._folder.glob(f"{_PREFIX}*") if path != self._path}
        for path in set(self._others) - found:
            del self._others[path]
        for path in found:
            # One that was killed while it computed has left infinity there, but its lock is gone.
            if not locked(path):
                self._others.pop(path, None)
            elif path not in self._others:
                with contextlib.suppress(OSError, ValueError):  # gone, or empty yet
                    self._others[path] = np.memmap(path, np.float64, "r", shape=(1,))

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def cores_here() -> int:
    """Cores that this process may use, also in a container with a quota."""
    cores = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # another system, or no quota: "max 100000"
        quota, period = map(int, _QUOTA.read_text().split())
        cores = min(cores, quota // period)
    return max(1, cores)
