"""What an engine says of one request, a token at a time."""

from collections.abc import AsyncGenerator
from typing import Any

from protocol.types import RequestOutput
from services.frontend.tokenizer import Tokenizer


def outputs(tokenizer: Tokenizer, text: str, finish: Any) -> list[RequestOutput]:
    *ids, last = tokenizer.encode(text)
    before = [RequestOutput("r", 0, [token]) for token in ids]
    return [*before, RequestOutput("r", 0, [last], finish_reason=finish)]


async def steps(those: list[RequestOutput]) -> AsyncGenerator[list[RequestOutput], None]:
    for output in those:
        yield [output]
