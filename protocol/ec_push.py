"""vLLM's push mode of the encoder cache: encoders write embeddings to a consumer named to them.

A consumer listens on one ZMQ address for each of its data-parallel ranks. Proxies learn these from
flags or from `POST /instances`. Source: vLLM 0.33, `ECMooncakeConnector` and its example proxy.
"""

from __future__ import annotations

import re
from typing import Any

from protocol.errors import InvalidRequest

RANK_HEADER = "x-data-parallel-rank"
CONSUMER, ITEMS, TRANSFER_ID = "consumer_zmq", "ec_items", "transfer_id"
_FIELD = "ec_zmq_addrs"
_ADDRESS = re.compile(r"tcp://[!-+\--.0-~]{1,255}:[0-9]{1,5}")  # printable, without / and comma


def is_consumer_address(text: str) -> bool:
    """Whether this is `tcp://HOST:PORT`."""
    return bool(_ADDRESS.fullmatch(text)) and 0 < int(text.rpartition(":")[2]) < 65536


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
