"""What a client's cases are given, and how they report: one line of JSON for each case.

Runs in the client's own environment, which has nothing of ours.
"""

import asyncio
import base64
import inspect
import json
import os
import secrets
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

SITE: Mapping[str, Any] = json.loads(os.environ["CLIENTS_SITE"])
Case = Callable[[], Awaitable[None] | None]


def run(*cases: Case) -> None:
    """Each case, by its name; an exception is a failure, and the next case goes on."""
    for case in cases:
        error = ""
        try:
            found = case()
            if inspect.isawaitable(found):
                _finish(found)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"[:600]
            traceback.print_exc()
        print(json.dumps({"case": case.__name__, "error": error}), flush=True)


def _finish(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await work

    asyncio.run(bounded())


def same(found: object, wanted: object) -> None:
    """Raises unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def fresh(url: str) -> str:
    """The same picture in a data URL that no server has seen: with bytes behind its end."""
    head, _, data = url.partition(";base64,")
    new = base64.b64decode(data) + secrets.token_bytes(12)
    return f"{head};base64,{base64.b64encode(new).decode()}"


def holds(found: object, what: str = "") -> None:
    if not found:
        raise AssertionError(what or f"{found!r}")
