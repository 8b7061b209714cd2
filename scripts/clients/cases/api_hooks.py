"""Hooks of schemathesis: of what it makes up, some is made answerable, and statuses are noted."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import schemathesis

SITE = json.loads(os.environ["CLIENTS_SITE"])
NOTES = Path(os.environ["API_NOTES"])
TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of")
PLAIN: dict[str, dict[str, Any]] = SITE["plain"]
"""By path, a request that is answered."""
_turn = count()


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Few tokens, of the model that is served; of every two requests one that can be answered."""
    if not isinstance(body, dict):
        return body
    body, plain = dict(body), PLAIN.get(context.operation.path)
    for name in TOKENS:
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 4)
    if isinstance(body.get("model"), str):
        body["model"] = (plain or SITE)["model"]
    turn = next(_turn)
    if plain is None or turn % 2:
        return body
    body = dict(_answerable(body, plain, turn // 2))
    if context.operation.path in SITE["streamed"]:
        body["stream"] = turn % 4 == 0
    return body


def _answerable(body: dict[str, Any], plain: dict[str, Any], turn: int) -> dict[str, Any]:
    """A plain request with at most one of the other fields: all of them together always contradict
    each other."""
    if turn % 3 == 0:
        return plain  # of a route whose fields are not described all others are unknown
    others = sorted(name for name in body if name not in (*plain, "stream", "stream_options"))
    kept = {name: body[name] for name in others[turn % (len(others) + 1) :][:1]}
    return {**kept, **plain}


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    kind = response.headers.get("content-type", [""])[0].partition(";")[0]
    line = f"{case.operation.label} {response.status_code} {kind}\n"
    with NOTES.open("a") as notes:
        notes.write(line)
