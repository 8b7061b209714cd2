"""Speeds that a running fleet has measured of itself, as its master knows them."""

from __future__ import annotations

import http.client
import statistics
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from benchmarks.simulate.profile import Profile
from protocol.fleet_key import FleetKey
from protocol.registry import WORKERS_PATH, Rates, Workers, WorkerView
from services.mock.timing import Timing

_PATIENCE_S = 10.0
_MOST_BYTES = 64 << 20  # of the master's answer
_MEASURES = ("encode", "prefill", "decode")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Redirects are errors: the request that follows one would carry the fleet key to it."""

    def redirect_request(self, *args: Any) -> None:
        return None


def fleet_profile(url: str, key: FleetKey) -> Profile:
    """Workers as those that the master at `url` knows. `ValueError` says what is missing."""
    request = urllib.request.Request(url.rstrip("/") + WORKERS_PATH, headers=dict(key.headers))
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(request, timeout=_PATIENCE_S) as answer:
            data = answer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"--model: {url} answers with more than {_MOST_BYTES} bytes")
        found = msgspec.json.decode(data, type=Workers)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise ValueError(f"--model: the master at {url} cannot be asked: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--model: {url} does not answer as a master does: {error}") from None
    return profile_of(found.workers, url)


def profile_of(views: Sequence[WorkerView], name: str) -> Profile:
    """The median worker of each role. `ValueError` if a stage that there are workers for, or the
    transfers between stages, have not been measured: without any request no worker knows how fast
    it is. Where each worker has all stages none is made: then `facts` says that none is reckoned.
    """
    models = sorted({view.info.model for view in views})
    if len(models) != 1:
        raise ValueError(f"--model: {name}: a fleet of one model is needed, not {models}")
    base = Profile(name, Timing())
    prefills = [view for view in views if _does(view, "prefill")]
    decodes = [view for view in views if _does(view, "decode")]
    said = _median(view.info.kv_bytes_per_token for view in decodes)
    kv_bytes = int(said) or base.kv_bytes_per_token
    block_size = int(_median(view.info.block_size for view in decodes)) or base.block_size
    timing = _timing(views, name, block_size * kv_bytes, base.row_bytes)
    free = "" if timing.kv_block_ms else ", which make no transfers: these take no time here"
    running = _median(view.info.max_running for view in decodes)
    return Profile(
        name, timing, block_size=block_size,
        prefill_blocks=_blocks(prefills) or base.prefill_blocks,
        decode_blocks=_blocks(decodes) or base.decode_blocks,
        max_running=int(running) or base.max_running,
        kv_bytes_per_token=kv_bytes,
        facts={"hardware": f"the workers of {name}{free}"},
    )  # fmt: skip


def _does(view: WorkerView, stage: str) -> bool:
    """A worker that may have several roles has been measured in all that it had."""
    role = view.info.role
    return stage in view.info.roles or stage in role.split("_") or role == "pdfusion"


def _timing(views: Sequence[WorkerView], name: str, block_bytes: float, row_bytes: int) -> Timing:
    rates = {
        stage: _median_rates([v.rates for v in views if _does(v, stage)], stage)
        for stage in _MEASURES
    }
    present = {stage for stage in _MEASURES if any(_does(view, stage) for view in views)}
    for stage in sorted(present | {"prefill", "decode"}):
        if rates[stage] == Rates():
            raise ValueError(
                f"--model: {name} knows no {stage} worker that has measured its speed: send the "
                "fleet some requests first"
            )
    encode, prefill, decode = (rates[stage] for stage in _MEASURES)
    moved = _median(v.rates.transfer_bytes_per_ms for v in views if v.rates.transfer_bytes_per_ms)
    if not moved and any(view.info.role in _MEASURES for view in views):
        raise ValueError(
            f"--model: {name} knows no worker that has measured its transfers: send the fleet some "
            "requests first"
        )
    return Timing(
        encode_base_ms=encode.encode_base_ms,
        encode_token_ms=encode.encode_ms_per_token,
        prefill_base_ms=prefill.prefill_base_ms,
        prefill_token_ms=prefill.prefill_ms_per_token,
        prefill_cached_ms=prefill.prefill_ms_per_cached_token,
        decode_base_ms=decode.decode_base_ms,
        decode_request_ms=decode.decode_ms_per_request,
        decode_context_ms=decode.decode_ms_per_context_token,
        kv_block_ms=block_bytes / moved if moved else 0.0,
        ec_token_ms=row_bytes / moved if moved else 0.0,
    )


def _median_rates(found: Sequence[Rates], stage: str) -> Rates:
    """Of those that have measured this kind of work; none is `Rates()`."""
    names = [name for name in Rates.__struct_fields__ if name.startswith(stage)]
    measured = [one for one in found if any(getattr(one, name) for name in names)]
    return Rates(**{name: _median(getattr(one, name) for one in measured) for name in names})


def _blocks(views: Sequence[WorkerView]) -> int:
    return int(_median(view.total_blocks for view in views))


def _median(values: Iterable[float]) -> float:
    """0 of none."""
    found = list(values)
    return statistics.median(found) if found else 0.0
