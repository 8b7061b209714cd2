"""Blocks that no prompt waits for: used for further decode steps and for guessed tokens."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from services.engine.scheduling.block_manager import BlockManager
from services.engine.scheduling.draft_budget import DraftBudget
from services.engine.scheduling.limits import Limits, Step
from services.engine.scheduling.request import Request


def lengthen(step: Step, blocks: BlockManager, limits: Limits) -> None:
    """Further steps for a step in which all decode, as far as there are blocks."""
    requests = [chunk.request for chunk in step.chunks if chunk.decodes]
    if not requests or len(requests) < len(step.chunks):
        return
    if not limits.adapted_decode_steps and any(request.adapter for request in requests):
        return
    steps = min([limits.decode_steps, *(request.num_to_come for request in requests)])
    while steps > 1 and not blocks.can_allocate(sum(_lacking(requests, steps, blocks))):
        steps //= 2
    if steps > 1:
        for request, count in zip(requests, _lacking(requests, steps, blocks), strict=True):
            extend(request, blocks, count)
        step.chunks = [structs.replace(chunk, steps=steps) for chunk in step.chunks]


def leave_room(step: Step, blocks: BlockManager, drafts: DraftBudget) -> None:
    """For tokens that are guessed, as far as the step and the blocks have room to spare."""
    decoding = [(place, chunk) for place, chunk in enumerate(step.chunks) if chunk.decodes]
    if not decoding:
        return
    able = [one for one in decoding if one[1].samplers and one[1].request.may_be_guessed]
    counts = drafts.of_step([chunk.request for _, chunk in able], len(decoding))
    for (place, chunk), most in zip(able, counts, strict=True):
        request = chunk.request
        room = min(most, step.left, request.num_to_come - 1)
        count = _lacking([request], 1 + room, blocks)[0]
        if room > 0 and blocks.can_allocate(count):
            extend(request, blocks, count)
            step.chunks[place] = structs.replace(chunk, room=room)
            step.left -= room


def _lacking(requests: Sequence[Request], tokens: int, blocks: BlockManager) -> list[int]:
    """Blocks that each request lacks for so many tokens more."""
    return [
        max(0, blocks.blocks_for(request.num_computed + tokens) - len(request.blocks))
        for request in requests
    ]


def extend(request: Request, blocks: BlockManager, count: int) -> None:
    """Give a request `count` blocks more, which there must be."""
    if count > 0:
        allocated = blocks.allocate(count)
        assert allocated is not None
        request.blocks += allocated


def trim(request: Request, blocks: BlockManager) -> None:
    """Take back blocks beyond a request's tokens, after a step that gained fewer than it had room
    for."""
    kept = blocks.blocks_for(len(request.tokens))
    if len(request.blocks) > kept:
        blocks.release(request.blocks[kept:])
        request.blocks = request.blocks[:kept]  # another list: see `step_tokens.BlockTables`
