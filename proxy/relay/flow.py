"""A client that does not keep up stops the worker whose stream it is forwarded."""

from __future__ import annotations

from proxy.upstream.exchange import Exchange


class Flow:
    """Between one client connection and the stream that goes through it, if one does."""

    def __init__(self) -> None:
        self._source: Exchange | None = None
        self._paused = False

    def forwarding(self, source: Exchange | None) -> None:
        """Whose stream is forwarded from here on, None at its end."""
        self._source = source
        if source is not None and self._paused:
            source.pause()

    def pause(self) -> None:
        self._paused = True
        if self._source is not None:
            self._source.pause()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume()
