"""What an engine says of one request, some tokens at a time."""

from collections.abc import AsyncGenerator
from typing import Any

from protocol.types import RequestOutput
from services.frontend.tokenizer import Tokenizer

TEXT_AMONG_CALLS = """I look.
<tool_call>
{"name": "f", "arguments": {"n": 1}}
</tool_call>
Again.
<tool_call>
{"name": "f", "arguments": {"n": 2}}
</tool_call>"""


def outputs(tokenizer: Tokenizer, text: str, finish: Any, each: int = 1) -> list[RequestOutput]:
    """`each`: tokens of an output."""
    ids = tokenizer.encode(text)
    parts = [ids[start : start + each] for start in range(0, len(ids), each)]
    *before, last = (RequestOutput("r", 0, part) for part in parts)
    return [*before, RequestOutput("r", 0, last.token_ids, finish_reason=finish)]


async def steps(those: list[RequestOutput]) -> AsyncGenerator[list[RequestOutput], None]:
    for output in those:
        yield [output]
