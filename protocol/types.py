"""The words of the system as types: what travels between proxy, workers and engines.

All are msgspec structs: typed JSON and msgpack, validated on decoding.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from protocol.errors import ErrorInfo

Modality = Literal["image", "video", "audio"]
FinishReason = Literal["stop", "length", "abort", "error"]
Role = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion", "frontend"]


class MMItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One media item of a prompt and the span of placeholder tokens it fills.

    `offset` and `length` count tokens of the expanded prompt; the item's embeddings have exactly
    `length` rows. `grid` is the model's own (t, h, w) in patches, () where the model has none.
    """

    mm_hash: str
    modality: Modality
    offset: int
    length: int
    grid: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.length


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to choose tokens and when to stop; names and meanings as in OpenAI's API and vLLM's.

    `seed` None means that whoever first owns the request draws one. `logprobs` is the number of
    alternatives per token, 0 for the chosen one alone, None for none. Strings in `stop` are
    matched by the frontend, `stop_token_ids` by the engine. `grammar` is what the output is held
    to, in a form of llguidance; "" for nothing.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    grammar: str = ""

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class GenerateRequest(msgspec.Struct, omit_defaults=True):
    """One request as engines see it: tokens in, tokens out.

    `emitted` maps a choice's index to the tokens already sent for it; when it is not empty,
    exactly the choices it names are continued. They count as output: for penalties, limits and
    usage. `deadline_s` is the time left when the message was sent. `priority`: lower runs first.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    mm_items: list[MMItem] = []
    emitted: dict[int, list[int]] = {}
    model: str = ""
    priority: int = 0
    deadline_s: float | None = None
    cache_salt: str = ""
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class TokenLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    rank: int


class PositionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one output position: the chosen token, then the likeliest."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: list[TokenLogprob] = []


class RequestOutput(msgspec.Struct, omit_defaults=True):
    """What one choice of one request gained in one step.

    `cached_tokens`: prompt tokens whose KV was not computed here, set on a choice's first output.
    `stop_reason`: the stop token that ended it, None for the end-of-sequence token.
    """

    request_id: str
    index: int = 0
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: ErrorInfo | None = None


class EncodeItem(msgspec.Struct, omit_defaults=True):
    """One picture to encode. Without `data` the encoder answers from its cache or not at all."""

    mm_hash: str
    modality: Modality
    length: int
    grid: tuple[int, ...] = ()
    data: bytes | None = None


class EncodeRequest(msgspec.Struct, omit_defaults=True):
    """`holder` is the id of the generate request that needs the items: their embeddings are kept
    until its worker says that it is done with them, or a lease has passed. "" if it is not known.
    """

    request_id: str
    items: list[EncodeItem]
    deadline_s: float | None = None
    holder: str = ""


class EncodeOutput(msgspec.Struct, omit_defaults=True):
    """The fate of one item: `params` is its entry for `ec_transfer_params`, or `error` is set.

    `cached` tells that no encoder run was needed. `missing` tells that the item was asked for
    without data and the cache does not hold it.
    """

    request_id: str
    mm_hash: str
    params: dict[str, Any] | None = None
    cached: bool = False
    missing: bool = False
    error: ErrorInfo | None = None
