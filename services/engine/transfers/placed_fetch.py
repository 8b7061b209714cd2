"""One request's KV on its way here, and when it may be written to the blocks chosen for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from connectors.kv.base import Fence, KVLoad
from protocol.errors import TransferError
from protocol.refs import KVRef
from services.engine.scheduling.request import Request, Status


@dataclass
class Fetch:
    """`num_blocks` of the request's table come from elsewhere."""

    request: Request
    num_blocks: int
    load: KVLoad
    _held: int | None = field(default=None, init=False)
    _fence: Fence | None = field(default=None, init=False)

    @property
    def placed(self) -> bool:
        return self.request.status is Status.LOADING

    def place(self, held: int, fence: Fence | None) -> None:
        """The request has its blocks, of which the first `held` need no copy.

        Peers' bytes come past the device's streams. A step launched for the request that had these
        blocks before, and was aborted, may still write to them: nothing is copied before `fence`,
        that of the last step launched, has passed. Later steps leave them alone.
        """
        self._held, self._fence = held, fence
        self.advance()

    def unplace(self) -> None:
        self._held = self._fence = None
        self.load.unplace()

    def advance(self) -> None:
        """Begin to copy once nothing else writes to the blocks."""
        if self._held is None or (self._fence is not None and not self._fence.passed()):
            return
        held, self._held = self._held, None
        self.load.place(held, self.request.blocks[held : self.num_blocks])


def check_ref(ref: KVRef, request: Request, block_size: int) -> None:
    """`TransferError` if an offer that is complete does not fit the request."""
    if ref.growing:
        return
    if not 0 < ref.num_tokens <= request.num_prompt:
        raise TransferError(
            f"kv_transfer_params offer {ref.num_tokens} tokens for a prompt of {request.num_prompt}"
        )
    if len(ref.block_ids) != -(-ref.num_tokens // block_size):
        raise TransferError(
            f"kv_transfer_params: {len(ref.block_ids)} blocks for {ref.num_tokens} tokens"
        )
