"""The tokenizer of a model, and text from token ids as they come."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3
from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from protocol.errors import ConfigError, InvalidRequest
from services.frontend.detokenizer import CONTEXT, IN_CHARACTER, Detokenizer
from services.frontend.model_info import ModelInfo


class Tokenizer:
    """`tokenizers` with the added tokens that transformers would add when it loads the model.

    `special`: texts of the special tokens, which a client's text must not form. `longest`: most
    characters that one token stands for.
    """

    def __init__(self, backend: Backend) -> None:
        # tokenizer.json may have been saved with a length to cut or pad to.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self.special = frozenset(token.content for token in added.values() if token.special)
        self._skipped = frozenset(index for index, token in added.items() if token.special)
        self.longest = max(map(len, backend.get_vocab()), default=1)
        self._bytes = _byte_alphabet() if _is_byte_level(backend) else None

    @staticmethod
    def load(info: ModelInfo) -> Tokenizer:
        """`ConfigError` if the directory has no tokenizer.json or it cannot be read."""
        path = info.path / "tokenizer.json"
        backend = _read(path)
        backend.add_tokens(_missing_tokens(backend, info))
        return Tokenizer(backend)

    def serialized(self) -> str:
        """In the form of tokenizer.json, with all added tokens."""
        return self._backend.to_str()

    @cached_property
    def digest(self) -> str:
        """A name of its vocabulary: tokenizers share it only if every id is the same token."""
        vocabulary = sorted((index, token) for token, index in self._backend.get_vocab().items())
        return blake3(msgspec.json.encode(vocabulary)).hexdigest(16)

    @property
    def size(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens in it become themselves. `InvalidRequest` for what
        the tokenizer cannot take in, as megabytes of blanks."""
        with _refusing_panics():
            # The fast way leaves offsets out, which few callers need.
            encoded = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encoded[0].ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids of two texts with the tokenizer's own tokens around them, and of which text
        each is: 0 or 1. `InvalidRequest` as of `encode`."""
        with _refusing_panics():
            encoded = self._backend.encode(first, second)
        return encoded.ids, encoded.type_ids

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """As `encode`, with `char_to_token`: from a character's offset to its token's index."""
        with _refusing_panics():
            return self._backend.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """The text of an added token or a vocabulary entry as it is written in tokenizer.json."""
        return self._backend.id_to_token(token_id)

    def id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes a token stands for; they may be a part of a character."""
        token = self.token(token_id)
        if token is None:
            return b""
        if token_id not in self._added:
            if self._bytes is not None:
                return bytes(self._bytes[char] for char in token if char in self._bytes)
            # Byte fallback, as SentencePiece writes it: <0x0A>.
            if len(token) == 6 and token.startswith("<0x"):
                return bytes.fromhex(token[3:5])
        return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def detokenizer(self, *, skip_special_tokens: bool, after: Sequence[int] = ()) -> Detokenizer:
        """For tokens that follow those of `after`."""
        # What a byte-level decoder makes of a token does not depend on those before.
        before = after if self._bytes is None else ()
        if skip_special_tokens:
            # A prompt may end in any number of these, such as a picture's placeholders.
            told = (token for token in reversed(before) if token not in self._skipped)
            before = [*islice(told, CONTEXT + IN_CHARACTER)][::-1]
        skipped = self._skipped if skip_special_tokens else frozenset()
        return Detokenizer(self._backend, skipped, before)


@contextlib.contextmanager
def _refusing_panics() -> Iterator[None]:
    """A regular expression that gives up ends in a panic of Rust's, which is no `Exception`."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise InvalidRequest("this text cannot be tokenized") from None


def _read(path: Path) -> Backend:
    if not path.is_file():
        raise ConfigError(f"{path} does not exist")
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path}: {error}") from None


def _missing_tokens(backend: Backend, info: ModelInfo) -> list[AddedToken]:
    """Tokens that only tokenizer_config.json knows, in transformers' order."""
    config = info.tokenizer_config
    listed: dict[str, Any] = config.get("added_tokens_decoder") or {}
    tokens = [_added_token(entry) for _, entry in sorted(listed.items(), key=lambda e: int(e[0]))]
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    known.update(token.content for token in tokens)
    named = (config.get(name) or text for name, text in info.special_tokens.items())
    for token in map(_added_token, [*named, *_extra_tokens(config)]):
        if token.content not in known:
            known.add(token.content)
            # As transformers: a token that is named by its use is special.
            token.special = True
            tokens.append(token)
    return tokens


def _added_token(entry: str | dict[str, Any]) -> AddedToken:
    if isinstance(entry, str):
        return AddedToken(entry, special=True)
    # transformers writes the name of the class among them.
    fields = {key: value for key, value in entry.items() if key != "__type"}
    return AddedToken(fields.pop("content"), **fields)


def _extra_tokens(tokenizer_config: dict[str, Any]) -> Iterable[str | dict[str, Any]]:
    extra = tokenizer_config.get("extra_special_tokens") or tokenizer_config.get(
        "additional_special_tokens", []
    )
    return extra.values() if isinstance(extra, dict) else extra


def _is_byte_level(backend: Backend) -> bool:
    return "ByteLevel" in repr(backend.decoder)


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte in a byte-level BPE."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + n): byte for n, byte in enumerate(others)}
