"""How many files a process may have open, and how many it has."""

from __future__ import annotations

import logging
import resource
from pathlib import Path

logger = logging.getLogger(__name__)
SPARE = 64  # for logs, models, masters, probes and other files opened while serving


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, and log both."""
    # Distributions keep the soft limit at 1024 for programs that use select().
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # macOS, for one, has a bound of its own
        said = "the limit of open files stays %s, below the hard limit %s: %s"
        logger.warning(said, _said(soft), _said(hard), error)
        return
    said = "the limit of open files was raised from %s to the hard limit %s"
    logger.info(said, _said(soft), _said(hard))


def _said(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def open_now() -> int:
    """Files that this process has open, as many as are spared where that cannot be told."""
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return SPARE
