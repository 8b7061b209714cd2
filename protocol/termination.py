"""The end of a process that is told to end before it serves."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises `SystemExit` in the main thread, which alone may enter this: status 143 (128
    and the signal's number), as shells tell of a process that it has ended. A server replaces this
    handler once it serves.

    Without a handler the signal ends any process but the first of a container, to which the kernel
    does not deliver it.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)
