"""`metadata` of a media item, which travels in `ec_transfer_params[mm_hash]` as in vLLM's EPD
protocol, under transformers' names: its grid, the seconds between frames of a clip, the tokens
between its runs of placeholders, and how many tokens audio becomes.
"""

from __future__ import annotations

from typing import Any

from protocol.bounds import INT32_MAX
from protocol.errors import InvalidRequest
from protocol.types import MMItem, Modality

SECONDS_KEY = "second_per_grid_ts"
GAPS_KEY = "tokens_between_grid_ts"
AUDIO_TOKENS_KEY = "num_audio_tokens"
MOST_SECONDS = 86_400  # between two of a clip's grid's t


def grid_key(modality: Modality) -> str:
    return f"{modality}_grid_thw"


def item_metadata(item: MMItem) -> dict[str, Any]:
    """`metadata` of an item's `ec_transfer_params` entry."""
    metadata: dict[str, Any] = {grid_key(item.modality): list(item.grid)} if item.grid else {}
    if item.seconds_per_grid:
        metadata[SECONDS_KEY] = item.seconds_per_grid
    if item.gaps:
        metadata[GAPS_KEY] = list(item.gaps)
    if item.modality == "audio":
        metadata[AUDIO_TOKENS_KEY] = item.length
    return metadata


def metadata_of(entry: Any) -> dict[str, Any]:
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def grid_of(metadata: dict[str, Any], modality: Modality) -> tuple[int, ...]:
    grid = metadata.get(grid_key(modality))
    if grid is None:
        return ()
    if not isinstance(grid, list) or not all(type(n) is int and 0 < n <= INT32_MAX for n in grid):
        raise InvalidRequest(
            f"ec_transfer_params: {grid_key(modality)} must be a list of positive integers",
            param="ec_transfer_params",
        )
    return tuple(grid)


def seconds_of(metadata: dict[str, Any], param: str) -> float:
    """Seconds between two of a clip's grid's t, 0 where nothing says; `InvalidRequest` (`param`) if
    that is no such number."""
    seconds = metadata.get(SECONDS_KEY, 0.0)
    # True is an int to Python, and no number to clients.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidRequest(f"{param}: {SECONDS_KEY} must be a number", param=param)
    if not 0 <= seconds <= MOST_SECONDS:
        message = f"{param}: {SECONDS_KEY} must be at least 0 and at most {MOST_SECONDS}"
        raise InvalidRequest(message, param=param)
    return float(seconds)


def gaps_of(metadata: dict[str, Any]) -> tuple[int, ...]:
    gaps = metadata.get(GAPS_KEY, [])
    if not isinstance(gaps, list) or not all(type(n) is int and 0 <= n <= INT32_MAX for n in gaps):
        raise InvalidRequest(
            f"ec_transfer_params: {GAPS_KEY} must be a list of numbers of tokens",
            param="ec_transfer_params",
        )
    return tuple(gaps)
