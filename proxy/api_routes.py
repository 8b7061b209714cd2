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
from services.http.api_bodies import OBJECT, Bodies, Table
from services.http.api_routes import GENERATING, INFORMING, POOLING, SERVING


class RelayedCompletion(msgspec.Struct):
    """What workers of all engines answer; some say more."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


class RelayedCard(msgspec.Struct):
    id: str
    object: str


class RelayedModels(msgspec.Struct):
    data: list[RelayedCard]
    object: str


_OWN: Table = MappingProxyType(
    {
        **SERVING,
        "GET /live": Bodies(),
        "GET /health": Bodies(OBJECT, unwell=True),
        f"GET {page.ABOUT}": Bodies(OBJECT),
        f"GET {page.STAGES}": Bodies(OBJECT),
        f"GET {page.FLEET}": Bodies(OBJECT),
        f"GET {page.REQUESTS}": Bodies(OBJECT),
        "GET /instances": Bodies(OBJECT),
        "POST /instances": Bodies(OBJECT, NamedWorker),
        "DELETE /instances": Bodies(OBJECT, NamedWorker),
        **{
            f"{method} {path}": Bodies(OBJECT, OBJECT, optional=True)
            for path in (*WORK_PATHS, *CACHE_PATHS)
            for method in ("GET", "POST")
        },
        **{
            f"{route.method} {route.path}": Bodies(OBJECT, OBJECT, optional=True)
            for route in OPERATED
        },
    }
)


def _passed(route: PassedRoute) -> Bodies:
    return Bodies(Any, None if route.method == "GET" else OBJECT, form=route.form)


_RELAYED: Table = MappingProxyType(
    {
        **{f"{route.method} {route.path}": _passed(route) for route in PASSED},
        f"POST {MESSAGES_PATH}": Bodies(Any, MessagesRequest, Any, error=Any, fields="messages"),
        f"POST {MESSAGES_PATH}/count_tokens": Bodies(
            Any, CountRequest, error=Any, fields="messages"
        ),
        f"POST {RESPONSES_PATH}": Bodies(Any, ResponsesRequest, Any, fields="responses"),
        **{f"{route.method} {route.path}": Bodies(OBJECT) for route in STORED},
        f"POST {CHAT_PATH}": Bodies(
            RelayedCompletion, ChatCompletionRequest, RelayedCompletion, fields="chat"
        ),
        f"POST {COMPLETIONS_PATH}": Bodies(
            RelayedCompletion, CompletionRequest, RelayedCompletion, fields="completions"
        ),
        "GET /v1/models": Bodies(RelayedModels),
        "GET /v1/models/{model}": Bodies(RelayedCard),
    }
)


def bodies_of(*, renders: bool, pools: bool = False) -> Table:
    """Of a proxy that renders requests, those for vectors and scores too if it `pools`, or of one
    that relays them all."""
    if renders:
        passed = {**_RELAYED, **POOLING} if pools else {**POOLING, **_RELAYED}
        return {**passed, **GENERATING, **INFORMING, **_OWN}
    return {**_RELAYED, **_OWN}
