"""Whether an answer in other words says what the one right answer says.

One reader per kind of question turns both sentences into sets of facts. An answer is right if its
facts are those of the right answer: none missing, none besides. An answer that a reader does not
understand is a miss, so that wrong answers do not pass for right ones.
"""

import re
from collections import Counter
from collections.abc import Callable
from types import MappingProxyType

from benchmarks.common.sentences import (
    BACKGROUND,
    COLOURS,
    DIGIT,
    NOUNS,
    NUMBERS,
    OBJECT,
    Claims,
    clauses,
    number,
)

Facts = frozenset[tuple[str, ...]]
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_PLACES = frozenset(("top", "bottom", "left", "right", "centre"))
_CITIES = ("paris", "tokyo", "rome", "london", "berlin", "madrid")
_DAYS = ("tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")  # Monday is asked for
_OPERAND = rf"\b(?:\d+|{'|'.join(NUMBERS)})\b"


def agrees(kind: str, answer: str, expected: str) -> bool:
    """Whether `answer` to a question of `kind` says the same as `expected`, the right answer. Of
    a kind that is not known, only the very sentence is right."""
    if same(answer, expected):
        return True
    # Bytes that are no text: a broken model emits the right word by chance among them. One that
    # is cut off at its token limit may end with such bytes.
    if _BROKEN in answer.rstrip(_BROKEN):
        return False
    facts = facts_of(kind, expected, expected)
    return bool(facts) and facts_of(kind, answer, expected) == facts


def facts_of(kind: str, answer: str, expected: str) -> Facts:
    """What `answer` says to the question of `kind` that `expected` answers. Empty if it says
    nothing that can be compared, as a greeting, or if `kind` is not known."""
    read = _READERS.get(kind)
    return read(answer, _asked(expected)) if read else frozenset()


def same(answer: str, expected: str) -> bool:
    """Whether two answers agree, case, spaces and a final full stop aside."""
    first, second = (" ".join(text.casefold().split()).rstrip(".") for text in (answer, expected))
    return first == second


def _asked(expected: str) -> str:
    """The thing a question is about is the first that its answer names."""
    words = (word for clause in clauses(expected, no_is_zero=True) for word in clause)
    return next((word for word in words if word in NOUNS or word == OBJECT), "")


def _described(text: str, asked: str) -> Facts:
    """(colour, noun) of everything, and (noun,) of every thing, with a colour or without."""
    claims = Claims.of(text)
    digits = [noun for noun in claims.nouns if noun.startswith("#")]
    digit = digits[0] if len(digits) == 1 else DIGIT
    pairs = {(colour, digit if noun == DIGIT else noun) for colour, noun in claims.pairs}
    nouns = {(noun,) for noun in claims.nouns - {BACKGROUND, DIGIT}}
    return frozenset(pairs | nouns | _false_counts(claims))


def _false_counts(claims: Claims) -> set[tuple[str, ...]]:
    """What the pairs of the same text contradict: "three circles, red and blue", and a thing told
    twice, as in "a red circle and a red circle"."""
    told = {noun: sum(noun == other for _, other in claims.pairs) for noun in claims.nouns}
    false = {
        (str(count.value), count.noun)
        for count in claims.counts
        if count.noun in told and not count.is_article
        if count.value != (len(count.colours) or told[count.noun])
    }
    coloured = Counter(count for count in claims.counts if count.colours)
    return false | {(str(times), count.noun) for count, times in coloured.items() if times > 1}


def _counted(text: str, asked: str) -> Facts:
    """Numbers of the asked noun: "one red circle and one blue circle" are two circles."""
    counts = Claims.of(text, no_is_zero=True).counts
    totals = {count.value for count in counts if count.noun == asked and not count.colours}
    parts = [count.value for count in counts if count.noun == asked and count.colours]
    totals |= {sum(parts)} if parts else set()
    # "2 circles, one red and one blue" are still two.
    alone = {count.value for count in counts if not count.noun} - ({1} if totals else set())
    return frozenset((str(value),) for value in totals | alone)


def _coloured(text: str, asked: str) -> Facts:
    """Colours of the asked noun, and colours that belong to none."""
    general = {(c, DIGIT if noun.startswith("#") else noun) for c, noun in Claims.of(text).pairs}
    return frozenset((colour,) for colour, noun in general if noun in (asked, ""))


def _shaped(text: str, asked: str) -> Facts:
    nouns = Claims.of(text).nouns - {BACKGROUND, DIGIT}
    return frozenset((noun,) for noun in nouns if not noun.startswith("#"))


def _digit(text: str, asked: str) -> Facts:
    """The digits that are named; ("no",) if the text says that there is none."""
    claims = Claims.of(text)
    alone = {f"#{count.value}" for count in claims.counts if not count.noun}
    named = alone | {noun for noun in claims.nouns if noun.startswith("#")}
    denied = {"no", "none"} & _words(text)
    return frozenset((word,) for word in named or ({"no"} if denied else set()))


def _placed(text: str, asked: str) -> Facts:
    """The ninth of the picture: "top centre" is "top"."""
    places = _words(text) & _PLACES
    return frozenset((place,) for place in (places - {"centre"} or places))


def _yes_or_no(text: str, asked: str) -> Facts:
    return frozenset((word,) for word in _words(text) & {"yes", "no"})


def _which_image(text: str, asked: str) -> Facts:
    ranks = {"1": "first", "2": "second", "#1": "first", "#2": "second"}
    words = {ranks.get(word, word) for word in _words(text)}
    return frozenset((word,) for word in words & {"first", "second"})


def _plain(text: str, asked: str) -> Facts:
    """Numbers, a sum's operands aside, colours, cities and days; yes or no where it comes first."""
    first = re.match(r"\W*(yes|no)\b", text.casefold())
    text = re.sub(rf"{_OPERAND}\s*(?:plus|\+|and)\s*{_OPERAND}", "", text.casefold())
    words = _words(text)
    values = {str(value) for word in words if (value := number(word)) is not None}
    named = values | words & COLOURS.union(_CITIES, _DAYS) | ({first[1]} if first else set())
    return frozenset((word,) for word in named)


def _words(text: str) -> set[str]:
    return {word for clause in clauses(text) for word in clause}


_READERS: MappingProxyType[str, Callable[[str, str], Facts]] = MappingProxyType(
    {
        "describe": _described,
        "one_of_two": _described,
        "count": _counted,
        "colour": _coloured,
        "background": _coloured,
        "shape": _shaped,
        "digit": _digit,
        "position": _placed,
        "yesno": _yes_or_no,
        "two_images": _which_image,
        "text": _plain,
    }
)
