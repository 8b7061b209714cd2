"""What a model that answers no text makes of its input: a vector, a score or a class, or something
of each token; and the routes that ask for it.

A pooling request is a generate request without an output: its prompt is computed, and what the
model's last layer says of the last token, or of each, is the answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from protocol.bounds import Natural, Positive
from protocol.errors import InvalidRequest

Task = Literal["embed", "score", "classify"]
Form = Literal["vector", "token_weights", "token_vectors"]
"""Of a model of vectors: one of the input, or for each token a weight or a vector."""
TASKS = ("auto", "generate", "embed", "score", "classify")
"""Values of --task."""
ROUTES: Mapping[Task, str] = MappingProxyType(
    {"embed": "/v1/embeddings", "score": "/rerank", "classify": "/classify"}
)
_DOES: Mapping[Task, str] = MappingProxyType(
    {"embed": "embeddings", "score": "scores of texts", "classify": "classes of texts"}
)
_HEADS: Mapping[Form, str] = MappingProxyType(
    {
        "token_weights": "weight for each token (sparse_linear.pt)",
        "token_vectors": "vector for each token (colbert_linear.pt)",
    }
)


class Pooler(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model answers instead of text, as its files or --task say."""

    # embed: a vector for each input; score: how well a document meets a query; classify: how likely
    # each label is
    task: Task
    width: int  # elements of an answer: of a vector, 1 for a score, one for each label
    normalize: bool = True  # vectors get length 1
    dimensions: tuple[int, ...] = ()  # to which a vector may be cut, () for any
    # tokens of the answers yes and no, between whose logits a score decides
    score_tokens: tuple[int, ...] = ()
    # whether tokens see one another in both directions: an input is computed whole, without KV
    encoder: bool = False
    pooling: Literal["last", "cls", "mean"] = "last"  # of which tokens a vector is made
    labels: tuple[str, ...] = ()  # names of the classes
    # of the head's logits, where there is one that is not the language model's
    activation: Literal["identity", "sigmoid", "softmax"] = "identity"
    forms: tuple[Form, ...] = ()  # that it answers beside vectors of inputs


class PoolingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a request wants of the model's pooler."""

    task: Task = "embed"
    dimensions: Positive | None = None  # elements of the answer: a vector's first; None for all
    normalize: bool | None = None  # whether it gets length 1, None for what the model's files say
    second: Natural = 0  # the token with which the second text of a pair begins, 0: none tells
    form: Form = "vector"

    def answer_bytes(self, tokens: int) -> int:
        """Bytes of the answer to an input of so many tokens, once `dimensions` are known. There is
        no vector of the first one, which stands for the whole input."""
        if self.form == "token_weights":
            return 4 * tokens
        each = 4 * (self.dimensions or 1)
        return each * (tokens - 1) if self.form == "token_vectors" else each


def check_task(wanted: PoolingParams | None, pooler: Pooler | None) -> None:
    """`InvalidRequest` if the model, which has `pooler`, does not do what a request wants."""
    if wanted is None:
        if pooler is not None:
            raise _refusal(f"it answers {_DOES[pooler.task]} only, at {ROUTES[pooler.task]}")
        return
    if pooler is None:
        raise _refusal(f"it generates text, and answers no {_DOES[wanted.task]}")
    if wanted.task != pooler.task:
        raise _refusal(f"it answers {_DOES[pooler.task]}, at {ROUTES[pooler.task]}")
    if wanted.form != "vector" and wanted.form not in pooler.forms:
        raise _refusal(f"it has no {_HEADS[wanted.form]}")
    check_dimensions(wanted.dimensions, pooler)


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"model: {why}", param="model", code="unsupported_task")


def check_dimensions(wanted: int | None, pooler: Pooler) -> None:
    """`InvalidRequest` if vectors cannot be cut to so many elements."""
    if wanted is None:
        return
    if wanted > pooler.width:
        said = f"at most {pooler.width}, the width of the model's vectors"
    elif pooler.dimensions and wanted not in (*pooler.dimensions, pooler.width):
        said = f"one of {', '.join(map(str, pooler.dimensions))}"
    else:
        return
    raise InvalidRequest(f"dimensions must be {said}, not {wanted}", param="dimensions")


def unpacked(data: bytes) -> list[float]:
    """float32 numbers in this machine's order, which all of ours have: little-endian. `ValueError`
    if these are no such bytes."""
    found: array[float] = array("f")
    found.frombytes(data)
    return found.tolist()


EMBEDDINGS_PATHS = ("/v1/embeddings", "/v1/embeddings/dense")
POOLING_PATH = "/pooling"
SCORE_PATHS = ("/score", "/v1/score")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
CLASSIFY_PATH = "/classify"
RTP_RERANK_PATH, RTP_CLASSIFY_PATH = "/v1/reranker", "/v1/classifier"
SIMILARITY_PATH = "/v1/embeddings/similarity"
SPARSE_PATH, COLBERT_PATH = "/v1/embeddings/sparse", "/v1/embeddings/colbert"
POOLING_PATHS = (
    *EMBEDDINGS_PATHS, POOLING_PATH, *SCORE_PATHS, *RERANK_PATHS, CLASSIFY_PATH, RTP_RERANK_PATH,
    RTP_CLASSIFY_PATH, SIMILARITY_PATH, SPARSE_PATH, COLBERT_PATH,
)  # fmt: skip
"""`/v1/embeddings/dense` and the last five are RTP-LLM's, which has answers of its own there."""
