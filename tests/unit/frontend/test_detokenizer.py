"""Streamed text is the text of the whole, and costs the same for each token."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.types import RequestOutput
from services.frontend.answers.output import OutputAssembler
from services.frontend.detokenizer import BROKEN
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import Tokenizer
from tests.support.tokenizers import SPACE, byte_tokenizer, ids_of, load, sentence_tokenizer


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load("qwen3", tmp_path_factory.mktemp("tokenizers"))


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    pieces = [detokenizer.push(token) for token in ids]
    assert not any(piece.endswith(BROKEN) for piece in pieces)
    return "".join(pieces) + detokenizer.flush()


def test_streamed_text_is_the_text_of_the_whole(qwen: Tokenizer) -> None:
    tokenizer = qwen

    @settings(max_examples=130, deadline=None, database=None)
    @given(st.lists(st.integers(0, tokenizer.size + 3), max_size=40), st.booleans())
    def check(ids: list[int], skip: bool) -> None:
        whole = tokenizer.decode(ids, skip_special_tokens=skip)
        assert streamed(tokenizer, ids, skip) == whole.rstrip(BROKEN)

    check()


@given(st.text(max_size=40))
@settings(max_examples=80, deadline=None, database=None)
def test_streamed_text_survives(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert streamed(tokenizer, tokenizer.encode(text), True) == text.rstrip(BROKEN)


def test_byte_fallback_never_fails() -> None:
    tokenizer, dice = byte_tokenizer(), random.Random(0)
    for _ in range(2000):
        ids = [dice.randrange(tokenizer.size + 2) for _ in range(dice.randrange(20))]
        streamed(tokenizer, ids, True)


@pytest.mark.parametrize("kind", ["special", "unknown", "broken", "broken, of text"])
def test_tokens_without_a_text_are_not_looked_at_again(kind: str, qwen: Tokenizer) -> None:
    """As many of them as a client may ask for, on the event loop of a proxy."""
    byte = {qwen.token_bytes(token): token for token in range(qwen.size)}
    tokens = {
        "special": [qwen.id("<|im_end|>") or -1],
        "unknown": [qwen.size + 7],
        "broken": [byte[b"\x80"]],
        "broken, of text": [byte[bytes([one])] for one in b"\xe4\xbd\xa0\x80\xe4"],
    }[kind]
    ids = [*tokens * (40_000 // len(tokens)), byte[b"a"]]
    detokenizer = qwen.detokenizer(skip_special_tokens=True)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) == qwen.decode(ids)


def test_a_character_after_many_broken_bytes_is_whole(qwen: Tokenizer) -> None:
    byte = {qwen.token_bytes(token): token for token in range(qwen.size)}
    dice = random.Random(0)
    for _ in range(300):
        told = b"".join(
            dice.choice([b"\x80", b"\xff", b"\xe4\xbd", "你".encode(), "🙂".encode()])
            for _ in range(dice.randrange(120))
        )
        ids = [byte[bytes([one])] for one in told]
        detokenizer = qwen.detokenizer(skip_special_tokens=True)
        text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
        assert text.rstrip(BROKEN) == told.decode(errors="replace").rstrip(BROKEN)


@pytest.mark.parametrize("kind", ["metaspace", "strip"])
def test_an_answer_goes_on_where_its_prompt_ends(kind: str) -> None:
    tokenizer = sentence_tokenizer(kind)
    prompt, answer = ["<s>", f"{SPACE}Bern", f"{SPACE}in"], [f"{SPACE}Bern", ".", f"{SPACE}Bern"]
    before, ids = ids_of(tokenizer, *prompt), ids_of(tokenizer, *answer)
    text = tokenizer.decode(before + ids).removeprefix(tokenizer.decode(before))
    assert text == " Bern. Bern"
    assembler = OutputAssembler(OutputSpec("r", "m", False, before, n=2), tokenizer)
    for choice in (0, 1):
        assert [assembler.feed(RequestOutput("r", choice, [i])).text for i in ids] == [
            " Bern", ".", " Bern",
        ]  # fmt: skip
    # Nothing is before it.
    for bare in ([], [1]):
        first = OutputAssembler(OutputSpec("r", "m", False, bare), tokenizer)
        assert first.feed(RequestOutput("r", 0, ids)).text == "Bern. Bern"


@pytest.mark.parametrize("kind", ["metaspace", "strip"])
@pytest.mark.parametrize("skip", [False, True])
def test_an_answer_goes_on_behind_many_special_tokens(kind: str, skip: bool) -> None:
    tokenizer = sentence_tokenizer(kind)
    prompt = ids_of(tokenizer, f"{SPACE}Bern", *["<s>"] * 40)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip, after=prompt)
    assert detokenizer.push(ids_of(tokenizer, f"{SPACE}Bern")[0]) == " Bern"


@pytest.mark.parametrize("kind", ["metaspace", "strip"])
def test_what_a_prompt_ends_in_is_no_part_of_the_answer(kind: str) -> None:
    """Half a character, special tokens, tokens that the vocabulary does not have."""
    tokenizer, dice = sentence_tokenizer(kind), random.Random(0)
    for _ in range(500):
        prompt = [dice.randrange(tokenizer.size + 2) for _ in range(dice.randrange(40))]
        prompt += ids_of(tokenizer, "Bern")
        detokenizer = tokenizer.detokenizer(skip_special_tokens=True, after=prompt)
        assert detokenizer.flush() == ""
        ids = [dice.randrange(258, tokenizer.size) for _ in range(dice.randrange(1, 9))]
        pieces = [detokenizer.push(token) for token in ids]
        whole = tokenizer.decode(prompt[-1:] + ids).removeprefix("Bern")
        assert "".join(pieces) + detokenizer.flush() == whole
    half = tokenizer.detokenizer(skip_special_tokens=True, after=[*prompt, 2 + 0xC3])
    assert half.push(ids_of(tokenizer, "Bern")[0]) == "Bern"


@pytest.mark.parametrize("text", ["你" * 10, "é" * 10, "🙂" * 10, "a你é🙂" * 10, "你"])
@pytest.mark.parametrize("before", range(4))
def test_an_answer_goes_on_behind_characters_of_several_tokens(text: str, before: int) -> None:
    """The prompt's end that the decoder is given may begin within one."""
    tokenizer = sentence_tokenizer("strip")
    spelled = [f"<0x{byte:02X}>" for byte in ("a" * before + text).encode()]
    prompt = ids_of(tokenizer, "<s>", *spelled)
    detokenizer = tokenizer.detokenizer(skip_special_tokens=True, after=prompt)
    answer = [*ids_of(tokenizer, *(f"<0x{byte:02X}>" for byte in "好".encode())),
              *ids_of(tokenizer, f"{SPACE}Bern")]  # fmt: skip
    assert "".join(map(detokenizer.push, answer)) == "好 Bern"
    blank = tokenizer.detokenizer(skip_special_tokens=True, after=prompt)
    assert blank.push(answer[-1]) == " Bern"
