"""Bodies that ask for vectors, scores and classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.soak.stack import MODEL
from protocol.pooling import (
    CLASSIFY_PATH,
    COLBERT_PATH,
    EMBEDDINGS_PATHS,
    POOLING_PATH,
    RERANK_PATHS,
    RTP_CLASSIFY_PATH,
    RTP_RERANK_PATH,
    SCORE_PATHS,
    SIMILARITY_PATH,
    SPARSE_PATH,
)

Json = dict[str, Any]


def _embeddings() -> list[Json]:
    base: Json = {"model": MODEL, "input": "Hello"}
    return [
        base, {**base, "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
        {**base, "input": [1, 2, 3], "normalize": True}, {**base, "input": [[1, 2], [3]]},
        {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "priority": 1},
        {**base, "truncate_prompt_tokens": 2, "truncation_side": "left", "cache_salt": "s"},
    ]  # fmt: skip


def _scores() -> list[Json]:
    return [
        {"model": MODEL, "text_1": "a", "text_2": ["b", "c"], "instruction": "i"},
        {"model": MODEL, "queries": ["a", "b"], "documents": ["c", "d"]},
        {"model": MODEL, "data_1": "a", "data_2": "b"},
    ]


def _ranks() -> list[Json]:
    base: Json = {"model": MODEL, "query": "a", "documents": ["b", {"text": "c"}]}
    return [base, {**base, "top_n": 1, "sorted": False, "return_documents": False}]


def _of_tokens() -> list[Json]:
    base: Json = {"model": MODEL, "input": ["a", "b"]}
    return [base, {**base, "input": [1, 2, 3], "truncate_prompt_tokens": 2}]


def pooling() -> Mapping[str, list[Json]]:
    """By path."""
    classes: list[Json] = [{"model": MODEL, "input": ["a", "b"]}]
    similar: Json = {"model": MODEL, "left": ["a"], "right": ["b", "c"]}
    cohere: Json = {
        "model": MODEL, "texts": ["a"], "input_type": "search_query", "embedding_types": ["float"]
    }  # fmt: skip
    return {
        **{path: _embeddings() for path in (*EMBEDDINGS_PATHS, POOLING_PATH)},
        **{path: _scores() for path in SCORE_PATHS},
        **{path: _ranks() for path in (*RERANK_PATHS, RTP_RERANK_PATH)},
        CLASSIFY_PATH: classes, RTP_CLASSIFY_PATH: classes,
        SIMILARITY_PATH: [similar], "/v2/embed": [cohere], COLBERT_PATH: _of_tokens(),
        SPARSE_PATH: [*_of_tokens(), {"model": MODEL, "input": "a", "return_decoded": False}],
    }  # fmt: skip
