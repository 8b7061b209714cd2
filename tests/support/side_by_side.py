"""How many processes run tests at the same time: `python -m tests.support.side_by_side` says it."""

import os

from connectors.host_memory import available_bytes

MEMORY_OF_ONE = 7 << 28
"""Bytes that a process of tests needs, with the services and engines that its tests start."""


def processes(cores: int, free_bytes: int) -> int:
    """Three for two cores, as far as the free memory goes; at least one.

    Tests of leases, faults and timeouts wait: with one process for each core a fifth of the
    processors' time is left.
    """
    return max(1, min(cores + cores // 2, free_bytes // MEMORY_OF_ONE))


def here() -> int:
    """On this machine, as it is now."""
    return processes(len(os.sched_getaffinity(0)), available_bytes())


if __name__ == "__main__":
    print(here())
