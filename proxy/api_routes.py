"""Bodies of a proxy's routes, for /openapi.json."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec

from protocol.anthropic import MESSAGES_PATH, CountRequest, MessagesRequest
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH, ChatCompletionRequest, CompletionRequest
from protocol.responses import RESPONSES_PATH, ResponsesRequest
from protocol.rtp_status import CACHE_PATHS, WORK_PATHS
from proxy.fleet.admin_api import NamedWorker
from proxy.page import routes as page
from proxy.relay.passed_routes import OPERATED, PASSED, STORED, PassedRoute
from services.http.api_bodies import OBJECT, RouteBodies, Table
from services.http.api_routes import GENERATING, INFORMING, POOLING, SERVING


class RelayedCompletion(msgspec.Struct):
    """What workers of all engines answer; some say more."""

    id: str  # of the answer
    object: str  # kind of the answer
    created: int  # seconds since 1970
    model: str  # name of the model
    choices: list[dict[str, Any]]  # as the worker answers them
    usage: dict[str, Any] | None = None  # tokens of prompt and answer


class RelayedCard(msgspec.Struct):
    id: str
    object: str


class RelayedModels(msgspec.Struct):
    data: list[RelayedCard]
    object: str


_OWN: Table = MappingProxyType(
    {
        **SERVING,
        "GET /live": RouteBodies(),
        "GET /health": RouteBodies(OBJECT, unwell=True),
        "GET /ready": RouteBodies(str, media="text/plain", unwell=True),
        f"GET {page.ABOUT}": RouteBodies(OBJECT),
        f"GET {page.STAGES}": RouteBodies(OBJECT),
        f"GET {page.FLEET}": RouteBodies(OBJECT),
        f"GET {page.REQUESTS}": RouteBodies(OBJECT),
        "GET /instances": RouteBodies(OBJECT),
        "POST /instances": RouteBodies(OBJECT, NamedWorker),
        "DELETE /instances": RouteBodies(OBJECT, NamedWorker),
        **{
            f"{method} {path}": RouteBodies(OBJECT, OBJECT, optional=True)
            for path in (*WORK_PATHS, *CACHE_PATHS)
            for method in ("GET", "POST")
        },
        **{
            f"{route.method} {route.path}": RouteBodies(OBJECT, OBJECT, optional=True)
            for route in OPERATED
        },
    }
)


def _passed(route: PassedRoute) -> RouteBodies:
    return RouteBodies(Any, None if route.method == "GET" else OBJECT, form=route.form)


_RELAYED: Table = MappingProxyType(
    {
        **{f"{route.method} {route.path}": _passed(route) for route in PASSED},
        f"POST {MESSAGES_PATH}": RouteBodies(
            Any, MessagesRequest, Any, error=Any, fields="messages"
        ),
        f"POST {MESSAGES_PATH}/count_tokens": RouteBodies(
            Any, CountRequest, error=Any, fields="messages"
        ),
        f"POST {RESPONSES_PATH}": RouteBodies(Any, ResponsesRequest, Any, fields="responses"),
        **{f"{route.method} {route.path}": RouteBodies(OBJECT) for route in STORED},
        f"POST {CHAT_PATH}": RouteBodies(
            RelayedCompletion, ChatCompletionRequest, RelayedCompletion, fields="chat"
        ),
        f"POST {COMPLETIONS_PATH}": RouteBodies(
            RelayedCompletion, CompletionRequest, RelayedCompletion, fields="completions"
        ),
        "GET /v1/models": RouteBodies(RelayedModels),
        "GET /v1/models/{model}": RouteBodies(RelayedCard),
    }
)


def bodies_of(*, renders: bool, pools: bool = False) -> Table:
    """Of a proxy that renders requests, those for vectors and scores too if it `pools`, or of one
    that relays them all."""
    if renders:
        # Of a route in both tables the later one counts: answered here, or passed on.
        passed = {**_RELAYED, **POOLING} if pools else {**POOLING, **_RELAYED}
        return {**passed, **GENERATING, **INFORMING, **_OWN}
    return {**_RELAYED, **_OWN}
