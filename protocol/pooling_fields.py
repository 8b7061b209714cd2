"""Rows of `protocol.request_fields` for the routes that answer vectors and scores."""

from __future__ import annotations

from types import MappingProxyType

from protocol.request_fields import RequestField, Route, harmless, refused, works

_E: tuple[Route, ...] = ("embeddings",)
_S: tuple[Route, ...] = ("scores",)
_R: tuple[Route, ...] = ("rerank",)
_C: tuple[Route, ...] = ("classes",)
_M: tuple[Route, ...] = ("similarity",)
_T: tuple[Route, ...] = ("sparse", "colbert")
_ALL: tuple[Route, ...] = ("embeddings", "scores", "rerank", "classes", "similarity", *_T)
_AS_CHAT = "As of chat completions, with messages."
_TURN = MappingProxyType({"role": "user", "content": "Hi"})

WORKS = (
    works(
        "input",
        "A text, texts, token ids, or lists of token ids; up to 2048 inputs. Special tokens in a"
        " text count as such.",
        "Hi",
        routes=(*_E, *_C, *_T),
    ),
    works(
        "messages",
        "In place of input: a chat, which may hold pictures; one vector is answered.",
        [dict(_TURN)],
        routes=_E,
    ),
    works("model", "A name that is served; left out: the model that is served.", "m", routes=_ALL),
    works(
        "encoding_format", "float, or base64 of little-endian float32 numbers.", "base64", routes=_E
    ),
    works(
        "dimensions",
        "Elements of a vector that are kept; it gets length 1 after that, where it does without.",
        8,
        routes=_E,
    ),
    works(
        "normalize",
        "Whether vectors get length 1; left out: as the model's files say.",
        False,
        routes=_E,
    ),
    works("use_activation", "As normalize, before which it goes.", False, routes=_E),
    works(
        "truncate_prompt_tokens",
        "Keep so many tokens of a text, those that the tokenizer adds included; -1: as many as the"
        " model takes.",
        3,
        routes=(*_E, *_C, *_T),
    ),
    works(
        "truncation_side",
        "right keeps a text's start (if left out), left its end.",
        "left",
        routes=(*_E, *_C, *_T),
    ),
    works(
        "add_special_tokens",
        "Whether the tokenizer adds its own; left out: to texts, not to messages.",
        False,
        routes=(*_E, *_C, *_T),
    ),
    works(
        "return_decoded",
        "false: tokens are named by their ids, not by their texts.",
        False,
        routes=("sparse",),
    ),
    works("add_generation_prompt", f"{_AS_CHAT} false if left out.", True, routes=_E),
    works("continue_final_message", _AS_CHAT, True, routes=_E),
    works("chat_template", _AS_CHAT, "{{ messages[0].content }}", routes=_E),
    works("chat_template_kwargs", _AS_CHAT, {"a": 1}, routes=_E),
    works("mm_processor_kwargs", _AS_CHAT, {"max_pixels": 65536}, routes=_E),
    works("ec_transfer_params", _AS_CHAT, {}, routes=_E),
    works("text_1", "A text, or texts: one for each of text_2, or one for all.", "Hi", routes=_S),
    works("text_2", "A text, or texts.", ["Ho"], routes=_S),
    works("queries", "As text_1.", "Hi", routes=_S),
    works("documents", "As text_2.", ["Ho"], routes=_S),
    works("data_1", "As text_1.", "Hi", routes=_S),
    works("data_2", "As text_2.", ["Ho"], routes=_S),
    works("query", "A text.", "Hi", routes=_R),
    works(
        "documents", "Up to 2048 texts, or objects with a text each.", [{"text": "Ho"}], routes=_R
    ),
    works("top_n", "How many documents are answered, the best first; 0: all.", 1, routes=_R),
    works("top_k", "As top_n, which goes before it.", 1, routes=_R),
    works("sorted", "false: documents stay in their order.", False, routes=_R),
    works("left", "Texts.", ["Hi"], routes=_M),
    works("right", "Texts, each of which is compared with each of left.", ["Ho"], routes=_M),
    works(
        "return_documents", "false: the answer has their numbers and scores only.", False, routes=_R
    ),
    works(
        "instruction",
        "What a document has to do with a query, for a reranker of Qwen3's form; left out: it"
        " answers it.",
        "Find what rhymes",
        routes=(*_S, *_R),
    ),
    works("priority", "Lower runs earlier, not below --min-priority.", 1, routes=_ALL),
    works(
        "cache_salt",
        "Shares cached prefixes with requests of the same salt only.",
        "s",
        routes=_ALL,
    ),
    works("request_id", "As the header X-Request-Id, which goes before it.", "r", routes=_ALL),
)

REFUSED = (
    refused("embed_dtype", "vectors are float32.", "float16", "float32", routes=_E),
    refused("encoding_format", "numbers are JSON's.", "base64", "float", routes=_T),
    refused("left", "use /v1/embeddings/similarity, which compares vectors.", ["Hi"], routes=_T),
    refused("right", "use /v1/embeddings/similarity, which compares vectors.", ["Ho"], routes=_T),
    refused(
        "extra_configs",
        "use truncate_prompt_tokens and add_special_tokens.",
        {"tokenizer_config": {"a": 1}},
        {},
        {"tokenizer_config": {}},
        routes=_T,
    ),
    refused("endianness", "vectors are little-endian.", "big", "native", "little", routes=_E),
    refused("truncate_prompt_tokens", "send shorter texts.", 3, routes=(*_S, *_R)),
    refused("max_tokens_per_doc", "send shorter texts.", 3, routes=_R),
    refused("max_chunks_per_doc", "send shorter texts.", 3, routes=_R),
    refused("return_response", "use /v1/embeddings.", True, False, routes=_M),
    refused("normalize", "scores are as the model's files say.", True, False, routes=_R),
    refused("rank_fields", "documents have a text alone.", ["title"], ["text"], [], routes=_R),
    refused(
        "use_activation",
        "answers are as the model's files say.",
        False,
        True,
        routes=(*_S, *_R, *_C),
    ),
)

HARMLESS = (
    harmless("truncation", "A text that is too long is refused.", True, routes=_R),
    harmless("user", "The Authorization header names the caller.", "u", routes=_ALL),
    harmless("input_type", "Texts are embedded as they are.", "query", routes=_E),
)

POOLING_FIELDS: tuple[RequestField, ...] = (*WORKS, *REFUSED, *HARMLESS)
