"""Bodies of the routes that a rendering proxy and a worker have alike."""

from __future__ import annotations

from types import MappingProxyType

from protocol.anthropic import COUNT_BODY, MESSAGES_BODY, MESSAGES_PATH
from protocol.anthropic_answers import CountAnswer, MessageAnswer, MessageError, MessageEvent
from protocol.generate import GenerateBody
from protocol.openai import (
    BATCH_BODY,
    BATCH_PATH,
    CHAT_BODY,
    CHAT_PATH,
    COMPLETION_BODY,
    COMPLETIONS_PATH,
)
from protocol.openai_answers import (
    ChatCompletion,
    ChatCompletionChunk,
    ModelCard,
    ModelList,
    TextCompletion,
)
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
from protocol.pooling_answers import (
    ClassList,
    EmbeddingList,
    PooledList,
    RankedDocuments,
    RtpClasses,
    RtpRankedDocuments,
    ScoreList,
    Similarity,
)
from protocol.pooling_requests import (
    CLASSIFY_BODY,
    EMBEDDING_BODY,
    RERANK_BODY,
    SCORE_BODY,
    SIMILARITY_BODY,
)
from protocol.responses import RESPONSES_BODY, RESPONSES_PATH
from protocol.responses_answers import DeletedResponse, InputItems, ResponseAnswer, ResponseEvent
from protocol.rtp_requests import RAW_PATH
from protocol.token_pooling import COLBERT_BODY, SPARSE_BODY, ColbertList, SparseList
from services.http.admin import LOG_LEVEL_PATH, LogLevel
from services.http.api_bodies import OBJECT, TEXT, RouteBodies, Table
from services.http.rtp_frontend import ALIAS_PATH, Encode, Encoded, RenderedChat
from services.http.rtp_operations import CHECKED, EPLB_PATH, UPDATE_PATH, Eplb, Update
from services.http.tokens import Detokenize, Detokenized, Tokenize, Tokenized

_CHAT = RouteBodies(ChatCompletion, CHAT_BODY, ChatCompletionChunk, fields="chat")
_RENDERED = RouteBodies(RenderedChat, CHAT_BODY, fields="chat")
_RESPONSE = RESPONSES_PATH + "/{response_id}"

GENERATING: Table = MappingProxyType(
    {
        f"POST {CHAT_PATH}": _CHAT,
        f"POST {ALIAS_PATH}": _CHAT,
        f"POST {BATCH_PATH}": RouteBodies(ChatCompletion, BATCH_BODY, fields="chat"),
        f"POST {CHAT_PATH}/render": RouteBodies(GenerateBody, CHAT_BODY, fields="chat"),
        f"POST {COMPLETIONS_PATH}": RouteBodies(
            TextCompletion, COMPLETION_BODY, TextCompletion, fields="completions"
        ),
        f"POST {COMPLETIONS_PATH}/render": RouteBodies(
            list[GenerateBody], COMPLETION_BODY, fields="completions"
        ),
        f"POST {MESSAGES_PATH}": RouteBodies(
            MessageAnswer, MESSAGES_BODY, MessageEvent, error=MessageError, fields="messages"
        ),
        f"POST {MESSAGES_PATH}/count_tokens": RouteBodies(
            CountAnswer, COUNT_BODY, error=MessageError, fields="messages"
        ),
        f"POST {RESPONSES_PATH}": RouteBodies(
            ResponseAnswer, RESPONSES_BODY, ResponseEvent, fields="responses"
        ),
        f"GET {_RESPONSE}": RouteBodies(ResponseAnswer),
        f"DELETE {_RESPONSE}": RouteBodies(DeletedResponse),
        f"POST {_RESPONSE}/cancel": RouteBodies(ResponseAnswer),
        f"GET {_RESPONSE}/input_items": RouteBodies(InputItems),
        f"POST {RAW_PATH}": RouteBodies(OBJECT, OBJECT, OBJECT),
        "POST /chat/render": _RENDERED,
        "POST /v1/chat/render": _RENDERED,
        "POST /tokenizer/encode": RouteBodies(Encoded, Encode),
    }
)
"""Routes that need a model that generates."""
POOLING: Table = MappingProxyType(
    {
        **{
            f"POST {path}": RouteBodies(EmbeddingList, EMBEDDING_BODY, fields="embeddings")
            for path in EMBEDDINGS_PATHS
        },
        f"POST {POOLING_PATH}": RouteBodies(PooledList, EMBEDDING_BODY, fields="embeddings"),
        f"POST {CLASSIFY_PATH}": RouteBodies(ClassList, CLASSIFY_BODY, fields="classes"),
        f"POST {RTP_CLASSIFY_PATH}": RouteBodies(RtpClasses, CLASSIFY_BODY, fields="classes"),
        f"POST {RTP_RERANK_PATH}": RouteBodies(RtpRankedDocuments, RERANK_BODY, fields="rerank"),
        f"POST {SPARSE_PATH}": RouteBodies(SparseList, SPARSE_BODY, fields="sparse"),
        f"POST {COLBERT_PATH}": RouteBodies(ColbertList, COLBERT_BODY, fields="colbert"),
        f"POST {SIMILARITY_PATH}": RouteBodies(Similarity, SIMILARITY_BODY, fields="similarity"),
        **{
            f"POST {path}": RouteBodies(ScoreList, SCORE_BODY, fields="scores")
            for path in SCORE_PATHS
        },
        **{
            f"POST {path}": RouteBodies(RankedDocuments, RERANK_BODY, fields="rerank")
            for path in RERANK_PATHS
        },
    }
)
"""Routes that need a model of vectors or scores."""
INFORMING: Table = MappingProxyType(
    {
        "GET /v1/models": RouteBodies(ModelList),
        "GET /v1/models/{model}": RouteBodies(ModelCard),
        "GET /tokenizer_info": RouteBodies(OBJECT),
        "POST /tokenize": RouteBodies(Tokenized, Tokenize),
        "POST /detokenize": RouteBodies(Detokenized, Detokenize),
    }
)
"""The model and its tokenizer."""
SERVING: Table = MappingProxyType(
    {
        **{f"{method} {path}": RouteBodies(str, error=dict[str, str]) for method, path in CHECKED},
        "GET /ping": RouteBodies(unwell=True),
        "POST /ping": RouteBodies(unwell=True),
        "GET /ready": RouteBodies(unwell=True),
        "GET /load": RouteBodies(dict[str, float]),
        "GET /version": RouteBodies(dict[str, str]),
        "GET /metrics": RouteBodies(str, media=TEXT),
        f"POST {LOG_LEVEL_PATH}": RouteBodies(dict[str, str], LogLevel),
        f"POST {UPDATE_PATH}": RouteBodies(OBJECT, Update),
        f"POST {EPLB_PATH}": RouteBodies(dict[str, str], Eplb),
        "GET /integrity": RouteBodies(OBJECT),
    }
)
"""Routes of every server."""
