"""How many tokens a text has, and random texts of a wanted length."""

import random
from pathlib import Path
from typing import Protocol

import aiohttp
import msgspec
from tokenizers import Tokenizer

_TEXT = (
    "time year people way day man thing woman life child world school state family student group"
    " country problem hand part place case week company system program question work number night"
    " point home water room mother area money story fact month lot right study book eye job word"
    " business issue side kind head house service friend father power hour game line end member"
    " law car city community name president team minute idea body information back parent face"
    " others level office door health person art war history party result change morning reason"
)
WORDS = tuple(_TEXT.split())
LETTERS = "aIOxvkzq"
ROUNDS = 12


class TokenCounter(Protocol):
    """Counts the tokens of a text, special tokens aside; `name` says how, for the report."""

    name: str

    async def count(self, text: str) -> int:
        """Tokens of `text`."""
        ...


class LocalCounter:
    """Counts with a tokenizer.json on this machine."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._tokenizer = Tokenizer.from_file(str(path))

    async def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))


class ServerCounter:
    """Counts with the server's `/tokenize`."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.name = url
        self._session = session
        self._model = model

    async def count(self, text: str) -> int:
        """Tokens of `text`. Raises aiohttp.ClientError or msgspec.DecodeError."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        async with self._session.post(self.name, json=body) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=_Tokenized).count


class WordCounter:
    """Takes a word for a token, where nothing better is at hand."""

    name = "words (no tokenizer found: prompt lengths are approximate)"

    async def count(self, text: str) -> int:
        """Words of `text`."""
        return len(text.split())


class _Tokenized(msgspec.Struct):
    count: int


def tokenizer_file(*places: str | None) -> Path | None:
    """The first of `places`, directories or files, that holds a tokenizer.json."""
    for place in filter(None, places):
        path = Path(place)
        path = path / "tokenizer.json" if path.is_dir() else path
        if path.name.endswith(".json") and path.is_file():
            return path
    return None


async def find_counter(
    session: aiohttp.ClientSession, base_url: str, model: str, *places: str | None
) -> TokenCounter:
    """A tokenizer of `places`, else the server's, else word counts."""
    if (path := tokenizer_file(*places)) is not None:
        return LocalCounter(path)
    server = ServerCounter(session, f"{base_url}/tokenize", model)
    try:
        await server.count("hello")
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return WordCounter()
    return server


async def random_text(counter: TokenCounter, length: int, rng: random.Random) -> tuple[str, int]:
    """Random words that make `length` tokens, and the tokens they make: a few tokenizers allow
    no text of exactly that length."""
    words = rng.choices(WORDS, k=length)
    best, best_count = "", 0
    for _ in range(ROUNDS):
        text = " ".join(words)
        count = await counter.count(text)
        if abs(count - length) < abs(best_count - length):
            best, best_count = text, count
        if count == length:
            break
        words = _resized(words, count, length, rng)
    return best, best_count


def _resized(words: list[str], count: int, length: int, rng: random.Random) -> list[str]:
    if count > length:
        surplus = max(1, (count - length) * len(words) // count)
        return words[: len(words) - surplus]
    return words + rng.choices(LETTERS, k=length - count)
