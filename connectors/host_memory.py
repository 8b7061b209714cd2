"""How much memory this process may still use: what the machine has free, within the limits of its
control groups. A container's limit stands nowhere else, and the kernel kills what exceeds it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

RESERVE = 64 << 20
"""Bytes that stay free for what is not counted here: stacks, sockets, the kernel's own books."""
_FRESH_S = 0.1
_NO_LIMIT = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Files:
    """The names that a version of the memory controller gives its figures."""

    limit: str
    usage: str
    reclaimable: str


# Usage includes the groups below; of version 1's figures only those called total_ do so, too.
_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be allocated now without swapping or being killed; page cache counts as free.

    A machine that says nothing of its memory has no limit that is known here.
    """
    free = [_machine(proc / "meminfo"), *_groups(proc / "self" / "cgroup", cgroups)]
    return max(0, min(free))


def _machine(meminfo: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return _NO_LIMIT


def _groups(membership: Path, cgroups: Path) -> Iterator[int]:
    """What each control group that limits this process has left: its own and all above it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # A line of version 1 names its controllers, that of version 2 names none.
        if "memory" in controllers.split(","):
            yield from _chain(cgroups / "memory", group, _V1)
        elif not controllers:
            yield from _chain(cgroups, group, _V2)


def _chain(root: Path, group: str, files: _Files) -> Iterator[int]:
    """From a group up to the root of its tree. In a container the tree may begin below the path
    that the process is said to be in, so folders that are not there are passed over."""
    folder = root / group.lstrip("/")
    for one in (folder, *folder.parents):
        with contextlib.suppress(OSError, ValueError):
            limit = (one / files.limit).read_text().strip()
            if limit != "max" and int(limit) < _NO_LIMIT:
                usage = int((one / files.usage).read_text())
                yield int(limit) - usage + _reclaimable(one / "memory.stat", files.reclaimable)
        if one == root:
            return


def _reclaimable(stat: Path, name: str) -> int:
    """Bytes of page cache, which the kernel takes back before it lets a limit be hit."""
    for line in stat.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


class MemoryBudget:
    """Asks how much is free no more often than every tenth of a second, and counts in between."""

    def __init__(self, available: Callable[[], int] = available_bytes) -> None:
        self._available = available
        self._left = 0
        self._asked = -_FRESH_S

    def allows(self, nbytes: int) -> bool:
        """Whether `nbytes` more can be used; they are counted as used if so."""
        now = time.monotonic()
        if now - self._asked >= _FRESH_S:
            self._left, self._asked = self._available() - RESERVE, now
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True
