"""Polling a transport in the place of an engine that computes, so that peers are served and bytes
move meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class BackgroundPoller:
    """`poll` is called from a thread of its own while `running` is entered, and never otherwise.
    In between that thread is in `rest`, which returns when there may be something to do, and soon
    in any case; it may go on for a moment after `running` has been left."""

    def __init__(self, poll: Callable[[], None], rest: Callable[[], None]) -> None:
        self._poll = poll
        self._rest = rest
        # Held by the thread while it polls. It is also the memory barrier that ZMQ asks for where a
        # socket passes from one thread to another.
        self._turn = threading.Lock()
        self._entered = threading.Event()
        self._closed = threading.Event()
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """What `poll` raised is raised on leaving."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="transport", daemon=True)
            self._thread.start()
        self._entered.set()
        try:
            yield
        finally:
            # In this order: the thread looks again within its turn, so that no poll begins later.
            self._entered.clear()
            with self._turn:
                error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while self._entered.wait() and not self._closed.is_set():
            try:
                with self._turn:
                    if self._entered.is_set():
                        self._poll()
                self._rest()
            except Exception as error:
                # What has failed is not polled again before the next `running`, which finds the
                # thread there.
                self._error = error
                self._entered.clear()
                # `close` has set the event that was just cleared, and waits for this thread.
                if self._closed.is_set():
                    return

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed.set()
        self._entered.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
