"""Tokenizers of the kinds that there are, some without a model."""

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer
from tests.support.frontend_helpers import write_model

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def load(family: str, root: Path) -> Tokenizer:
    """That of a family's tiny model, which is written into `root`."""
    return Tokenizer.load(ModelInfo.load(write_model(family, root / family)))


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


def ids_of(tokenizer: Tokenizer, *words: str) -> list[int]:
    return [tokenizer.id(word) or 0 for word in words]
