"""`ec_transfer_params`: what encoders and their callers say of embeddings.

Pulled: vLLM keys an entry by the client's uuid where there is one; embeddings here are kept by
content. An entry keyed by a uuid therefore says the content's `mm_hash` too, and proxies hand it
back as they got it. An entry's `metadata` describes the item as in vLLM's EPD protocol, under
transformers' names: its grid, the seconds between frames of a clip, the tokens between its runs of
placeholders, and how many tokens audio becomes.

Pushed: encoders write embeddings to a consumer named to them, which listens on one ZMQ address for
each of its data-parallel ranks. Proxies learn these from flags or from `POST /instances`. Source:
vLLM 0.33, `ECMooncakeConnector` and its example proxy.

Also what a worker that drains still answers to an encode call.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeGuard

import msgspec

from protocol.addresses import is_tcp
from protocol.bounds import INT32_MAX
from protocol.errors import InvalidRequest, NotServing
from protocol.types import EncodeOutput, EncodeRequest, MMItem, Modality

MAX_NAME_CHARS = 256
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]*")
_CONTENT = "mm_hash"


def is_mm_hash(name: object) -> TypeGuard[str]:
    """Whether `name` can be an mm_hash. It may become a file's name, so it has only letters, digits
    and _-.: and does not begin with a dot."""
    return isinstance(name, str) and len(name) <= MAX_NAME_CHARS and bool(_NAME.fullmatch(name))


def named_entry(uuid: str, mm_hash: str, entry: dict[str, Any]) -> dict[str, Any]:
    """The entry that an encoder reports under the client's `uuid`."""
    return entry if uuid == mm_hash else {**entry, _CONTENT: mm_hash}


def reported(params: dict[str, Any] | None, uuid: str) -> dict[str, Any]:
    """What an encoder said of the item that the client calls `uuid`; {} if nothing."""
    entry = (params or {}).get(uuid)
    return entry if isinstance(entry, dict) else {}


def content_name(params: dict[str, Any] | None, uuid: str) -> str:
    """The mm_hash of the item that the client calls `uuid`: `uuid` itself if no entry says."""
    name = reported(params, uuid).get(_CONTENT)
    return name if isinstance(name, str) else uuid


def by_content(params: dict[str, Any] | None) -> dict[str, Any] | None:
    """`params`, whose entries are also found by the mm_hash of their content."""
    if not params:
        return params
    found = {content_name(params, uuid): reported(params, uuid) for uuid in params}
    # The caller's own names last: an entry's word of its content replaces no other entry.
    return {**{name: entry for name, entry in found.items() if is_mm_hash(name)}, **params}


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


RANK_HEADER = "x-data-parallel-rank"
CONSUMER, ITEMS, TRANSFER_ID = "consumer_zmq", "ec_items", "transfer_id"
_FIELD = "ec_zmq_addrs"


def is_consumer_address(text: str) -> bool:
    """Whether this is `tcp://HOST:PORT`."""
    return is_tcp(text) and int(text.rpartition(":")[2]) > 0


def split_addresses(text: str) -> list[str]:
    """The addresses of a comma-separated list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def consumer_addresses(given: list[str] | str | None, dp_size: int, role: str) -> list[str]:
    """The addresses in a body of `POST /instances`, one for each of `dp_size` ranks; none if the
    worker fetches embeddings by itself. Raises `InvalidRequest`."""
    addresses = split_addresses(given) if isinstance(given, str) else given or []
    if not addresses:
        return []
    if role == "encode":
        raise _invalid("an encode worker receives no embeddings, so it has no such addresses")
    if len(addresses) != dp_size:
        raise _invalid(
            f"{len(addresses)} addresses for {dp_size} data-parallel ranks (dp_size); give one for"
            " each rank"
        )
    for address in addresses:
        if not is_consumer_address(address):
            raise _invalid(f"'{address[:128]}' is not tcp://HOST:PORT")
    return addresses


def for_encoder(address: str, transfer_id: str) -> dict[str, Any]:
    """`ec_transfer_params` of an encode request with one item: where its embedding goes, and the
    name of the transfer."""
    return {CONSUMER: address, ITEMS: [{TRANSFER_ID: transfer_id}]}


def _invalid(problem: str) -> InvalidRequest:
    return InvalidRequest(f"{_FIELD}: {problem}", param=_FIELD)


async def held_only(
    request: EncodeRequest, encode: Callable[[EncodeRequest], Awaitable[list[EncodeOutput]]]
) -> list[EncodeOutput]:
    """What a worker that drains answers to an encode call: the items that it has. `NotServing` if
    another one came with its data, which another worker must encode."""
    asked = [msgspec.structs.replace(item, data=None) for item in request.items]
    outputs = await encode(msgspec.structs.replace(request, items=asked))
    # What came with its data must be encoded elsewhere; what was only asked for may be missing.
    brought = {item.mm_hash for item in request.items if item.data is not None}
    if any(output.missing and output.mm_hash in brought for output in outputs):
        raise NotServing(
            "this worker is draining or stopping and accepts no requests", retry_after_s=1.0
        )
    return outputs
