"""`instructor`: answers as models of pydantic, by schema and by tools."""

from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel
from report import SITE, holds, run

plain = OpenAI(base_url=SITE["url"] + "/v1", api_key="none", max_retries=0)
ASKED: Any = {"model": SITE["model"], "messages": SITE["messages"], "temperature": 0}


class Seen(BaseModel, extra="forbid"):
    """What is there."""

    shape: Literal["circle", "square"]
    count: Literal[1, 2]


def _made(mode: Any) -> None:
    client = instructor.from_openai(plain, mode=mode)
    found = client.chat.completions.create(response_model=Seen, max_retries=0, **ASKED)
    holds(isinstance(found, Seen), repr(found))


def by_schema() -> None:
    _made(instructor.Mode.JSON_SCHEMA)


def by_tools() -> None:
    _made(instructor.Mode.TOOLS)


if __name__ == "__main__":
    run(by_schema, by_tools)
