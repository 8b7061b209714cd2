"""Which connection to a peer is the latest, after others have ended."""

from __future__ import annotations

_MAX_PEERS = 1024


class Epochs:
    """Of the next connection to each peer that has none. Most peers never come back, so those whose
    connections ended longest ago share one epoch, the latest of theirs."""

    def __init__(self) -> None:
        self._next: dict[bytes, int] = {}
        self._others = 0

    def __len__(self) -> int:
        return len(self._next)

    def begin(self, peer: bytes, epoch: int) -> int:
        """The epoch of a new connection, if the peer says that it is `epoch` at least."""
        return max(epoch, self._next.pop(peer, self._others))

    def ended(self, peer: bytes, epoch: int) -> None:
        """A connection of that epoch has ended."""
        self._next[peer] = epoch + 1
        if len(self._next) > _MAX_PEERS:
            self._others = max(self._others, self._next.pop(next(iter(self._next))))
