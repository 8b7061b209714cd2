"""What a mock worker is told: flags named as the real workers' where they have one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import ConfigError
from protocol.flag_lists import parse_urls, urls
from protocol.fleet_key import FleetOptions
from protocol.options import count as count_option
from protocol.options import (
    drain_delay_option,
    log_format_option,
    log_level_option,
    option,
    port_option,
    seconds,
    size,
)
from protocol.server_options import ClientKeyOptions
from services.frontend.model_info import ModelInfo
from services.frontend.tokenizer import Tokenizer
from services.mock.settings import EngineSettings, WorkerRole
from services.mock.timing import TimingOptions
from services.mock.tokens import Vocabulary

ROLES = ("encode", "prefill", "decode", "prefill_decode", "pdfusion", "any")


@dataclass(frozen=True)
class MockConfig(TimingOptions, FleetOptions, ClientKeyOptions):
    """Resolved once at start."""

    role: str = option(
        "decode",
        "Role of the workers; any: encode, prefill or decode, as the master says.",
        choices=ROLES,
        section="Workers",
    )
    count: int = count_option(1, "Workers in this process.", "workers", maximum=65535)
    host: str = option(
        "127.0.0.1", "Address to listen on; 0.0.0.0 or :: for all of this machine.", "address"
    )
    port: int = port_option(
        8000, "TCP port of the first worker; the others take those that follow. 0: any free ports."
    )
    dialect: str = option(
        "tokens",
        "Protocol of the workers: tokens (as Triptych's), openai (without the token routes).",
        choices=("tokens", "openai"),
    )
    model: str = option(
        "mock",
        "Name of the model, or a model directory that content keys are taken from.",
        "model",
        section="Model",
    )
    served_model_name: str = option(
        "", "Name by which clients call the model. Empty: the value of --model.", "name"
    )
    revision: str = option(
        "", "Name of the weights in content keys. Empty: derived from the model's files.", "name"
    )
    max_model_len: int = count_option(
        32768, "Longest request, prompt and output together.", "tokens"
    )
    block_size: int = count_option(
        16, "Tokens in one KV block.", "tokens", maximum=65536, section="Engine"
    )
    num_gpu_blocks_override: int = count_option(4096, "Blocks of the KV cache.", "blocks")
    kv_host_memory: float = option(
        0.0,
        "Host memory for KV blocks that the KV cache has no room for, at --kv-bytes-per-token a"
        " token. 0: none.",
        "GiB",
        minimum=0,
        maximum=1 << 20,
    )
    kv_disk: float = option(
        0.0,
        "Size of files for KV blocks that host memory has no room for; needs --kv-host-memory. 0:"
        " none. Nothing is written.",
        "GiB",
        minimum=0,
        maximum=1 << 20,
    )
    enable_prefix_caching: bool = option(
        True, "Reuse the KV of prompts that start as earlier ones did."
    )
    max_num_seqs: int = count_option(
        64, "Requests that a worker computes at once; others wait.", "requests"
    )
    max_num_batched_tokens: int = count_option(
        2048, "Tokens that one step computes at most.", "tokens"
    )
    max_prefill_beside_decode: int = count_option(
        512,
        "Prompt tokens of a step in which other requests decode. 0: no bound of its own.",
        "tokens",
        minimum=0,
    )
    steps_at_once: int = count_option(
        1, "Decode steps whose tokens are sent together while no request waits.", "steps"
    )
    max_num_queued: int = count_option(
        1024, "Requests in a worker beyond which a new one is answered with 503.", "requests"
    )
    max_encoder_patches: int = count_option(16384, "Patches that one encoder run takes.", "patches")
    embedding_cache_bytes: int = size(256 << 20, "Memory for embeddings.", minimum=0)
    embedding_row_bytes: int = size(4096, "Size of one token's embedding.")
    ec_transfer_config: str = option(
        "counted",
        "Name of the transport by which embeddings are said to move; workers with another one do"
        " not fit this one.",
        "name",
    )
    kv_bytes_per_token: int = size(
        4096, "Size of one token's KV, from which a master prices transfers.", minimum=0
    )
    kv_lease: float = seconds(30.0, "How long KV is kept for a worker that has not asked for it.")
    kv_load_failure_policy: str = option(
        "recompute",
        "What follows a failed KV transfer: recompute (compute the prompt), fail (the request).",
        choices=("recompute", "fail"),
    )
    growing_kv: bool = option(True, "Let decode workers ask for KV that is still being computed.")
    encode_servers_urls: str = urls(
        "Comma-separated URLs of encode workers to fetch embeddings from. Empty: they are assumed"
        " to be there.",
        section="Fleet",
    )
    first_token: int = count_option(
        97,
        "Answers consist of this token id and those that follow.",
        "token id",
        minimum=0,
        section="Answers",
    )
    num_tokens: int = count_option(26, "How many token ids answers consist of.", "token ids")
    eos_token_id: int = count_option(
        -1, "Token id that ends an answer. -1: none does.", "token id", minimum=-1
    )
    media_tokens: int = count_option(64, "Placeholders of a media item without a grid.", "tokens")
    default_max_tokens: int = count_option(
        128, "Output of an OpenAI request that sets no max_tokens.", "tokens"
    )
    max_body_bytes: int = size(256 << 20, "Largest body of a request.", section="Workers")
    faults: str = option(
        "",
        "Rules of faults, as the JSON that POST /faults takes.",
        "JSON",
        section="Faults and events",
    )
    kv_events: str = option(
        "auto",
        "Whether cache events are published: on, off, auto (if --master-url is given).",
        choices=("auto", "on", "off"),
    )
    master_url: str = urls(
        "Comma-separated URLs of the masters that the workers register with.", section="Fleet"
    )
    heartbeat_interval: float = seconds(
        1.0,
        "Time between load reports to a master; a master's lease shortens it to a third of the"
        " lease.",
        minimum=0.01,
    )
    enable_request_id_headers: bool = option(
        True, "Return the X-Request-Id header of a request with its answer.", section="Workers"
    )
    drain_delay: float = drain_delay_option()
    shutdown_timeout: float = seconds(
        0.0,
        "Time that requests in progress have to end after --drain-delay; the rest get an error.",
        minimum=0,
    )
    log_level: str = log_level_option()
    log_format: str = log_format_option()

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.served_model_name.split(",")[0].strip() or self.model

    @property
    def masters(self) -> list[str]:
        return parse_urls("--master-url", self.master_url)

    @property
    def encoders(self) -> list[str]:
        if self.encode_servers_urls.strip().lower() in ("none", "disable"):
            return []
        return parse_urls("--encode-servers-urls", self.encode_servers_urls)

    @property
    def publishes(self) -> bool:
        return self.kv_events == "on" or (self.kv_events == "auto" and bool(self.master_url))

    def _tier_blocks(self, gib: float) -> int:
        return int(gib * 2**30) // max(1, self.kv_bytes_per_token * self.block_size)

    def settings(self) -> EngineSettings:
        """Everything that all workers of this process share; `ConfigError` names what is wrong."""
        for name in ("count", "block_size", "num_gpu_blocks_override", "max_num_seqs",
                     "max_num_batched_tokens", "steps_at_once", "num_tokens",
                     "media_tokens"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not positive")
        if not 0.0 <= self.jitter < 1.0:
            raise ConfigError(f"jitter: {self.jitter} is not between 0 and 1")
        if self.role == "any" and self.dialect == "openai":
            raise ConfigError("--role any: needs --dialect tokens")
        if self.kv_disk and not self.kv_host_memory:
            raise ConfigError("--kv-disk: needs --kv-host-memory")
        role: WorkerRole = self.role  # type: ignore[assignment]
        settings = EngineSettings(
            role=role,
            host=self.host,
            model=self.model,
            revision=self.revision or "mock",
            block_size=self.block_size,
            num_blocks=self.num_gpu_blocks_override,
            host_blocks=self._tier_blocks(self.kv_host_memory),
            disk_blocks=self._tier_blocks(self.kv_disk),
            prefix_caching=self.enable_prefix_caching,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_prefill_beside_decode=self.max_prefill_beside_decode,
            steps_at_once=self.steps_at_once,
            max_encoder_patches=self.max_encoder_patches,
            ec_cache_bytes=self.embedding_cache_bytes,
            row_bytes=self.embedding_row_bytes,
            ec_transport=self.ec_transfer_config,
            kv_bytes_per_token=self.kv_bytes_per_token,
            lease_s=self.kv_lease,
            vocabulary=Vocabulary(self.first_token, self.num_tokens),
            eos_token_id=self.eos_token_id,
            events=self.publishes,
            remote_embeddings=bool(self.encoders),
            fail_on_kv_error=self.kv_load_failure_policy == "fail",
        )
        if not (Path(self.model) / "config.json").exists():
            return settings
        info = ModelInfo.load(Path(self.model))
        return replace(
            settings, model=info.name, revision=self.revision or info.revision,
            tokenizer=Tokenizer.load(info).digest,
        )  # fmt: skip
