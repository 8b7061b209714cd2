"""What a worker says of itself: its dialect, model and endpoints, and if it resumes streams."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.addresses import hosts_in, is_plain_host
from protocol.decoding import decoded
from protocol.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RateLimited,
    RequestError,
    TriptychError,
    Unavailable,
    UpstreamError,
)
from protocol.generate import GENERATE_PATH, RENDER_PATH
from protocol.openai_answers import OWNER
from protocol.refs import compatibility_of
from proxy.fleet.worker import Dialect, Instance
from proxy.upstream.client import UpstreamClient
from proxy.upstream.failures import FORBIDDEN, NOT_A_WORKER, WRONG_KEY, CallFailed

logger = logging.getLogger(__name__)
_JSON: Mapping[str, str] = MappingProxyType({"content-type": "application/json"})


async def learn(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> None:
    """Ask a worker what it is. One that could not say it in time is asked again:
    it is not taken for one that has nothing to say. Of another engine a master tells the rest."""
    told_by_master = instance.known_to_master and instance.dialect == "openai"
    if not (told_by_master or await _read_server_info(client, instance, ask_dialect)):
        return
    resumes: bool | None = False
    if instance.dialect == "openai" and instance.role == "decode":
        resumes = await _resumes(client, instance.url)
    instance.resumes = bool(resumes)
    instance.known = instance.dialect is not None and resumes is not None


async def learn_adapters(client: UpstreamClient, instance: Instance) -> None:
    """What LoRA adapters a worker of ours has by now: others than this proxy load and unload them
    too. An answer that tells nothing changes nothing, nor does one that was asked for before more
    became known."""
    before = instance.adapters
    # The answer may be older than what `learn` finds meanwhile: `before` shows that.
    info = await _object_at(client, f"{instance.url}/server_info")
    if not info or not instance.known or instance.adapters is not before:
        return
    instance.adapters = _texts(info, "adapters")
    instance.models = (instance.models - before.keys()) | instance.adapters.keys()


async def _read_server_info(client: UpstreamClient, instance: Instance, ask_dialect: bool) -> bool:
    """What stands in its /server_info; False if that could not be found out."""
    # Another engine's tells nothing of use, and takes vLLM seconds.
    models = await _object_at(client, f"{instance.url}/v1/models")
    foreign = models is not None and _foreign(models)
    info = {} if foreign else await _object_at(client, f"{instance.url}/server_info")
    if info is None:
        return False
    if ask_dialect:
        instance.dialect = await _dialect(client, instance, info, models) or instance.dialect
    names = _models_of(models or {})
    instance.model = _text(info, "model") or next(iter(names), "")
    instance.models = frozenset((instance.model, *names))
    instance.adapters = _texts(info, "adapters")
    instance.revision = _text(info, "revision")
    instance.tokenizer = _text(info, "tokenizer")
    instance.kv_endpoint = _endpoint(instance, info, "kv_transfer_params")
    instance.kv_compatibility = compatibility_of(instance.kv_endpoint)
    instance.ec_endpoint = _endpoint(instance, info, "ec_transfer_params")
    instance.ec_compatibility = _text(info, "ec_compatibility")
    instance.does_all = _text(info, "role") == "pdfusion"
    instance.max_running = _count(info, "max_num_seqs")
    instance.block_size = _count(info, "block_size")
    return True


async def _dialect(
    client: UpstreamClient,
    instance: Instance,
    info: dict[str, Any],
    models: dict[str, Any] | None,
) -> Dialect | None:
    """Our workers say theirs. Others are taken for vLLM's if they say what models they serve."""
    if info.get("dialect") == "tokens":
        return "tokens"
    version = models or await _object_at(client, f"{instance.url}/version")
    return "openai" if version else None


def _foreign(models: dict[str, Any]) -> bool:
    """Whether an answer to /v1/models names another engine as the models' owner."""
    return any(owner != OWNER for owner in _of_cards(models, "owned_by"))


def _models_of(models: dict[str, Any]) -> list[str]:
    """The names in an answer to /v1/models, the first one first."""
    return _of_cards(models, "id")


def _of_cards(models: dict[str, Any], name: str) -> list[str]:
    cards = models.get("data")
    found = [c.get(name) for c in cards if isinstance(c, dict)] if isinstance(cards, list) else []
    return [value for value in found if isinstance(value, str)]


async def _resumes(client: UpstreamClient, url: str) -> bool | None:
    """Whether a worker could go on with another's stream: it renders a chat to what generates it,
    and generates from tokens. None if that could not be found out in time."""
    for path in (RENDER_PATH, GENERATE_PATH):
        has = await _has_route(client, url + path)
        if not has:
            return has
    return True


async def _has_route(client: UpstreamClient, url: str) -> bool | None:
    """Whether a worker has a POST route; None if that could not be found out in time."""
    # An empty request costs nothing: who has the route complains of what is missing in it. Asked
    # with another method, vLLM says the same whether the route is enabled or not.
    try:
        await client.post(url, b"{}", _JSON)
    except (DeadlineExceeded, RateLimited, Unavailable):
        return None
    except CallFailed as failure:
        return False if failure.kind in (NOT_A_WORKER, FORBIDDEN) else None
    except TriptychError as error:
        return isinstance(error, InvalidRequest)
    return False


def _endpoint(instance: Instance, info: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Where other workers are sent to: without it if that is no host."""
    found = _object(info, name)
    for field, host in hosts_in(found):
        if not is_plain_host(host):
            logger.warning("%s: %s.%s must be a host, not %.128r", instance.url, name, field, host)
            return None
    return found


def _object(info: dict[str, Any], name: str) -> dict[str, Any] | None:
    found = info.get(name)
    return found if isinstance(found, dict) else None


def _text(info: dict[str, Any], name: str) -> str:
    found = info.get(name)
    return found if isinstance(found, str) else ""


def _texts(info: dict[str, Any], name: str) -> dict[str, str]:
    found = _object(info, name) or {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _count(info: dict[str, Any], name: str) -> int:
    found = info.get(name)
    return found if isinstance(found, int) and found > 0 else 0


async def _object_at(client: UpstreamClient, url: str) -> dict[str, Any] | None:
    """The object at a URL, empty if there clearly is none, None if that could not be found out."""
    try:
        answer = await client.get(url)
    except TriptychError as error:
        if isinstance(error, CallFailed) and error.kind == WRONG_KEY:
            logger.error("%s", error.message)  # it stays out of use until the key is right
        return {} if _is_no_such_thing(error) else None
    try:
        return decoded(answer, dict[str, Any], fail=UpstreamError)
    except UpstreamError:
        return {}


def _is_no_such_thing(error: TriptychError) -> bool:
    """Whether a worker has refused the question, as opposed to failing at it, being busy, or not
    being heard. Statuses without a class of their own are `UpstreamError` itself."""
    refused = isinstance(error, RequestError) and not isinstance(error, RateLimited)
    return refused or type(error) is UpstreamError
