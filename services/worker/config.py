"""What a worker is told: flags named as vLLM's, environment, file."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.settings import option
from services.frontend.options import FrontendOptions


@dataclass(frozen=True)
class WorkerConfig(FrontendOptions):
    """Resolved once at start. Sizes are tokens unless the name says bytes; times are seconds."""

    revision: str = option("", "name of the weights; found from the files if empty")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on, 0 for any free one")
    dtype: str = option(
        "auto", "weights and cache", choices=("auto", "float32", "float16", "bfloat16")
    )
    device: str = option("auto", "cpu, cuda or cuda:N; a GPU if there is one")
    block_size: int = option(16, "tokens of a KV block")
    num_gpu_blocks_override: int = option(0, "KV blocks, 0 to size by memory")
    kv_cache_memory_bytes: int = option(0, "bytes of the KV cache, 0 for the default")
    gpu_memory_utilization: float = option(0.9, "share of a GPU's memory to use")
    max_num_seqs: int = option(64, "requests that run at once")
    max_num_batched_tokens: int = option(2048, "tokens of one step")
    max_num_queued: int = option(1024, "requests in the worker before it answers 503")
    max_encoder_patches: int = option(16384, "patches of one encoder run")
    embedding_cache_bytes: int = option(256 << 20, "embeddings kept beside the engine")
    max_body_bytes: int = option(256 << 20, "largest request body")
    enable_prefix_caching: bool = option(True, "reuse KV of shared prefixes")
    enforce_eager: bool = option(False, "no CUDA graphs")
    mm_encoder_only: bool = option(False, "accepted for vLLM's scripts: the role decides")
    enable_request_id_headers: bool = option(True, "echo X-Request-Id")
    ec_transfer_config: str = option("", "connector of embeddings: a transport's name or JSON")
    kv_transfer_config: str = option("", "connector of KV blocks: a transport's name or JSON")
    master_url: str = option("", "masters to register with, comma-separated")
    advertise_url: str = option("", "URL that others reach this worker by, if host does not say it")
    heartbeat_interval: float = option(
        1.0, "between reports to a master, at most a third of its lease"
    )
    kv_events_config: str = option("", "vLLM's JSON; events are published if there is a master")
    seed: int = option(0, "not used for sampling: requests bring their own")
    num_threads: int = option(0, "CPU threads of the engine, 0 for the default")
    start_timeout: float = option(600.0, "seconds the engine may take to load")
    log_level: str = option("info", "debug, info, warning or error")
