"""How many processes run tests at the same time."""

MEMORY_OF_ONE = 7 << 28
"""Bytes that a process of tests needs, with the services and engines that its tests start."""


def processes(cores: int, free_bytes: int) -> int:
    """One for each core, as far as the free memory goes; at least one."""
    return max(1, min(cores, free_bytes // MEMORY_OF_ONE))
