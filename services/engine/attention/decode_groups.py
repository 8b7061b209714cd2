"""Which requests of a step PyTorch attends together: they bring one token each and see contexts of
about the same length. Worked out once a step and used in every layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

_PADDING = 0.25  # of what a group reads at most, since its shorter contexts are read in full
_FREE_PADDING = 256  # tokens of a group that cost less than a call of their own
# Keys of a group, copied out of their blocks, that are still in a cache when attention reads them.
_GROUP_BYTES = 3 << 20


@dataclass(frozen=True)
class DecodeGroup:
    """G requests, one token each; contexts are padded to the longest one.

    rows: int64[G], where their tokens are among those of the step
    blocks: int64[G * B], the blocks of the contexts, one request after the other
    last: int64[G], index of each token within its request
    contexts: G, tokens of each context
    width: tokens that B blocks hold
    """

    rows: torch.Tensor
    blocks: torch.Tensor
    last: torch.Tensor
    contexts: tuple[int, ...]
    width: int
    _masks: dict[int, torch.Tensor | None] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        return max(self.contexts)

    @cached_property
    def padding(self) -> torch.Tensor | None:
        """int64[N], which of the G * `width` tokens that are read lie behind their context, up to
        the longest; None if there are none."""
        if min(self.contexts) == self.longest:
            return None
        # From the host's numbers: those of a device would have to be waited for.
        behind = torch.arange(self.longest) >= torch.tensor(self.contexts)[:, None]
        request, index = behind.nonzero(as_tuple=True)
        return (request * self.width + index).to(self.last.device, non_blocking=True)

    def mask(self, window: int) -> torch.Tensor | None:
        """bool[G, 1, 1, longest]: the keys that each token sees; None if it sees all."""
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def _mask(self, window: int) -> torch.Tensor | None:
        cut = 0 < window < self.longest
        if not cut and min(self.contexts) == self.longest:
            return None
        index = torch.arange(self.longest, device=self.last.device)
        mask = index <= self.last[:, None]
        if cut:
            mask &= index > self.last[:, None] - window
        return mask[:, None, None]


def decode_groups(
    rows: Sequence[int],
    contexts: Sequence[int],
    tables: torch.Tensor,
    positions: torch.Tensor,
    block_size: int,
    key_bytes: int = 0,
) -> list[DecodeGroup]:
    """Groups of the requests whose single tokens are at `rows`.

    contexts: tokens of each; tables: int64[len(rows), B] blocks of each; positions: int64[T] index
    of every token of the step within its request; key_bytes: of a layer's keys of a token, 0 for
    groups of any size
    """
    groups = []
    for members in _alike(contexts, _GROUP_BYTES // key_bytes if key_bytes else sys.maxsize):
        chosen = torch.tensor([rows[m] for m in members], device=positions.device)
        lengths = tuple(contexts[m] for m in members)
        width = -(-max(lengths) // block_size)
        blocks = tables[members, :width].flatten()
        made = DecodeGroup(chosen, blocks, positions[chosen], lengths, width * block_size)
        groups.append(made)
    return groups


def _alike(contexts: Sequence[int], most: int) -> Iterator[list[int]]:
    """Indices of contexts that are read together, the shortest first; `most` tokens of several."""
    members: list[int] = []
    read = 0
    for index in sorted(range(len(contexts)), key=lambda i: contexts[i]):
        padded = contexts[index] * (len(members) + 1)
        read += contexts[index]
        uneven = padded - read > max(_FREE_PADDING, _PADDING * padded)
        if members and (uneven or padded > most):
            yield members
            members, read = [], contexts[index]
        members.append(index)
    if members:
        yield members
