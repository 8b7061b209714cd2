"""Texts and token lists to prompts: within the model's length, cut if that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest
from protocol.sampling_checks import check_token_ids
from protocol.types import Modality
from services.frontend.families import Placeholder
from services.frontend.prompts.guard import Guarded
from services.frontend.prompts.tokenizing import Prompt, Span, tokenize
from services.frontend.sampling import COMPLETION_MAX_TOKENS
from services.frontend.tokenizer import Tokenizer

MAX_PROMPTS = 128
OFFLOAD_CHARS = 1 << 14  # some milliseconds of tokenizing: more leaves the event loop
OFFLOAD_BYTES = 1 << 16  # of a request's JSON, likewise: some milliseconds of looking at its parts
_T = TypeVar("_T")


class PromptMaker:
    """The prompts of one model, whose `room` tokens a prompt and its answer share."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        placeholders: Mapping[Modality, Placeholder],
        *,
        room: int,
        vocab_size: int,
        answers: bool = True,
    ) -> None:
        """`answers`: a prompt leaves room for a token of an answer."""
        self._answers = answers
        self._tokenizer = tokenizer
        self._placeholders = placeholders
        self._room = room
        self._vocab_size = vocab_size

    def room_beside(self, num_tokens: int, param: str) -> int:
        """How many tokens are left for the answer. `InvalidRequest` if there are none."""
        # One more if there is no answer: the prompt may fill the model's length.
        room = self._room - num_tokens + (not self._answers)
        if room < 1:
            both = " for prompt and answer together" if self._answers else ""
            raise InvalidRequest(
                f"the prompt has {num_tokens} tokens or more, the model's limit is "
                f"{self._room}{both}",
                param=param,
                code="context_length_exceeded",
            )
        return room

    async def of_chat(
        self,
        render: Callable[[], Guarded],
        num_chars: int,
        spans: Sequence[Span],
        *,
        add_special_tokens: bool,
        size: int = 0,
    ) -> Prompt:
        """`render` writes the chat's text, which has some `num_chars` characters, or more where the
        request has more than them in its `size`, in bytes."""

        def work() -> Prompt:
            return self._tokenize(render(), spans, add_special_tokens, "messages")

        return await offloaded(work, large=num_chars > OFFLOAD_CHARS or size > OFFLOAD_BYTES)

    async def of_completion(
        self, prompt: str | list[int], param: str, *, add_special_tokens: bool
    ) -> list[int]:
        """Token ids of a text, or those given. `InvalidRequest` if they cannot be a prompt."""
        if isinstance(prompt, str):
            prompt = await self.of_text(prompt, param, add_special_tokens=add_special_tokens)
        if not prompt:
            raise InvalidRequest("the prompt is empty", param=param)
        check_token_ids(prompt, param, self._vocab_size)
        pads = {placeholder.pad_id for placeholder in self._placeholders.values()}
        if any(pad in prompt for pad in pads):
            raise InvalidRequest("a prompt must not contain media tokens", param=param)
        return prompt

    async def of_text(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text, which may be a part of a prompt. `InvalidRequest` if it has more
        than `most_chars`, or forms a media token."""
        guarded = Guarded(text, (), ())

        def work() -> Prompt:
            return self._tokenize(guarded, (), add_special_tokens, param)

        return (await offloaded(work, large=len(text) > OFFLOAD_CHARS)).token_ids

    @property
    def most_chars(self) -> int:
        """Of a text that is worth tokenizing; normalizing may make one character of several."""
        return self._room * 4 * self._tokenizer.longest

    def _tokenize(
        self, guarded: Guarded, spans: Sequence[Span], add_special_tokens: bool, param: str
    ) -> Prompt:
        # As `most_chars`, with what it would be in tokens.
        self.room_beside(len(guarded.text) // (4 * self._tokenizer.longest), param)
        return tokenize(
            self._tokenizer,
            guarded,
            self._placeholders,
            spans,
            add_special_tokens=add_special_tokens,
            param=param,
        )


async def offloaded(work: Callable[[], _T], *, large: bool) -> _T:
    """What `work` returns, which leaves the event loop where it is `large`."""
    return await asyncio.to_thread(work) if large else work()


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The four forms of a completion's prompt as a list of texts or token lists."""
    if isinstance(prompt, str):
        return [prompt]
    # A list of token ids is one prompt, however long.
    if not 0 < len(prompt) <= MAX_PROMPTS and not isinstance(next(iter(prompt), None), int):
        raise InvalidRequest(f"prompt must hold 1 to {MAX_PROMPTS} prompts", param="prompt")
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise InvalidRequest("prompt must not mix texts and token ids", param="prompt")
    if kinds == {int}:
        return [cast(list[int], prompt)]
    return cast(list[str | list[int]], prompt)


_FIELD = "truncate_prompt_tokens"


def truncated(
    request: ChatCompletionRequest | CompletionRequest, token_ids: list[int], limit: int
) -> list[int]:
    """`limit`: tokens of prompt and output together. `InvalidRequest` names the field at fault."""
    if request.truncate_prompt_tokens is None:
        if request.truncation_side is not None:
            raise InvalidRequest(f"truncation_side needs {_FIELD}", param="truncation_side")
        return token_ids
    kept = _kept(request, request.truncate_prompt_tokens, limit)
    if len(token_ids) <= kept:
        return token_ids
    return token_ids[:kept] if request.truncation_side == "right" else token_ids[-kept:]


def check_untruncated(request: ChatCompletionRequest) -> None:
    """`InvalidRequest` if the prompt, which has pictures, is to be cut."""
    if request.truncate_prompt_tokens is not None:
        raise InvalidRequest(f"{_FIELD}: a prompt with pictures is not cut", param=_FIELD)


def _kept(request: ChatCompletionRequest | CompletionRequest, wanted: int, limit: int) -> int:
    if wanted == 0 or wanted > limit:
        raise InvalidRequest(
            f"{_FIELD} is {wanted}, it must be -1 or from 1 to the model's limit of {limit}",
            param=_FIELD,
        )
    # -1: as vLLM, the longest prompt that leaves room for what is asked.
    return wanted if wanted > 0 else max(1, limit - _output(request))


def _output(request: ChatCompletionRequest | CompletionRequest) -> int:
    """Tokens that the output may have."""
    if isinstance(request, ChatCompletionRequest):
        return request.max_completion_tokens or request.max_tokens or 1
    return COMPLETION_MAX_TOKENS if request.max_tokens is None else max(1, request.max_tokens)
