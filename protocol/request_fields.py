"""What becomes of each field of a client's request: one row a field.

The parser (`protocol.openai`) takes no field that is not in `protocol.request_table`, and those of
agents' APIs none that is not in `protocol.agent_fields`. Members of the objects within a request
have rows too (`protocol.members`). docs/api.md is made from the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from protocol.errors import InvalidRequest

Route = Literal[
    "chat", "completions", "responses", "messages", "embeddings", "scores", "rerank",
    "classes", "similarity", "sparse", "colbert",
]  # fmt: skip
State = Literal["works", "refused", "harmless"]
CHAT: tuple[Route, ...] = ("chat",)
TEXT: tuple[Route, ...] = ("completions",)
BOTH: tuple[Route, ...] = (*CHAT, *TEXT)


@dataclass(frozen=True)
class RequestField:
    """One row of the table."""

    name: str  # as the client writes it
    state: State  # refused: 400 that names it; harmless: taken, without any effect on the answer
    does: str  # a sentence for the API reference; of a refused one: what to do instead
    example: Any  # a value that is legal elsewhere
    routes: tuple[Route, ...] = BOTH  # requests that have it
    neutral: tuple[Any, ...] = ()  # values of a refused one that ask for nothing; null always does
    tokens: str = ""  # what a proxy that renders requests does otherwise than the row says
    openai: str = ""  # what one that relays them does otherwise than pass the field on

    def asks(self, value: Any) -> bool:
        """Whether `value` of a refused field wants what is not done here."""
        return value is not None and not any(
            value == idle and isinstance(value, bool) == isinstance(idle, bool)
            for idle in self.neutral
        )

    def refusal(self, inside: str = "") -> InvalidRequest:
        """`inside`: the path of the object that has it, with a dot at its end."""
        name = inside + self.name
        return InvalidRequest(
            f"{name} is not supported: {self.does}", param=name, code="unsupported_parameter"
        )


def works(name: str, does: str, example: Any, *, routes: tuple[Route, ...] = BOTH) -> RequestField:
    return RequestField(name, "works", does, example, routes)


def refused(
    name: str,
    does: str,
    example: Any,
    *neutral: Any,
    routes: tuple[Route, ...] = BOTH,
) -> RequestField:
    return RequestField(name, "refused", does, example, routes, neutral)


def harmless(
    name: str, does: str, example: Any, *, routes: tuple[Route, ...] = BOTH
) -> RequestField:
    return RequestField(name, "harmless", does, example, routes)


@dataclass(frozen=True)
class RowsOf:
    """Makes rows of one route."""

    route: Route

    def works(self, name: str, does: str, example: Any) -> RequestField:
        return works(name, does, example, routes=(self.route,))

    def refused(self, name: str, does: str, example: Any, *neutral: Any) -> RequestField:
        return refused(name, does, example, *neutral, routes=(self.route,))

    def harmless(self, name: str, does: str, example: Any) -> RequestField:
        return harmless(name, does, example, routes=(self.route,))
