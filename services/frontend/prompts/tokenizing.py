"""One text to token ids.

It is cut where a client's special token must be broken, and its placeholders are expanded to as
many pad tokens as their media become.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from protocol.errors import InvalidRequest
from protocol.types import Modality
from services.frontend.families import Placeholder
from services.frontend.prompts.guard import Guarded
from services.frontend.tokenizer import Tokenizer


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
    # A template that drops a picture would shift all embeddings behind it.
    _check_written(guarded, placeholders, spans, param)
    prompt = Prompt([], [])
    pad_ids = {placeholder.pad_id for placeholder in placeholders.values()}
    for index, piece in enumerate(_pieces(guarded, placeholders, spans)):
        # BOS once, not at each cut.
        special = add_special_tokens and index == 0
        if piece.pads:
            encoding = tokenizer.encode_with_offsets(piece.text, add_special_tokens=special)
            ids, places = encoding.ids, [encoding.char_to_token(pad) for pad in piece.pads]
        else:
            ids, places = tokenizer.encode(piece.text, add_special_tokens=special), []
        # A vocabulary may merge plain text to a pad token: it would take an embedding's place.
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
