"""What an engine is told, and `--speculative-config`: whether it guesses tokens ahead, and how."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from connectors.config import ECConfig, KVConfig
from protocol.errors import ConfigError
from protocol.pooling import Pooler
from services.frontend.clips.limits import ClipLimits
from services.membership.config import EventsConfig

_Tokens = Annotated[int, Meta(ge=1, le=64)]


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Under the names of vLLM's object. Answers are the same as without it, token for token."""

    # ngram: what followed the last tokens before, in prompt or output; draft_model: what `model`
    # puts out; without a method the latter, if there is a model
    method: Literal["ngram", "draft_model", ""] = ""
    num_speculative_tokens: _Tokens = 4  # guessed at once for each request
    prompt_lookup_min: _Tokens = 2  # last tokens that must have stood together before
    prompt_lookup_max: _Tokens = 4  # last tokens that are looked for
    # requests of a step beyond which none are guessed for: checking takes time that they need
    disable_by_batch_size: Annotated[int, Meta(ge=1, le=65536)] = 64
    # guess less, or nothing, where the steps that were measured say that it does not pay
    adaptive: bool = True
    model: str = ""  # folder of the draft model, with the tokenizer of the large one


def parse_speculation(text: str) -> Speculation | None:
    """The flag's value, None if it is empty. `ConfigError` names what is wrong."""
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=Speculation)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--speculative-config: {error}") from None
    if not found.method:
        found = msgspec.structs.replace(found, method="draft_model" if found.model else "ngram")
    if (found.method == "draft_model") != bool(found.model):
        raise ConfigError("--speculative-config: only method draft_model takes model, and needs it")
    if found.prompt_lookup_min > found.prompt_lookup_max:
        raise ConfigError("--speculative-config: prompt_lookup_min is above prompt_lookup_max")
    return found


Part = Literal["language", "vision"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens, blocks or bytes as named; `services.worker.config` has the flags."""

    model_dir: str  # folder of configuration, tokenizer and weights
    model: str  # name of the model in content keys
    revision: str  # name of the weights in content keys
    parts: tuple[Part, ...]  # parts of the model to load
    pooler: Pooler | None = None  # what it answers instead of tokens, None if it generates
    # of weights and KV cache; auto: bfloat16 on a GPU or a CPU with instructions for it, or float32
    dtype: str = "auto"
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    enforce_eager: bool = False  # whether a GPU decodes without CUDA graphs
    fused_kernels: bool = True  # whether layers run by fused kernels where they suit
    quantization: str = ""  # int8, int4 or fp8 weights of the language model, "" for none
    weight_layout: str = "auto"  # plain, packed or auto: packed where it can be
    # of the KV cache: auto (as dtype), int8, fp8 or other names of these, see attention.kv_codes
    kv_cache_dtype: str = "auto"
    block_size: int = 16  # tokens in one KV block
    num_blocks: int = 0  # KV blocks, 0 to size the pool by bytes
    # bytes of the KV pool; 0: by `gpu_memory_utilization`, on a CPU a default
    kv_cache_bytes: int = 0
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory for weights and KV
    kv_host_bytes: int = 0  # host memory for KV blocks that the pool has no room for, 0: none
    kv_disk_bytes: int = 0  # size of the files that hold such blocks, 0: no files
    kv_disk_path: str = ""  # their folder
    max_model_len: int = 4096  # tokens of prompt and output together
    max_num_seqs: int = 64  # requests computed at once
    scheduling_policy: str = "priority"  # which request runs first: see scheduling.ranking
    max_num_batched_tokens: int = 2048  # tokens of one step
    # prompt tokens of a step in which requests decode, 0: up to `max_num_batched_tokens`
    max_prefill_beside_decode: int = 512
    # s that pictures and prompts may add to a step in which requests decode, 0: no bound
    max_decode_delay_s: float = 0.25
    speculation: Speculation | None = None  # how tokens are guessed ahead, None: not at all
    served_names: tuple[str, ...] = ()  # by which requests mean the model itself
    max_loras: int = 0  # LoRA adapters that may be loaded, 0: none
    max_lora_rank: int = 16  # largest rank of one
    lora_modules: dict[str, str] = {}  # name → folder of those loaded at the start
    max_encoder_patches: int = 16384  # patches of one encoder run
    max_media_pixels: int = 64_000_000  # pixels of the largest picture
    clips: ClipLimits = ClipLimits()  # of one clip
    clip_readers: int = 2  # clips that are read at a time, 0: FFmpeg is not used
    embedding_cache_bytes: int = 256 << 20  # bytes of the embeddings beside the engine
    prefix_caching: bool = True  # whether KV is reused
    eos_token_ids: tuple[int, ...] = ()  # tokens that end an output
    seed: int = 0  # not used: requests bring their own
    num_threads: int = 0  # CPU threads, 0 for PyTorch's default
    share_cores: bool = False  # use more while other engines of the namespace do not compute
    ec: ECConfig = ECConfig()  # connector of embeddings
    kv: KVConfig = KVConfig()  # connector of KV blocks
    events: EventsConfig | None = None  # where cache events are published, None: nowhere
    fleet_key: str = ""  # secret of the fleet, by which peers and masters are known, "" for none
    log_level: str = "info"  # least severity of the log lines
    log_format: str = "text"  # form of the log lines: text or json
