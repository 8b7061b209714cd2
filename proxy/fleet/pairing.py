"""Which workers can hand KV or embeddings to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from protocol.refs import compatibility_of, fits
from proxy.fleet.worker import Instance


def hands_over(prefill: Instance, decode: Instance) -> bool:
    """Whether their KV is of one compatibility; one that does not say fits all."""
    return fits(compatibility_of(prefill.kv_endpoint), compatibility_of(decode.kv_endpoint))


def common_reader(workers: Iterable[Instance]) -> str:
    """The EC compatibility that all of these share which say theirs, "" if they have several."""
    kinds = {worker.ec_compatibility for worker in workers} - {""}
    return kinds.pop() if len(kinds) == 1 else ""


def reader_of(encoders: Iterable[Instance]) -> Callable[[Instance], bool]:
    """Whether a worker can read embeddings of any of these; without encoders no worker is refused
    for it."""
    kinds = {encoder.ec_compatibility for encoder in encoders}
    readable = not kinds or "" in kinds

    def reads(worker: Instance) -> bool:
        kind = worker.ec_compatibility
        return readable or not kind or kind in kinds

    return reads
