"""Write docs/api.md from the table of request fields, and docs/routes.md from the routers:
`python -m scripts.api_reference`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from protocol.agent_fields import AGENT_FIELDS
from protocol.anthropic_members import MESSAGES_MEMBERS
from protocol.chat_members import CHAT_MEMBERS
from protocol.pooling_fields import POOLING_FIELDS
from protocol.request_fields import Members, RequestField, Route, State
from protocol.request_table import FIELDS
from protocol.responses_members import RESPONSES_MEMBERS
from proxy.relay.passed_routes import OPERATED, PASSED, STORED, PassedRoute
from scripts import route_reference

PATH = Path(__file__).parents[1] / "docs" / "api.md"
_ROUTES: dict[Route, str] = {
    "chat": "chat",
    "completions": "completions",
    "responses": "responses",
    "messages": "messages",
    "embeddings": "embeddings",
    "scores": "scores",
    "rerank": "rerank",
    "classes": "classes",
    "similarity": "similarity",
    "sparse": "sparse",
    "colbert": "colbert",
}
_AGENTS: tuple[tuple[str, Route, tuple[Members, ...]], ...] = (
    ("`POST /v1/responses`", "responses", RESPONSES_MEMBERS),
    ("`POST /v1/messages` and `/v1/messages/count_tokens`", "messages", MESSAGES_MEMBERS),
)
_POOLING: tuple[tuple[str, Route], ...] = (
    ("`POST /v1/embeddings`, `/v1/embeddings/dense` and `/pooling`", "embeddings"),
    ("`POST /score` and `/v1/score`", "scores"),
    ("`POST /rerank`, `/v1/rerank`, `/v2/rerank` and `/v1/reranker`", "rerank"),
    ("`POST /classify` and `/v1/classifier`", "classes"),
    ("`POST /v1/embeddings/similarity`", "similarity"),
    ("`POST /v1/embeddings/sparse`", "sparse"),
    ("`POST /v1/embeddings/colbert`", "colbert"),
)
_SECTIONS: dict[State, tuple[str, str]] = {
    "works": ("Honoured", "What it does"),
    "refused": (
        "Refused: 400 that names the field, unless its value asks for nothing",
        "Why, and what to do instead",
    ),
    "harmless": ("Taken, without any effect on the answer", "Why"),
}
_WORDS: dict[State, str] = {"works": "honoured", "refused": "refused", "harmless": "no effect"}
_DIALECTS = " proxy, `tokens` | proxy, `openai` |"
_HEAD = """\
# Request fields

<!-- Made by `python -m scripts.api_reference` from protocol/request_table.py: do not edit. -->

What becomes of every field of `POST /v1/chat/completions` and `POST /v1/completions`, those of
OpenAI and of vLLM; further down of `/v1/responses` and `/v1/messages`, and of the routes of models
that answer vectors, scores or classes instead of text ([pooling.md](pooling.md)). No field is
ignored in silence. One that stands in none of its request's tables is refused as OpenAI does it:
400, code `unknown_parameter`, the field in `param`. `null` is as good as leaving a field out.

That is what our own workers do, and a proxy that renders requests (dialect `tokens`). A proxy that
relays requests (dialect `openai`) passes fields on as they are: our workers then do what the tables
say, those of another engine what that engine does, and their answers and refusals come back as they
are. What a proxy of either dialect does otherwise stands beside the field. By itself a relaying
proxy refuses a body that is too large or not a JSON object, a `stream` that is not true or false,
media beyond `--limit-mm-per-prompt`, and a `model` that no worker serves where there are several.

The members of objects within a request have tables too. One that stands in none is refused by its
path, as `messages[0].content[0].image_url.foo`, unless the table says that further ones reach the
chat template, or its value is `null`.

An error has OpenAI's form, `{"error": {"message", "type", "param", "code"}}`. Its code is
`invalid_type`, `invalid_value`, `integer_below_min_value`, `integer_above_max_value`,
`decimal_below_min_value`, `decimal_above_max_value`, `missing_required_parameter`,
`unknown_parameter`, `unsupported_parameter`, `context_length_exceeded` or `model_not_found` where
one of these fits. Every answer has `X-Request-Id`: the request's, or one that was drawn. Answers of
a proxy that renders have `Server-Timing`: milliseconds of each stage (`queue`, `render`, `place`,
`encode`, `prefill`, `decode`) and `total`, as far as they are known when the answer begins. Of
relayed answers only those have it whose stages the proxy notes: with `--log-requests`, while an
operator has the page open, or if the request is traced.
"""

_PASSED = """\
## Routes that a relaying proxy passes on

A proxy of the `openai` dialect passes these on to one decode worker each, as it does with chat
requests: admitted, placed, tried again elsewhere where a worker fails. A worker that answers 404 or
405 for the route is passed over for a minute; where no worker has the route the answer is 404.
No prefill worker is asked. Pictures, clips and audio of `/v1/responses`, `/v1/messages`, of batches
and of the chats of `/v1/embeddings` and `/pooling` go to encode workers first, as chats' do; the
decode worker gets the request as it is, with `ec_transfer_params` beside it, and fetches the
embeddings. So it reads what a URL names too, and must find there what the encoder has found. Where
a response goes on from a stored one (`previous_response_id`), the earlier pictures are not encoded
again: if the decode worker has dropped their embeddings and their KV, the answer is 503, and the
client sends the pictures again. Where encoders push embeddings to consumers, these routes do
without: their workers encode by themselves.

Vectors, scores and classes of Triptych's own workers are answered as the tables above say: by a
proxy that renders with workers of every role that prefills, by one that relays with those that
decode (`services.decode` or `services.pdfusion`).

Where a master knows workers of several models, a request goes to those of its `model` (a `GET`: of
the parameter `model`), and `/v1/models` lists all models, aliases and LoRA adapters.
"""
_STORED = """\
Requests that name a stored response go to the worker that answered with it, and so does one whose
`previous_response_id` names it. The proxy remembers the last 65,536 responses and whose they are.
Another one is looked for at up to 32 workers, unless the proxy has API keys: then it is 404.
A route that the worker lacks is 405 (vLLM has no `DELETE`), and a proxy with `--workers` 2 or more
answers 400 with the code `several_processes`.
"""
_OPERATED = """\
With the admin key in `X-API-Key` alone (`--admin-api-key`), and sent to every worker, or to the one
that the parameter `worker` names by its URL. The answer has each worker's status and answer; its
own status is the highest of them.
"""


def render() -> str:
    """The document."""
    sections = [
        _section(state, (row for row in FIELDS if row.state == state)) for state in _SECTIONS
    ]
    return "\n".join(
        [
            _HEAD,
            *sections,
            _members("chat requests", CHAT_MEMBERS),
            *(
                part
                for title, route, members in _AGENTS
                for part in (
                    _agents(title, _rows_of(AGENT_FIELDS, route)),
                    _members(title, members),
                )
            ),
            *(_agents(title, _rows_of(POOLING_FIELDS, route)) for title, route in _POOLING),
            _PASSED,
            *_rows(PASSED),
            "",
            _STORED,
            *_rows(STORED),
            "",
            _OPERATED,
            *_rows(OPERATED),
            "",
        ]
    )


def _rows_of(fields: Iterable[RequestField], route: Route) -> list[RequestField]:
    return [row for row in fields if route in row.routes]


def _rows(routes: Iterable[PassedRoute]) -> list[str]:
    rows = [f"| `{route.method} {route.path}` | {route.does} |" for route in routes]
    return ["| route | What it does |", "|---|---|", *rows]


def _section(state: State, rows: Iterable[RequestField]) -> str:
    title, column = _SECTIONS[state]
    dialects = state == "works"
    lines = [f"## {title}", "", f"| field | of | {column} |", "|---|---|---|"]
    if dialects:
        lines[2:] = [f"{lines[2]}{_DIALECTS}", "|---|---|---|---|---|"]
    for row in rows:
        line = f"| `{row.name}` | {_routes(row)} | {_cell(row)} |"
        lines.append(line + _dialects(row) if dialects else line)
    return "\n".join([*lines, ""])


def _agents(title: str, rows: Iterable[RequestField]) -> str:
    rows = list(rows)
    dialects = any(row.openai for row in rows)
    head, line = "| field | | What it does, or why it does nothing |", "|---|---|---|"
    lines = [f"## Fields of {title}", ""]
    lines += [head + _DIALECTS, f"{line}---|---|"] if dialects else [head, line]
    for row in rows:
        line = f"| `{row.name}` | {_WORDS[row.state]} | {_cell(row)} |"
        lines.append(line + _dialects(row) if dialects else line)
    return "\n".join([*lines, ""])


def _dialects(row: RequestField) -> str:
    """What a proxy of each dialect does."""
    return f" {row.tokens or 'the same'} | {row.openai or 'passed on'} |"


def _members(title: str, objects: Iterable[Members]) -> str:
    lines = [f"### Members of the objects in {title}", ""]
    lines += ["| object | member | | What it does, or why it does nothing |", "|---|---|---|---|"]
    for one in objects:
        place = ", ".join(f"`{path}`" for path in one.path.split(", "))
        place = place.replace(" of the type ", "` of the type `")
        lines += [
            f"| {place} | `{row.name}` | {_WORDS[row.state]} | {_cell(row)} |" for row in one.rows
        ]
        if one.further:
            lines.append(f"| {place} | any other | honoured | {one.further} |")
    return "\n".join([*lines, ""])


def _routes(row: RequestField) -> str:
    return ", ".join(_ROUTES[route] for route in row.routes)


def _cell(row: RequestField) -> str:
    return (row.does[:1].upper() + row.does[1:]).replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(render())
    route_reference.PATH.write_text(route_reference.render())
