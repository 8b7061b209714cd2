"""Which workers can hand KV or embeddings to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from protocol.refs import compatibility_of, fits
from proxy.fleet.worker import Instance

_Kind = Callable[[Instance], str]


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


def unpaired_kv(prefill: Sequence[Instance], decode: Sequence[Instance]) -> Iterator[str]:
    """A sentence for each worker whose KV none of its partners can exchange with it."""
    for workers, partners, role, way in (
        (prefill, decode, "decode", "to"),
        (decode, prefill, "prefill", "from"),
    ):
        for worker in _unpaired(workers, partners, _kv):
            yield (
                f"{worker.role} worker {worker.url} can hand no KV {way} any {role} worker: its KV "
                f"is {_kv(worker)}, theirs {', '.join(_kinds(partners, _kv))} "
                "(model@weights:layout:transport; see --dtype, --kv-cache-dtype, --block-size, "
                "--kv-transfer-config)"
            )


def unpaired_ec(encoders: Sequence[Instance], readers: Sequence[Instance]) -> Iterator[str]:
    """A sentence for each worker that can read no encoder's embeddings; then for each encoder whose
    embeddings no reader can read, unless no reader can read any."""
    blind = _unpaired(readers, encoders, _ec)
    for worker in blind:
        yield (
            f"{worker.role} worker {worker.url} can read no encode worker's embeddings: its EC is "
            f"{_ec(worker)}, that of {_described(encoders)} {_SEE_EC}"
        )
    if len(blind) < len(readers):
        for encoder in _unpaired(encoders, readers, _ec):
            yield (
                f"encode worker {encoder.url} makes embeddings that no worker can read: its EC is "
                f"{_ec(encoder)}, that of {_described(readers)} {_SEE_EC}"
            )


_SEE_EC = "(model@weights:dtype:transport; see --model, --dtype, --ec-transfer-config)"


def _kv(worker: Instance) -> str:
    return compatibility_of(worker.kv_endpoint)


def _ec(worker: Instance) -> str:
    return worker.ec_compatibility


def _kinds(workers: Sequence[Instance], kind: _Kind) -> list[str]:
    return sorted({kind(worker) for worker in workers})


def _described(workers: Sequence[Instance]) -> str:
    """The workers by the kind of their EC."""
    return ", ".join(
        f"{' and '.join(w.url for w in workers if _ec(w) == kind)} is {kind}"
        for kind in _kinds(workers, _ec)
    )


def _unpaired(
    workers: Sequence[Instance], partners: Sequence[Instance], kind: _Kind
) -> list[Instance]:
    """Workers that fit none of their partners, where there are any."""
    kinds = _kinds(partners, kind)
    if not kinds:
        return []
    return [worker for worker in workers if not any(fits(kind(worker), one) for one in kinds)]
