"""Asking workers how they are, and what they are."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from protocol.errors import DeadlineExceeded, TriptychError
from proxy.client import UpstreamClient
from proxy.fleet import Fleet
from proxy.instance import Dialect, Instance

_LATE_PROBES = 3


async def probe(fleet: Fleet, client: UpstreamClient, interval_s: float) -> None:
    """Ask every worker for its health, again and again, until cancelled."""
    while True:
        await probe_once(fleet, client)
        await asyncio.sleep(interval_s)


async def probe_once(fleet: Fleet, client: UpstreamClient) -> None:
    await asyncio.gather(*(_probe_one(client, i, not fleet.forced) for i in fleet.to_probe()))
    fleet.choose_relayed()


async def _probe_one(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """A refused connection means down at once; a late answer only if it happens again and again,
    for a busy machine is not a dead worker."""
    try:
        await client.get(f"{instance.url}/health")
    except DeadlineExceeded:
        instance.late_probes += 1
        if instance.late_probes >= _LATE_PROBES:
            instance.up, instance.known, instance.lost = False, False, True
        return
    except TriptychError:
        instance.up = instance.known = False
        return
    if not instance.known:
        await _learn(client, instance, ask_dialect)
    instance.up, instance.late_probes = True, 0
    instance.suspect = instance.lost = False


async def _learn(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """What a worker says of itself, if it does; it may be late in starting."""
    info = await _json(client, f"{instance.url}/server_info")
    if ask_dialect:
        instance.dialect = await _dialect(client, instance, info) or instance.dialect
    instance.kv_endpoint = _object(info, "kv_transfer_params")
    instance.ec_endpoint = _object(info, "ec_transfer_params")
    instance.max_running = _count(info, "max_num_seqs")
    instance.block_size = _count(info, "block_size")
    instance.known = instance.dialect is not None


async def _dialect(
    client: UpstreamClient, instance: Instance, info: dict[str, Any]
) -> Dialect | None:
    """Our workers say theirs. Others are taken for vLLM's if they say what models they serve."""
    if info.get("dialect") == "tokens":
        return "tokens"
    models = await _json(client, f"{instance.url}/v1/models")
    version = models or await _json(client, f"{instance.url}/version")
    return "openai" if version else None


def _object(info: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = info.get(name)
    return found if isinstance(found, dict) else None


def _count(info: dict[str, Any], name: str) -> int:
    found = info.get(name)
    return found if isinstance(found, int) and found > 0 else 0


async def _json(client: UpstreamClient, url: str) -> dict[str, Any]:
    """The object at a URL, empty if there is none."""
    try:
        found = msgspec.json.decode(await client.get(url))
    except (TriptychError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}
