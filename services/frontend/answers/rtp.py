"""Answers to RTP-LLM's raw requests, whole or in pieces, and its form of errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from protocol.errors import TriptychError
from services.frontend.answers.output import Gain
from services.frontend.spec import OutputSpec

_UNKNOWN_ERROR = 514  # for statuses that RTP-LLM has no code for
_CODES = {
    400: 507, 404: 507, 413: 511, 429: 429, 499: 499, 503: 409, 504: 603,
}  # fmt: skip
_NAMES = {
    507: "ERROR_INPUT_FORMAT_ERROR", 511: "LONG_PROMPT_ERROR", 429: "TRAFFIC_LIMIT_ERROR",
    499: "CANCELLED_ERROR", 409: "CONCURRENCY_LIMIT_ERROR", 603: "GENERATE_TIMEOUT",
    514: "UNKNOWN_ERROR",
}  # fmt: skip


class _Choice:
    def __init__(self) -> None:
        self.text = ""
        self.new = ""
        self.token_ids: list[int] = []
        self.steps = 0
        self.last = 0
        self.finished = False


class RawAnswer:
    """The answer to one prompt. `several`: texts of all choices in a list, even of one."""

    def __init__(
        self,
        spec: OutputSpec,
        *,
        several: bool = False,
        incremental: bool = False,
        aux_info: bool = True,
        output_ids: bool = False,
        input_ids: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._several = several
        self._incremental = incremental
        self._aux_info = aux_info
        self._output_ids = output_ids
        self._input_ids = input_ids
        self._clock = clock
        self._begun, self._first = clock(), 0.0
        self._choices = [_Choice() for _ in range(spec.n)]

    def add(self, gain: Gain) -> None:
        """What a choice has gained."""
        self._first = self._first or self._clock()
        choice = self._choices[gain.index]
        choice.text += gain.text
        choice.new += gain.text
        choice.token_ids += gain.token_ids
        choice.steps += 1
        choice.last = len(gain.token_ids)
        choice.finished = choice.finished or gain.finish_reason is not None

    def told(self, cached_tokens: int = 0) -> dict[str, Any]:
        """All there is so far; of an incremental stream the text since the last call alone."""
        texts = [choice.new if self._incremental else choice.text for choice in self._choices]
        for choice in self._choices:
            choice.new = ""
        infos = [self._info(choice, cached_tokens) for choice in self._choices]
        answer: dict[str, Any] = {
            "response": texts if self._several else texts[0],
            "finished": all(choice.finished for choice in self._choices),
        }
        if self._several:
            answer["aux_info"] = infos if self._aux_info else []
        else:
            answer["aux_info"] = infos[0] if self._aux_info else {}
        if self._output_ids:
            answer["output_ids"] = [choice.token_ids for choice in self._choices]
        if self._input_ids:
            answer["input_ids"] = [list(self._spec.prompt_token_ids)]
        return answer

    def _info(self, choice: _Choice, cached_tokens: int) -> dict[str, Any]:
        return {
            "cost_time": round(1e3 * (self._clock() - self._begun), 3),
            "first_token_cost_time": round(1e3 * max(0.0, self._first - self._begun), 3),
            "iter_count": choice.steps,
            "input_len": len(self._spec.prompt_token_ids),
            # Fields that RTP-LLM's clients read, though prefixes are not named here.
            "prefix_len": 0,
            "output_len": len(choice.token_ids),
            "step_output_len": choice.last,
            "reuse_len": cached_tokens,
        }


def event(answer: dict[str, Any]) -> bytes:
    """One event of a raw stream, as RTP-LLM ends its lines."""
    return b"data:" + msgspec.json.encode(answer) + b"\r\n\r\n"


END = b"data:[done]\r\n\r\n"


def code_of(error: TriptychError) -> int:
    """RTP-LLM's code of an error."""
    return _CODES.get(error.status, _UNKNOWN_ERROR)


def rtp_error(error: TriptychError) -> dict[str, Any]:
    """An error in OpenAI's form, and in RTP-LLM's beside it."""
    told = error.to_openai()
    code = code_of(error)
    return {
        **told,
        "error_code": code,
        "error_code_str": f"{code}_{_NAMES[code]}",
        "message": told["error"]["message"],
    }
