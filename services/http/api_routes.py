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
    CLASSIFY_PATH,
    COLBERT_PATH,
    EMBEDDING_BODY,
    EMBEDDINGS_PATHS,
    POOLING_PATH,
    RERANK_BODY,
    RERANK_PATHS,
    RTP_CLASSIFY_PATH,
    RTP_RERANK_PATH,
    SCORE_BODY,
    SCORE_PATHS,
    SIMILARITY_BODY,
    SIMILARITY_PATH,
    SPARSE_PATH,
)
from protocol.responses import RESPONSES_BODY, RESPONSES_PATH
from protocol.responses_answers import DeletedResponse, InputItems, ResponseAnswer, ResponseEvent
from protocol.rtp_requests import RAW_PATH
from protocol.token_pooling import COLBERT_BODY, SPARSE_BODY, ColbertList, SparseList
from services.http.admin import LOG_LEVEL_PATH, LogLevel
from services.http.api_bodies import OBJECT, TEXT, Bodies, Table
from services.http.rtp_frontend import ALIAS_PATH, Encode, Encoded, RenderedChat
from services.http.rtp_health import CHECKED
from services.http.rtp_updates import EPLB_PATH, UPDATE_PATH, Eplb, Update
from services.http.tokens import Detokenize, Detokenized, Tokenize, Tokenized

_CHAT = Bodies(ChatCompletion, CHAT_BODY, ChatCompletionChunk, fields="chat")
_RENDERED = Bodies(RenderedChat, CHAT_BODY, fields="chat")
_RESPONSE = RESPONSES_PATH + "/{response_id}"

GENERATING: Table = MappingProxyType(
    {
        f"POST {CHAT_PATH}": _CHAT,
        f"POST {ALIAS_PATH}": _CHAT,
        f"POST {BATCH_PATH}": Bodies(ChatCompletion, BATCH_BODY, fields="chat"),
        f"POST {CHAT_PATH}/render": Bodies(GenerateBody, CHAT_BODY, fields="chat"),
        f"POST {COMPLETIONS_PATH}": Bodies(
            TextCompletion, COMPLETION_BODY, TextCompletion, fields="completions"
        ),
        f"POST {COMPLETIONS_PATH}/render": Bodies(
            list[GenerateBody], COMPLETION_BODY, fields="completions"
        ),
        f"POST {MESSAGES_PATH}": Bodies(
            MessageAnswer, MESSAGES_BODY, MessageEvent, error=MessageError, fields="messages"
        ),
        f"POST {MESSAGES_PATH}/count_tokens": Bodies(
            CountAnswer, COUNT_BODY, error=MessageError, fields="messages"
        ),
        f"POST {RESPONSES_PATH}": Bodies(
            ResponseAnswer, RESPONSES_BODY, ResponseEvent, fields="responses"
        ),
        f"GET {_RESPONSE}": Bodies(ResponseAnswer),
        f"DELETE {_RESPONSE}": Bodies(DeletedResponse),
        f"POST {_RESPONSE}/cancel": Bodies(ResponseAnswer),
        f"GET {_RESPONSE}/input_items": Bodies(InputItems),
        f"POST {RAW_PATH}": Bodies(OBJECT, OBJECT, OBJECT),
        "POST /chat/render": _RENDERED,
        "POST /v1/chat/render": _RENDERED,
        "POST /tokenizer/encode": Bodies(Encoded, Encode),
    }
)
"""Routes that need a model that generates."""
POOLING: Table = MappingProxyType(
    {
        **{
            f"POST {path}": Bodies(EmbeddingList, EMBEDDING_BODY, fields="embeddings")
            for path in EMBEDDINGS_PATHS
        },
        f"POST {POOLING_PATH}": Bodies(PooledList, EMBEDDING_BODY, fields="embeddings"),
        f"POST {CLASSIFY_PATH}": Bodies(ClassList, CLASSIFY_BODY, fields="classes"),
        f"POST {RTP_CLASSIFY_PATH}": Bodies(RtpClasses, CLASSIFY_BODY, fields="classes"),
        f"POST {RTP_RERANK_PATH}": Bodies(RtpRankedDocuments, RERANK_BODY, fields="rerank"),
        f"POST {SPARSE_PATH}": Bodies(SparseList, SPARSE_BODY, fields="sparse"),
        f"POST {COLBERT_PATH}": Bodies(ColbertList, COLBERT_BODY, fields="colbert"),
        f"POST {SIMILARITY_PATH}": Bodies(Similarity, SIMILARITY_BODY, fields="similarity"),
        **{f"POST {path}": Bodies(ScoreList, SCORE_BODY, fields="scores") for path in SCORE_PATHS},
        **{
            f"POST {path}": Bodies(RankedDocuments, RERANK_BODY, fields="rerank")
            for path in RERANK_PATHS
        },
    }
)
"""Routes that need a model of vectors or scores."""
INFORMING: Table = MappingProxyType(
    {
        "GET /v1/models": Bodies(ModelList),
        "GET /v1/models/{model}": Bodies(ModelCard),
        "GET /tokenizer_info": Bodies(OBJECT),
        "POST /tokenize": Bodies(Tokenized, Tokenize),
        "POST /detokenize": Bodies(Detokenized, Detokenize),
    }
)
"""The model and its tokenizer."""
SERVING: Table = MappingProxyType(
    {
        **{f"{method} {path}": Bodies(str, error=dict[str, str]) for method, path in CHECKED},
        "GET /ping": Bodies(unwell=True),
        "POST /ping": Bodies(unwell=True),
        "GET /ready": Bodies(unwell=True),
        "GET /load": Bodies(dict[str, float]),
        "GET /version": Bodies(dict[str, str]),
        "GET /metrics": Bodies(str, media=TEXT),
        f"POST {LOG_LEVEL_PATH}": Bodies(dict[str, str], LogLevel),
        f"POST {UPDATE_PATH}": Bodies(OBJECT, Update),
        f"POST {EPLB_PATH}": Bodies(dict[str, str], Eplb),
        "GET /integrity": Bodies(OBJECT),
    }
)
"""Routes of every server."""
