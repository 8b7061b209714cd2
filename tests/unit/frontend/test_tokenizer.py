"""Token ids are those of transformers; streamed text is the text of the whole."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers
from transformers import AutoTokenizer

from protocol.errors import ConfigError
from protocol.types import RequestOutput
from services.frontend.answers.output import OutputAssembler
from services.frontend.model_info import ModelInfo
from services.frontend.spec import OutputSpec
from services.frontend.tokenizer import BROKEN, Tokenizer
from tests.support.frontend_helpers import write_model
from tests.support.tiny_configs import SPECS

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
TEXTS = [
    "Hello, how are you today?",
    "<|im_start|>user\nWhat<image> is <b>this</b><|im_end|>\n <think>\n\n</think>",
    "你好，世界 🙂🎉 Übergröße\u0301 \x00 \t\r\n  ",
    "",
    "<start_of_turn>user\n\n\n<start_of_image><end_of_turn>",
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def load(family: str, root: Path) -> Tokenizer:
    return Tokenizer.load(ModelInfo.load(write_model(family, root / family)))


@pytest.mark.parametrize("family", [name for name in SPECS if name != "qwen3_next"])
def test_ids_are_those_of_transformers(family: str, root: Path) -> None:
    ours, theirs = load(family, root), AutoTokenizer.from_pretrained(root / family)
    for text in TEXTS:
        for special in (False, True):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.encode_with_offsets(text).ids == ours.encode(text)


def test_tokens_only_the_configuration_knows_are_added_as_transformers_does(root: Path) -> None:
    model = write_model("llama", root / "more")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["additional_special_tokens"] = ["<extra>", "<|eot_id|>"]
    config["mask_token"] = {"__type": "AddedToken", "content": "<mask>", "lstrip": True}
    path.write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(ModelInfo.load(model)), AutoTokenizer.from_pretrained(model)
    assert ours.encode("a <mask><extra>b") == theirs.encode(
        "a <mask><extra>b", add_special_tokens=False
    )
    assert {"<extra>", "<mask>", "<|eot_id|>"} <= ours.special


def test_listed_added_tokens_are_taken_as_listed(root: Path) -> None:
    model = write_model("llama", root / "listed")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    size = load("llama", root).size
    token = {"content": "<tool>", "lstrip": False, "normalized": False, "rstrip": False}
    config["added_tokens_decoder"] = {str(size): {**token, "single_word": False, "special": False}}
    path.write_text(json.dumps(config))
    ours, theirs = Tokenizer.load(ModelInfo.load(model)), AutoTokenizer.from_pretrained(model)
    assert ours.encode("a<tool>") == theirs.encode("a<tool>", add_special_tokens=False)
    assert ours.id("<tool>") == size and "<tool>" not in ours.special


def test_truncation_and_padding_of_the_file_do_not_apply(root: Path) -> None:
    model = write_model("llama", root / "cut")
    backend = Backend.from_file(str(model / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(model / "tokenizer.json"))
    tokenizer = Tokenizer.load(ModelInfo.load(model))
    assert len(tokenizer.encode("one two three four five six")) not in (4, 64)


def test_a_missing_or_broken_file_is_a_configuration_error(root: Path) -> None:
    model = write_model("llama", root / "broken")
    for action in (lambda p: p.write_text("{}"), Path.unlink):
        action(model / "tokenizer.json")
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            Tokenizer.load(ModelInfo.load(model))


def streamed(tokenizer: Tokenizer, ids: list[int], skip: bool) -> str:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    pieces = [detokenizer.push(token) for token in ids]
    assert not any(piece.endswith(BROKEN) for piece in pieces)
    return "".join(pieces) + detokenizer.flush()


def test_streamed_text_is_the_text_of_the_whole(root: Path) -> None:
    tokenizer = load("qwen3", root)

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


def byte_tokenizer() -> Tokenizer:
    """Byte-fallback without merges, as SentencePiece models have it."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {token: 257 + place for place, token in enumerate([SPACE, "a", SPACE + "a", "é"])}
    model = models.BPE(vocab, [(SPACE, "a")], byte_fallback=True, unk_token="<unk>")
    backend = Backend(model)
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(backend)


def test_byte_fallback_never_fails() -> None:
    tokenizer, dice = byte_tokenizer(), random.Random(0)
    for _ in range(2000):
        ids = [dice.randrange(tokenizer.size + 2) for _ in range(dice.randrange(20))]
        streamed(tokenizer, ids, True)


def sentence_tokenizer(kind: str) -> Tokenizer:
    """As of Llama 2, whose decoders take the blank before a text's first word away."""
    words = [SPACE, "\n", "Bern", f"{SPACE}Bern", f"{SPACE}in", "é", "."]
    vocab = {"<unk>": 0, "<s>": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}
    vocab |= {word: len(vocab) + place for place, word in enumerate(words)}
    backend = Backend(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    if kind == "metaspace":
        backend.decoder = decoders.Metaspace(SPACE, prepend_scheme="first")
    else:
        backend.decoder = decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


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


def ids_of(tokenizer: Tokenizer, *words: str) -> list[int]:
    return [tokenizer.id(word) or 0 for word in words]


@pytest.mark.parametrize("text", ["Hello", "é", "你好 🙂", " a b\n"])
def test_token_bytes_make_up_the_text(text: str, root: Path) -> None:
    for tokenizer in (load("qwen3", root), byte_tokenizer()):
        spelled = b"".join(map(tokenizer.token_bytes, tokenizer.encode(text)))
        assert spelled.decode() == text
    assert load("qwen3", root).token_bytes(99_999) == b""


def test_bytes_of_added_tokens_are_their_text(root: Path) -> None:
    tokenizer = load("qwen3", root)
    assert tokenizer.token_bytes(tokenizer.id("<|im_end|>") or -1) == b"<|im_end|>"


def test_the_digest_names_the_vocabulary_alone(root: Path) -> None:
    text = load("qwen2_5_vl", root).serialized()
    same, other = Backend.from_str(text), Backend.from_str(text)
    same.normalizer = normalizers.NFC()
    other.add_tokens(["<|another|>"])
    digest = Tokenizer(Backend.from_str(text)).digest
    assert Tokenizer(same).digest == digest != Tokenizer(other).digest
