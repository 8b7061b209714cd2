"""The words of the system as types: what travels between proxy, workers and engines.

All are msgspec structs: typed JSON and msgpack, validated on decoding.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.bounds import (
    MAX_SHOWN_TOKENS,
    Alternatives,
    Beams,
    Bias,
    Choices,
    Int64,
    LengthPenalty,
    MinP,
    NamedTokens,
    Natural,
    Penalty,
    Positive,
    Rate,
    RepetitionPenalty,
    Seconds,
    Temperature,
    TopK,
    TopP,
)
from protocol.errors import ErrorInfo
from protocol.pooling import PoolingParams

Modality = Literal["image", "video", "audio"]
FinishReason = Literal["stop", "length", "abort", "error"]
GREEDY_BELOW = 1e-5  # a lower temperature would only overflow
Role = Literal["encode", "prefill", "decode", "prefill_decode", "pdfusion", "frontend"]


class FrameSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which frames of a clip are taken, evenly over its length: `fps` a second, but `min_frames`
    to `max_frames` in all; or `num_frames` in all, where that is not None."""

    fps: Rate = 2.0
    min_frames: Positive = 4
    max_frames: Positive = 768
    num_frames: Positive | None = None


class MMItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One media item of a prompt and the span of placeholder tokens it fills."""

    mm_hash: str  # digest of bytes, processor and weights: the name of its embeddings
    modality: Modality  # image, video or audio
    offset: Natural  # of its first placeholder, in tokens of the expanded prompt
    length: Natural  # placeholders, as many as its embeddings have rows
    grid: tuple[Positive, ...] = ()  # the model's own (t, h, w) in patches, () where it has none
    # (least, most) area in pixels to resize it to, None for the model's own
    pixels: tuple[Positive, Positive] | None = None
    frames: FrameSampling | None = None  # of a clip: which are taken
    seconds_per_grid: Seconds = 0.0  # of a clip: from one of the grid's t to the next
    # of a clip whose t stand apart, tokens of text between each and the next; else ()
    gaps: tuple[Natural, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.length + sum(self.gaps)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(first, past the last) of each run of placeholder tokens; all have the same length."""
        each, start, runs = (
            self.length // (len(self.gaps) + 1),
            self.offset,
            list[tuple[int, int]](),
        )
        for gap in (*self.gaps, 0):
            runs.append((start, start + each))
            start += each + gap
        return runs


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to choose tokens and when to stop; names and meanings as in OpenAI's API and vLLM's."""

    max_tokens: Positive = 16  # output tokens at most
    min_tokens: Natural = 0  # no stop before so many output tokens
    n: Choices = 1  # choices to generate
    temperature: Temperature = 1.0  # 0 for greedy
    top_p: TopP = 1.0  # probability mass to draw from, 1 for all
    top_k: TopK = 0  # likeliest tokens to draw from, 0 for all
    min_p: MinP = 0.0  # least probability relative to the likeliest token
    seed: Int64 | None = None  # None: the first owner of the request draws one
    presence_penalty: Penalty = 0.0  # subtracted once from tokens of the output
    frequency_penalty: Penalty = 0.0  # subtracted for each time in the output
    repetition_penalty: RepetitionPenalty = (
        1.0  # divides logits of tokens of prompt and output, 1 for none
    )
    logit_bias: dict[Int64, Bias] = {}  # token id → added to its logit
    allowed_token_ids: tuple[Int64, ...] = ()  # the only tokens of the output, () for all
    # runs of tokens that the output does not have one after the other
    bad_words: tuple[tuple[Int64, ...], ...] = ()
    stop: tuple[str, ...] = ()  # strings that end the text; the frontend matches them
    stop_token_ids: tuple[Int64, ...] = ()  # tokens that end the output; the engine matches them
    ignore_eos: bool = False  # go on past the end-of-sequence token
    # alternatives shown per token, 0 for the chosen one alone, None for none
    logprobs: Alternatives | None = None
    logprob_token_ids: NamedTokens = ()  # further tokens shown beside these alternatives
    # alternatives shown per token of the prompt, as `logprobs`
    prompt_logprobs: Alternatives | None = None
    skip_special_tokens: bool = True  # leave special tokens out of the text
    include_stop_str_in_output: bool = False  # show the stop string that ended the text
    beam_width: Beams = 0  # sequences of a beam search, of which the n best are answered; 0: none
    length_penalty: LengthPenalty = 1.0  # beams rank by total log-probability / length ** this
    # True: end with as many ended beams as there are; False: when none looks like getting better;
    # "never": when none can
    early_stopping: bool | Literal["never"] = False
    grammar: str = ""  # llguidance grammar that the output must match, "" for none

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


class GenerateRequest(msgspec.Struct, omit_defaults=True):
    """One request as engines see it: tokens in, tokens out.

    When `emitted` is not empty, exactly the choices it names are continued; its tokens count as
    output: for penalties, limits and usage.
    """

    request_id: str  # unique within a worker
    token_ids: list[int]  # the prompt, placeholders of media expanded
    sampling: SamplingParams  # how to choose tokens and when to stop
    mm_items: list[MMItem] = []  # media of the prompt, in order of their offsets
    emitted: dict[int, list[int]] = {}  # choice index → tokens that the client has already
    model: str = ""  # name of the model or a LoRA adapter; empty: the worker's own model
    # weights that the adapter must have, "" for any: KV of one is nothing to another
    adapter_revision: str = ""
    priority: Int64 = 0  # lower runs first
    # seconds left when the message was sent, None for no deadline
    deadline_s: Seconds | None = None
    cache_salt: str = ""  # keeps the KV of tenants apart, part of every block key
    # handle of KV on another worker, or a request to keep it (`protocol.refs`)
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None  # mm_hash → handle of its embeddings
    pooling: PoolingParams | None = None  # what is wanted in place of tokens, None for tokens

    @property
    def choices(self) -> set[int]:
        """Indices of those that are to be generated."""
        return set(self.emitted) or set(range(self.sampling.n))


class TokenLogprob(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float
    rank: Natural


class PositionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities at one output position: the chosen token, then the likeliest."""

    token_id: int
    logprob: float
    rank: Natural
    top_logprobs: Annotated[list[TokenLogprob], Meta(max_length=MAX_SHOWN_TOKENS)] = []


class RequestOutput(msgspec.Struct, omit_defaults=True):
    """What one choice of one request gained in one step."""

    request_id: str  # as in the request
    index: int = 0  # number of the choice
    token_ids: list[int] = []  # tokens gained
    logprobs: list[PositionLogprobs] | None = None  # one per token, None if not asked for
    finish_reason: FinishReason | None = None  # None while the choice goes on
    # stop token or string that ended it, None for the end-of-sequence token
    stop_reason: int | str | None = None
    # prompt tokens whose KV was not computed here; on the first output only
    cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None  # handle of the KV kept for a decode worker
    error: ErrorInfo | None = None  # why the choice failed
    # of the prompt's tokens but the first; with the request's first output, if asked for
    prompt_logprobs: list[PositionLogprobs] | None = None
    pooled: bytes = b""  # float32: what a pooling request is answered, see `protocol.pooling`


class EncodeItem(msgspec.Struct, omit_defaults=True):
    """One picture or clip to encode. Without `data` the encoder answers from its cache or not at
    all."""

    mm_hash: str  # as in `MMItem`
    modality: Modality  # as in `MMItem`
    length: Natural  # rows of its embeddings
    grid: Annotated[tuple[Positive, ...], Meta(max_length=8)] = ()  # as in `MMItem`
    data: bytes | None = None  # the file; None: only what is cached is wanted
    pixels: tuple[Positive, Positive] | None = None  # as in `MMItem`
    frames: FrameSampling | None = None  # as in `MMItem`


class EncodeRequest(msgspec.Struct, omit_defaults=True):
    """`holder` is the id of the generate request that needs the items: their embeddings are kept
    until its worker says that it is done with them, or a lease has passed. "" if it is not known.
    """

    request_id: str
    items: Annotated[list[EncodeItem], Meta(max_length=4096)]
    deadline_s: Seconds | None = None
    holder: str = ""


class EncodeOutput(msgspec.Struct, omit_defaults=True):
    """The fate of one item: `params` is its entry for `ec_transfer_params`, or `error` is set.

    `cached` tells that no encoder run was needed. `missing` tells that the item was asked for
    without data and the cache does not hold it.
    """

    request_id: str  # of the request that the item came in
    mm_hash: str  # name of the item
    params: dict[str, Any] | None = None
    cached: bool = False
    missing: bool = False
    error: ErrorInfo | None = None
