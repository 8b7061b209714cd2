"""How many files a process may have open, connections included, and who gets how many of them."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)
SPARE = 64  # for logs, models, masters, probes and whatever else is opened while serving


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, and log both."""
    # Distributions keep the soft limit at 1024 for programs that use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS, for one, has a bound of its own
        logger.warning("open files: the limit stays %s of %s: %s", _said(soft), _said(hard), error)
        return
    logger.info("open files: limit %s raised to the hard limit %s", _said(soft), _said(hard))


def _said(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


class Room:
    """Client connections that a process may hold at once, over all its servers: `share` of the
    files that the limit leaves. The rest is for connections to workers and masters."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._held: list[Callable[[], int]] = []
        self.limit = _limit(share)

    def count(self, held: Callable[[], int]) -> None:
        """Have the connections of one more server counted."""
        self._held.append(held)

    @property
    def left(self) -> int:
        return self.limit - sum(held() for held in self._held)


def _limit(share: float) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        # Unlimited; a number all the same, since callers compare and multiply it.
        return 1 << 30
    return max(1, int((soft - open_now() - SPARE) * share))


def open_now() -> int:
    """Files that this process has open, as many as are spared where that cannot be told."""
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return SPARE
