"""What a sentence about coloured shapes claims: which colours belong to which things, and how many.

The rules know the words of `benchmarks.common.scenes` and a few more that a wrong answer may hold.
They follow word order only: a colour belongs to the next noun ("a red circle"), to the subject
after "is" ("the circle is red"), or else to the noun before it ("circles, one red and one blue").
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType

from benchmarks.common.scenes import GROUNDS, SHAPES, TONES

BACKGROUND = "background"
OBJECT = "object"  # any thing: takes a number, but no colour
DIGIT = "digit"
_OTHER_COLOURS = ("brown", "cyan", "magenta", "teal", "gold", "silver", "beige", "maroon", "navy")
_OTHER_SHAPES = ("rectangle", "oval", "ellipse", "diamond", "pentagon", "hexagon", "octagon")
COLOURS = frozenset((*TONES, *GROUNDS, *_OTHER_COLOURS))
NOUNS = frozenset((*SHAPES, *_OTHER_SHAPES, "heart", "arrow", "line", DIGIT, BACKGROUND))
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
)  # fmt: skip
_SYNONYMS = MappingProxyType(
    {
        "gray": "grey", "violet": "purple", "disc": "circle", "disk": "circle", "plus": "cross",
        "center": "centre", "middle": "centre", "upper": "top", "lower": "bottom",
        "backdrop": BACKGROUND, "canvas": BACKGROUND, "surface": BACKGROUND,
        "shape": OBJECT, "thing": OBJECT, "item": OBJECT, "number": DIGIT, "numeral": DIGIT,
        "1st": "first", "2nd": "second", "an": "a",
    }
)  # fmt: skip
_NEGATIONS = frozenset(("no", "not", "none", "never", "neither", "nor", "without"))
_LINKS = frozenset(("is", "are", "was", "were", "appears", "looks"))
_PHRASE_STARTS = frozenset(("a", "the", "this", "that", "its"))
# "a red one", "the other one": a pronoun, not a number.
_BEFORE_PRONOUN = (
    COLOURS | _PHRASE_STARTS | {"first", "second", "other", "another", "each", "every"}
)

_NUMBER = rf"(?:\d+|{'|'.join(NUMBERS)})"
_REWRITES = (
    (r"[’`]", "'"),
    (r"n't\b", " not"),
    (r"\bcannot\b", "can not"),
    (r"\bnot\b((?: \w+){0,2}) any\b", r"\1 no"),
    (r"(?m)^[ \t]*\d+[.)][ \t]+(?=\S)", ""),  # the number of a list's line
    (r"\b\w+[- ](?:pointed|sided)\b", ""),  # "a five-pointed star" is one star
    (rf"\b(?:digit|number|numeral)[^\w.,;]{{1,3}}({_NUMBER})\b", r" #\1 "),
)


def clauses(text: str, no_is_zero: bool = False) -> Iterator[list[str]]:
    """Words of each clause of `text`, synonyms and plurals of known words replaced. A clause ends
    with its first negation: what is denied is not claimed. With `no_is_zero`, "no" is the number
    zero instead. The digit 7 of a picture is "#7"."""
    text = text.casefold()
    rewrites = (*_REWRITES, (r"\b(?:no|none)\b", "zero")) if no_is_zero else _REWRITES
    for pattern, replacement in rewrites:
        text = re.sub(pattern, replacement, text)
    for clause in re.split(r"[.,;!?()\n]|\bbut\b", text):
        words = [_canonical(word) for word in re.findall(r"#?[a-z0-9]+", clause)]
        denied = next((i for i, word in enumerate(words) if word in _NEGATIONS), len(words))
        if words:
            yield words[: denied + 1]


def number(word: str) -> int | None:
    """The value of "7" or "seven", None for any other word."""
    if word in NUMBERS:
        return NUMBERS.index(word)
    return int(word) if word.isdigit() and len(word) < 4 else None


def _canonical(word: str) -> str:
    if word.startswith("#"):
        value = number(word[1:])
        return word if value is None else f"#{value}"
    for form in (word, word.removesuffix("s"), word.removesuffix("es")):
        known = _SYNONYMS.get(form, form)
        if known in COLOURS | NOUNS | {OBJECT}:
            return known
    return _SYNONYMS.get(word, word)


@dataclass(frozen=True)
class Count:
    """A number before a noun ("" if it stands alone), and the colours between them."""

    value: int
    noun: str
    colours: tuple[str, ...] = ()
    is_article: bool = False  # "a circle": one of perhaps several


@dataclass
class Claims:
    """What a text claims. `pairs` are (colour, noun), noun "" where the colour stands alone."""

    pairs: set[tuple[str, str]] = field(default_factory=set)
    nouns: set[str] = field(default_factory=set)
    counts: list[Count] = field(default_factory=list)
    _last: str = ""  # the last noun of the text
    _here: str = ""  # the noun that a colour behind it would belong to, in this clause
    _subject: str = ""  # the noun that "is" speaks of
    _linked: bool = False  # behind "is"
    _colours: list[str] = field(default_factory=list)  # before their noun
    _number: str = ""  # before its noun

    @staticmethod
    def of(text: str, no_is_zero: bool = False) -> "Claims":
        """The claims of all `clauses` of `text`."""
        claims = Claims()
        for words in clauses(text, no_is_zero):
            claims._clause(words)
        return claims

    def _clause(self, words: list[str]) -> None:
        self._here = self._subject = ""
        for before, word in zip(("", *words), words, strict=False):
            if word != "one" or before not in _BEFORE_PRONOUN:
                self._word(word)
        self._end_phrase(self._last)

    def _word(self, word: str) -> None:
        if word in COLOURS:
            self._colour(word)
        elif word in NOUNS or word.startswith("#"):
            self._noun(word)
        elif word == OBJECT:
            self._count(OBJECT)
        elif word in ("of", "few"):  # "a pair of circles", "a few circles"
            self._number = ""
        elif word == "and":
            self._subject, self._linked = "", False
        elif word in _LINKS:
            self._linked = bool(self._subject)
        elif word in ("on", "against"):  # "on white": there need not be a noun
            self._end_phrase(self._last)
            self._here = BACKGROUND
        elif word in _PHRASE_STARTS:
            self._end_phrase()
            self._number = "a" if word == "a" else ""
        elif number(word) is not None:
            self._end_number()
            self._number = word

    def _colour(self, colour: str) -> None:
        if self._linked:
            self.pairs.add((colour, self._subject))
        else:
            self._colours.append(colour)

    def _noun(self, noun: str) -> None:
        self._count(noun)
        self.nouns.add(noun)
        self._here = noun
        self._last = noun if noun != BACKGROUND else self._last
        self._subject = self._subject or noun
        self._linked = False
        self._give_colours(noun)

    def _count(self, noun: str) -> None:
        word, self._number = self._number, ""
        value = 1 if word == "a" else number(word)
        if value is not None:
            self.counts.append(Count(value, noun, tuple(self._colours), word == "a"))

    def _give_colours(self, noun: str) -> None:
        self.pairs.update((colour, noun) for colour in self._colours)
        self._colours.clear()

    def _end_phrase(self, otherwise: str | None = None) -> None:
        """Colours that wait go to the noun before them, in this clause or `otherwise`."""
        self._end_number()
        if self._here or otherwise is not None:
            self._give_colours(self._here or otherwise or "")

    def _end_number(self) -> None:
        """A number that no noun followed stands alone."""
        self._linked = False
        word, self._number = self._number, ""
        if (value := number(word)) is None:
            return
        self.counts.append(Count(value, ""))
        if word.isdigit() and value < 10:  # perhaps a digit of the picture: "a red 7"
            self._noun(f"#{value}")
