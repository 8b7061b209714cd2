"""Texts to token ids: a chat's tokenized as one, its placeholders expanded to their spans."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from protocol.errors import InvalidRequest
from protocol.types import Modality
from protocol.vocabulary import check_token_ids
from services.frontend.families import Placeholder
from services.frontend.guard import Guarded
from services.frontend.tokenizer import Tokenizer

MAX_PROMPTS = 128
OFFLOAD_CHARS = 1 << 14  # some milliseconds of tokenizing: more leaves the event loop


class Span(NamedTuple):
    """A media item of a prompt: its kind, and as how many tokens it stands there. `before`: text
    before each of the runs of equal length that these are, if they stand apart."""

    modality: Modality
    length: int
    before: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        return max(1, len(self.before))

    def text(self, placeholder: Placeholder) -> str:
        """What stands for it before tokenizing, with the placeholder's pad once for each run."""
        if not self.before:
            return placeholder.text
        runs = (text + placeholder.inline for text in self.before)
        return "".join(runs) + placeholder.behind


@dataclass(frozen=True)
class Prompt:
    """`offsets`: index of the first placeholder token of each media item, in prompt order. `gaps`:
    for each, the tokens between its runs of placeholders."""

    token_ids: list[int]
    offsets: list[int]
    gaps: list[tuple[int, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class _Piece:
    """Text that is tokenized on its own. `pads`: offsets in it of the items' pad tokens."""

    text: str
    pads: tuple[int, ...]


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
    ) -> Prompt:
        """`render` writes the chat's text, which has some `num_chars` characters."""

        def work() -> Prompt:
            return self._tokenize(render(), spans, add_special_tokens, "messages")

        return await _offloaded(work, num_chars)

    async def of_completion(
        self, prompt: str | list[int], param: str, *, add_special_tokens: bool
    ) -> list[int]:
        """Token ids of a text, or those given. `InvalidRequest` if they cannot be a prompt."""
        if isinstance(prompt, str):
            text = Guarded(prompt, (), ())

            def work() -> Prompt:
                return self._tokenize(text, (), add_special_tokens, param)

            prompt = (await _offloaded(work, len(prompt))).token_ids
        if not prompt:
            raise InvalidRequest("the prompt is empty", param=param)
        check_token_ids(prompt, param, self._vocab_size)
        pads = {placeholder.pad_id for placeholder in self._placeholders.values()}
        if any(pad in prompt for pad in pads):
            raise InvalidRequest("a prompt must not contain media tokens", param=param)
        return prompt

    def _tokenize(
        self, guarded: Guarded, spans: Sequence[Span], add_special_tokens: bool, param: str
    ) -> Prompt:
        # Far too long to be worth tokenizing; normalizing may have made one character of several.
        self.room_beside(len(guarded.text) // (4 * self._tokenizer.longest), param)
        return tokenize(
            self._tokenizer,
            guarded,
            self._placeholders,
            spans,
            add_special_tokens=add_special_tokens,
            param=param,
        )


async def _offloaded(work: Callable[[], Prompt], num_chars: int) -> Prompt:
    return await asyncio.to_thread(work) if num_chars > OFFLOAD_CHARS else work()


def prompts_of(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The four forms of a completion's prompt as a list of texts or token lists."""
    if isinstance(prompt, str):
        return [prompt]
    if not 0 < len(prompt) <= MAX_PROMPTS and not isinstance(next(iter(prompt), None), int):
        raise InvalidRequest(f"prompt must hold 1 to {MAX_PROMPTS} prompts", param="prompt")
    ids = [part for part in prompt if isinstance(part, int)]
    if ids and len(ids) == len(prompt):
        return [ids]
    prompts = [part for part in prompt if not isinstance(part, int)]
    if ids or len({type(part) for part in prompts}) > 1:
        raise InvalidRequest("prompt must not mix texts and token ids", param="prompt")
    return prompts


def tokenize(
    tokenizer: Tokenizer,
    guarded: Guarded,
    placeholders: Mapping[Modality, Placeholder],
    spans: Sequence[Span],
    *,
    add_special_tokens: bool = False,
    param: str = "messages",
) -> Prompt:
    """Token ids of a prompt with one media item per written placeholder.

    Each item's pad token is found by its place in the text and repeated `length` times; ids are
    never searched for it. `InvalidRequest` (`param`) if the template did not write one placeholder
    per item, of its kind, or if text that is no placeholder becomes a pad token.
    """
    _check_written(guarded, placeholders, spans, param)
    prompt = Prompt([], [])
    pad_ids = {placeholder.pad_id for placeholder in placeholders.values()}
    for index, piece in enumerate(_pieces(guarded, placeholders, spans)):
        special = add_special_tokens and index == 0
        if piece.pads:
            encoding = tokenizer.encode_with_offsets(piece.text, add_special_tokens=special)
            ids, places = encoding.ids, [encoding.char_to_token(pad) for pad in piece.pads]
        else:
            ids, places = tokenizer.encode(piece.text, add_special_tokens=special), []
        if sum(ids.count(pad_id) for pad_id in pad_ids) != len(places):
            raise InvalidRequest("text must not form a media token", param=param)
        _append(prompt, ids, places, spans)
    return prompt


def _check_written(
    guarded: Guarded,
    placeholders: Mapping[Modality, Placeholder],
    spans: Sequence[Span],
    param: str,
) -> None:
    if len(guarded.written) != len(spans):
        nouns = "pictures" if all(span.modality == "image" for span in spans) else "media items"
        raise InvalidRequest(
            f"the chat template wrote {len(guarded.written)} placeholders for {len(spans)} {nouns}",
            param=param,
        )
    wanted = [placeholders[span.modality].written for span in spans]
    if guarded.tokens and list(guarded.tokens) != wanted:
        raise InvalidRequest(
            "the chat template wrote the placeholders of pictures and clips in another order than"
            " the messages have them",
            param=param,
        )


def _append(
    prompt: Prompt, ids: list[int], places: Sequence[int | None], spans: Sequence[Span]
) -> None:
    """Add one piece's ids, of which those at `places` are pad tokens, to be repeated."""
    done, left = 0, list(places)
    while left:
        span = spans[len(prompt.offsets)]
        each, starts = span.length // span.runs, list[int]()
        for place in left[: span.runs]:
            assert place is not None
            prompt.token_ids.extend(ids[done:place])
            starts.append(len(prompt.token_ids))
            prompt.token_ids.extend(ids[place : place + 1] * each)
            done = place + 1
        prompt.offsets.append(starts[0])
        prompt.gaps.append(tuple(b - a - each for a, b in pairwise(starts)))
        del left[: span.runs]
    prompt.token_ids.extend(ids[done:])


def _pieces(
    guarded: Guarded, placeholders: Mapping[Modality, Placeholder], spans: Sequence[Span]
) -> list[_Piece]:
    """The text, cut where a client's special token must be broken, and the placeholders of `spans`,
    one for each that is written, replaced."""
    if not guarded.cuts and not guarded.written:
        return [_Piece(guarded.text, ())]
    pieces: list[_Piece] = []
    done, text, pads = 0, "", list[int]()
    cut = len(guarded.written)
    events = [(place, number) for number, place in enumerate(guarded.written)]
    for place, number in sorted([*events, *((place, cut) for place in guarded.cuts)]):
        text += guarded.text[done:place]
        done = place
        if number == cut:
            pieces.append(_Piece(text, tuple(pads)))
            text, pads = "", []
        else:
            placeholder = placeholders[spans[number].modality]
            made = spans[number].text(placeholder)
            found = re.finditer(re.escape(placeholder.pad), made)
            pads.extend(len(text) + pad.start() for pad in found)
            text += made
            done += len(placeholder.written)
    return [*pieces, _Piece(text + guarded.text[done:], tuple(pads))]
