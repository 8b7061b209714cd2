"""Routes of a proxy that has no model of its own: what a worker says, passed on."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from protocol.errors import TriptychError
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from proxy.fleet.fleet import Fleet
from proxy.upstream.client import UpstreamClient
from proxy.upstream.patience import Patience
from services.http.bodies import Bodies
from services.http.counting import Admitted, counted
from services.http.openai import JSON
from services.http.streams import while_connected
from services.http.tokens import MAX_BODY

_TOKENS_S = 10.0
_PASSED = ("/tokenize", "/detokenize")


class _NoRoute(TriptychError):
    status = 404
    code = "invalid_request"
    type = "invalid_request_error"


def informing(
    fleet: Fleet,
    client: UpstreamClient,
    admitted: Admitted,
    bodies: Bodies,
    own: Callable[[Request], dict[str, str]],
) -> APIRouter:
    """The model and its tokenizer, as a worker that decodes has them. `own`: what a client's
    request brings for the worker."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models(request: Request) -> Response:
        """The models that a decode worker serves."""
        url = fleet.choose("decode").url + "/v1/models"
        return Response(await client.get(url, headers=own(request)), media_type=JSON)

    @counted(admitted)
    async def passed(request: Request) -> Response:
        """Answered by a decode worker."""
        async with bodies.read(request, MAX_BODY) as body:
            worker = fleet.choose("decode")
            headers = {"content-type": JSON, **own(request)}
            patience = Patience.of(_TOKENS_S)
            call = client.post(worker.url + request.url.path, body, headers, patience)
            answer = await while_connected(request, call)
        return Response(answer, media_type=JSON)

    for path in _PASSED:
        routes.add_api_route(path, passed, methods=["POST"])
    return routes


def passed_on(request: Request) -> dict[str, str]:
    """The client's `Authorization`, if servers agree about what it says."""
    given = request.headers.get("authorization", "")
    return {"authorization": given} if given.isascii() and given.isprintable() and given else {}


def kept_here(request: Request) -> dict[str, str]:
    """Nothing: the client's key is for the proxy alone."""
    return {}


def relayed() -> APIRouter:
    """The relayed routes as the documentation shows them. The edge answers them before they could
    come here, unless their path is spelled in another way."""
    routes = APIRouter()

    @routes.post(CHAT_PATH)
    async def chat(request: Request) -> Response:
        """OpenAI chat completions, media of every kind included.

        `X-Request-Timeout`: seconds that the request may take. `X-Request-Id` and `Authorization`
        go to the workers too.
        """
        raise _NoRoute(f"the path must be spelled {CHAT_PATH}")

    @routes.post(COMPLETIONS_PATH)
    async def completions(request: Request) -> Response:
        """OpenAI text completions."""
        raise _NoRoute(f"the path must be spelled {COMPLETIONS_PATH}")

    return routes
