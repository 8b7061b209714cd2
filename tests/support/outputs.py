"""Outputs of an engine, and what is asked of their text."""

from typing import Any

from protocol.types import RequestOutput
from services.frontend.spec import OutputSpec


def spec(**fields: Any) -> OutputSpec:
    defaults = {"request_id": "r", "model": "m", "chat": True, "prompt_token_ids": [1, 2, 3]}
    return OutputSpec(**{**defaults, **fields})


def output(token_ids: list[int], index: int = 0, **fields: Any) -> RequestOutput:
    return RequestOutput("r", index, token_ids, **fields)


def naive_stop(
    text: str, stops: list[str], include: bool, armed_from: int = 0
) -> tuple[str, str | None]:
    """Character by character: the first stop string to be complete, the longest if several are."""
    for end in range(1, len(text) + 1):
        if end <= armed_from:
            continue
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None
