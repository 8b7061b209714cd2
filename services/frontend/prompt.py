"""A rendered chat to token ids: text tokenized as one, placeholders expanded to their spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import InvalidRequest
from services.frontend.families import Extent, Placeholder
from services.frontend.guard import Guarded
from services.frontend.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """`offsets`: index of the first placeholder token of each media item, in prompt order."""

    token_ids: list[int]
    offsets: list[int]


@dataclass(frozen=True)
class _Piece:
    """Text that is tokenized on its own. `pads`: offsets in it of the items' pad tokens."""

    text: str
    pads: tuple[int, ...]


def tokenize(
    tokenizer: Tokenizer,
    guarded: Guarded,
    placeholder: Placeholder | None,
    extents: Sequence[Extent],
    *,
    add_special_tokens: bool = False,
    param: str = "messages",
) -> Prompt:
    """Token ids of a prompt with one media item per written placeholder.

    Each item's pad token is found by its place in the text and repeated `length` times; ids are
    never searched for it. `InvalidRequest` (`param`) if the template did not write one placeholder
    per item, or if text that is no placeholder becomes a pad token.
    """
    if len(guarded.written) != len(extents):
        raise InvalidRequest(
            f"the chat template wrote {len(guarded.written)} placeholders for {len(extents)} "
            "pictures",
            param=param,
        )
    prompt = Prompt([], [])
    for index, piece in enumerate(_pieces(guarded, placeholder)):
        special = add_special_tokens and index == 0
        if piece.pads:
            encoding = tokenizer.encode_with_offsets(piece.text, add_special_tokens=special)
            ids, places = encoding.ids, [encoding.char_to_token(pad) for pad in piece.pads]
        else:
            ids, places = tokenizer.encode(piece.text, add_special_tokens=special), []
        if placeholder is not None and ids.count(placeholder.pad_id) != len(places):
            raise InvalidRequest("text must not form a media token", param=param)
        _append(prompt, ids, places, extents)
    return prompt


def _append(
    prompt: Prompt, ids: list[int], places: Sequence[int | None], extents: Sequence[Extent]
) -> None:
    """Add one piece's ids, of which those at `places` are pad tokens, to be repeated."""
    done = 0
    for place in places:
        assert place is not None
        prompt.token_ids.extend(ids[done:place])
        extent = extents[len(prompt.offsets)]
        prompt.offsets.append(len(prompt.token_ids))
        prompt.token_ids.extend(ids[place : place + 1] * extent.length)
        done = place + 1
    prompt.token_ids.extend(ids[done:])


def _pieces(guarded: Guarded, placeholder: Placeholder | None) -> list[_Piece]:
    """The text, cut where a client's special token must be broken, placeholders replaced."""
    if not guarded.cuts and not guarded.written:
        return [_Piece(guarded.text, ())]
    pieces: list[_Piece] = []
    done, text, pads = 0, "", list[int]()
    events = [(place, False) for place in guarded.written]
    for place, is_cut in sorted([*events, *((place, True) for place in guarded.cuts)]):
        text += guarded.text[done:place]
        done = place
        if is_cut or placeholder is None:
            pieces.append(_Piece(text, tuple(pads)))
            text, pads = "", []
        else:
            pads.append(len(text) + placeholder.pad_at)
            text += placeholder.text
            done += len(placeholder.written)
    return [*pieces, _Piece(text + guarded.text[done:], tuple(pads))]
