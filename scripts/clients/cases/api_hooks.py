"""Hooks of schemathesis: of what it makes up, some is made answerable, and statuses are noted."""

import json
import os
from itertools import count
from pathlib import Path
from typing import Any

import schemathesis

MODEL = json.loads(os.environ["CLIENTS_SITE"])["model"]
NOTES = Path(os.environ["API_NOTES"])
TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of")
PROMPTS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
}
_turn = count()


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Few tokens, of the model that is served; of every two requests one that can be answered."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    for name in TOKENS:
        if isinstance(body.get(name), int):
            body[name] = min(body[name], 4)
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    turn = next(_turn)
    return body if turn % 2 else _answerable(body, turn // 2)


def _answerable(body: dict[str, Any], turn: int) -> dict[str, Any]:
    """The same with a text that fits the model, as a stream every other time, and with at most one
    of the other fields: all of them together always contradict each other."""
    asked = [name for name in PROMPTS if name in body]
    if not asked:
        return body
    others = sorted(name for name in body if name not in (*PROMPTS, "stream", "stream_options"))
    kept = {name: body[name] for name in others[turn % (len(others) + 1) :][:1]}
    limit = "max_output_tokens" if asked[0] == "input" else "max_tokens"
    return {**kept, limit: 4, asked[0]: PROMPTS[asked[0]], "stream": turn % 2 == 0}


@schemathesis.hook
def after_call(context: Any, case: Any, response: Any) -> None:
    kind = response.headers.get("content-type", [""])[0].partition(";")[0]
    line = f"{case.operation.label} {response.status_code} {kind}\n"
    with NOTES.open("a") as notes:
        notes.write(line)
