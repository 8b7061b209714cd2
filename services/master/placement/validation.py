"""What a request to be placed may not claim: an error that names the field."""

from __future__ import annotations

from array import array

from protocol.errors import DeadlineExceeded, InvalidRequest
from protocol.placement import ScheduleRequest
from services.master.index.prefix_index import KEY_TYPE


def check_request(request: ScheduleRequest) -> None:
    """Raises `InvalidRequest` or, for a deadline that has passed, `DeadlineExceeded`."""
    if len(request.block_keys) * request.block_size > request.prompt_tokens:
        raise InvalidRequest(
            f"block_keys: {len(request.block_keys)} blocks of {request.block_size} tokens are more "
            f"than the prompt's {request.prompt_tokens}",
            param="block_keys",
        )
    keys = request.block_keys
    try:
        array(KEY_TYPE, keys)  # as messages to other masters pack them
    except OverflowError:
        raise InvalidRequest("block_keys: a key is not of 64 bits", param="block_keys") from None
    if any(item.offset + item.tokens > request.prompt_tokens for item in request.items):
        raise InvalidRequest("items: an item ends after the prompt", param="items")
    if request.deadline_s is not None and request.deadline_s <= 0:
        raise DeadlineExceeded("the deadline has passed", param="deadline_s")
