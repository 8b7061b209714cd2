"""Requests for vectors and scores: OpenAI's embeddings, vLLM's scores, Jina's and Cohere's rerank.

As in `protocol.openai` no field is ignored in silence: `protocol.pooling_fields` has its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec

from protocol.bounds import Int64, Natural, Positive, Truncation
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, decode_chat
from protocol.pooling_fields import POOLING_FIELDS
from protocol.request_fields import RequestParser

MAX_INPUTS = 2048
_CHAT = (
    "messages", "model", "add_special_tokens", "add_generation_prompt", "continue_final_message",
    "chat_template", "chat_template_kwargs", "mm_processor_kwargs", "priority", "cache_salt",
    "request_id", "truncate_prompt_tokens", "truncation_side", "ec_transfer_params",
)  # fmt: skip


class PoolingFields(msgspec.Struct, kw_only=True):
    """What all of these requests have in common."""

    model: str | None = None
    priority: Int64 = 0
    cache_salt: str | None = None
    request_id: str | None = None


class TextFields(PoolingFields, kw_only=True):
    """`input`: a text, a list of texts, token ids, or a list of lists of them."""

    input: str | list[str | Int64 | list[Int64]] | None = None
    truncate_prompt_tokens: Truncation | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None


class EmbeddingRequest(TextFields, kw_only=True):
    """Either `input` or `messages`."""

    messages: list[Any] | None = None  # a conversation
    encoding_format: Literal["float", "base64"] = "float"  # base64: of little-endian float32
    dimensions: Positive | None = None  # elements of a vector that are kept
    normalize: bool | None = None  # whether vectors get length 1
    use_activation: bool | None = None  # as normalize, before which it goes
    add_generation_prompt: bool = False  # as in chats
    continue_final_message: bool = False  # as in chats
    chat_template: str | None = None  # instead of the model's
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the chat template
    mm_processor_kwargs: dict[str, Any] | None = None  # options of the media processor
    ec_transfer_params: dict[str, Any] | None = None  # embeddings by media hash


class ClassifyRequest(TextFields, kw_only=True):
    """vLLM's."""


class Pair(NamedTuple):
    """Two texts, and the fields of a request that they come from."""

    query: str
    document: str
    query_field: str
    document_field: str


class PairFields(PoolingFields, kw_only=True):
    instruction: str | None = None


class ScoreRequest(PairFields, kw_only=True):
    """vLLM's; each of the two sides has three names, of which one is given."""

    text_1: str | list[str] | None = None  # one text for each of the other side, or for all
    text_2: str | list[str] | None = None  # the other side
    queries: str | list[str] | None = None  # as text_1
    documents: str | list[str] | None = None  # as text_2
    data_1: str | list[str] | None = None  # as text_1
    data_2: str | list[str] | None = None  # as text_2


class Document(msgspec.Struct):
    text: str


class RerankRequest(PairFields, kw_only=True):
    """Jina's and Cohere's."""

    query: str  # what documents are compared with
    documents: list[str | Document]  # up to 2048 texts
    top_n: Natural | None = None  # how many are answered, the best first; 0: all
    top_k: Natural | None = None  # as top_n, which goes before it
    sorted: bool = True  # false: documents stay in their order
    return_documents: bool = True  # false: numbers and scores alone

    @property
    def texts(self) -> list[str]:
        return [one if isinstance(one, str) else one.text for one in self.documents]

    @property
    def pairs(self) -> list[Pair]:
        """The query with each document."""
        return [
            Pair(self.query, text, "query", f"documents[{index}]")
            for index, text in enumerate(self.texts)
        ]

    def order(self, scores: Sequence[float]) -> list[int]:
        """Numbers of the documents that are answered."""
        order = list(range(len(scores)))
        if self.sorted:
            order.sort(key=lambda index: -scores[index])
        most = self.top_n if self.top_n is not None else self.top_k
        return order[: most or None]


class SimilarityRequest(PoolingFields, kw_only=True):
    """RTP-LLM's."""

    left: list[str]
    right: list[str]


_MOST_SIMILARITIES = 1 << 14  # pairs of texts; the answer has a number for each
_EMBEDDING = RequestParser.of(EmbeddingRequest, POOLING_FIELDS, "embeddings")
_CLASSIFY = RequestParser.of(ClassifyRequest, POOLING_FIELDS, "classes")
_SCORE = RequestParser.of(ScoreRequest, POOLING_FIELDS, "scores")
_RERANK = RequestParser.of(RerankRequest, POOLING_FIELDS, "rerank")
_SIMILARITY = RequestParser.of(SimilarityRequest, POOLING_FIELDS, "similarity")

EMBEDDING_BODY = _EMBEDDING.described()
CLASSIFY_BODY = _CLASSIFY.described()
SCORE_BODY = _SCORE.described()
RERANK_BODY = _RERANK.described()
SIMILARITY_BODY = _SIMILARITY.described()
"""Bodies of the routes as /openapi.json describes them."""


def decode_embedding(data: bytes) -> tuple[EmbeddingRequest, ChatCompletionRequest | None]:
    """The request in a JSON body, and its chat if it has one; `InvalidRequest` names the field at
    fault."""
    request = _EMBEDDING.parsed(data)
    if (request.input is None) == (request.messages is None):
        raise InvalidRequest("either input or messages must be given", param="input")
    return request, None if request.messages is None else _chat(data)


def _chat(data: bytes) -> ChatCompletionRequest:
    """The body's chat, as one that is answered by a token at most."""
    body = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields: dict[str, Any] = {"add_generation_prompt": False, "max_tokens": 1, "temperature": 0}
    fields |= {name: body[name] for name in _CHAT if name in body}
    return decode_chat(msgspec.json.encode(fields))


def decode_classify(data: bytes) -> tuple[ClassifyRequest, None]:
    """As `decode_embedding`; there are no chats."""
    request = _CLASSIFY.parsed(data)
    if request.input is None:
        raise InvalidRequest("input must be given", param="input")
    return request, None


def inputs_of(request: TextFields) -> list[str | list[int]]:
    """Its texts and token lists; `InvalidRequest` unless there are 1 to 2048 of one kind."""
    given = request.input
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    kinds = set(map(type, given))
    if len(kinds) > 1:
        raise InvalidRequest("input must not mix texts and token ids", param="input")
    if kinds == {int}:
        return [cast(list[int], given)]
    check_count(given, "input", "inputs")
    return cast(list[str | list[int]], given)


def check_count(parts: Sequence[Any], param: str, what: str) -> None:
    """`InvalidRequest` for the field `param` unless it has 1 to 2048 parts."""
    if not 0 < len(parts) <= MAX_INPUTS:
        message = f"{param} must hold 1 to {MAX_INPUTS} {what}, not {len(parts)}"
        raise InvalidRequest(message, param=param)


def decode_score(data: bytes) -> tuple[ScoreRequest, list[Pair]]:
    """The request in a JSON body and its pairs; `InvalidRequest` names the field at fault."""
    request = _SCORE.parsed(data)
    first, left = _side(request, "text_1", "queries", "data_1")
    second, right = _side(request, "text_2", "documents", "data_2")
    check_count(left, first, "texts")
    check_count(right, second, "texts")
    queries, documents = numbered(left, first), numbered(right, second)
    if len(left) == 1:
        queries *= len(right)
    if len(queries) != len(right):
        message = f"{first} must hold one text, or as many as {second}, {len(right)}"
        raise InvalidRequest(message, param=first)
    return request, [
        Pair(query, document, query_field, document_field)
        for (query, query_field), (document, document_field) in zip(queries, documents, strict=True)
    ]


def numbered(texts: Sequence[str], field: str) -> list[tuple[str, str]]:
    """(a text, the field that it comes from) for each."""
    if len(texts) == 1:
        return [(texts[0], field)]
    return [(text, f"{field}[{index}]") for index, text in enumerate(texts)]


def _side(request: ScoreRequest, *names: str) -> tuple[str, list[str]]:
    """(the field that is given, its texts)."""
    given = [name for name in names if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(f"one of {', '.join(names)} must be given", param=names[0])
    texts = getattr(request, given[0])
    return given[0], [texts] if isinstance(texts, str) else texts


def decode_rerank(data: bytes) -> RerankRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    request = _RERANK.parsed(data)
    check_count(request.documents, "documents", "texts")
    return request


def decode_similarity(data: bytes) -> SimilarityRequest:
    """The request in a JSON body; `InvalidRequest` names the field at fault."""
    request = _SIMILARITY.parsed(data)
    check_count(request.left, "left", "texts")
    check_count(request.right, "right", "texts")
    if (count := len(request.left) * len(request.right)) > _MOST_SIMILARITIES:
        raise InvalidRequest(
            f"left and right make {count} pairs, the most is {_MOST_SIMILARITIES}", param="right"
        )
    return request
