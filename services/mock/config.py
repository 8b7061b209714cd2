"""What a mock worker is told: flags named as the real workers' where they have one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from protocol.errors import ConfigError
from protocol.registry import InstanceRole
from protocol.settings import option, parse_urls
from services.frontend.model_info import ModelInfo
from services.mock.settings import EngineSettings
from services.mock.timing import Timing
from services.mock.tokens import Vocabulary

ROLES = ("encode", "prefill", "decode", "prefill_decode", "pdfusion")


@dataclass(frozen=True)
class MockConfig:
    """Resolved once at start. Sizes are tokens unless the name says bytes; times are seconds unless
    the name says ms."""

    role: str = option("decode", "what to be", choices=ROLES)
    count: int = option(1, "workers in this process")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port of the first worker, the others follow; 0 for any free ones")
    dialect: str = option("tokens", "openai: no token routes", choices=("tokens", "openai"))
    model: str = option("mock", "a name, or a model directory to take content keys from")
    served_model_name: str = option("", "name clients use; the model if empty")
    revision: str = option("", "name of the weights; found from the directory if empty")
    max_model_len: int = option(32768, "prompt and answer together")
    block_size: int = option(16, "tokens of a KV block")
    num_gpu_blocks_override: int = option(4096, "KV blocks")
    enable_prefix_caching: bool = option(True, "reuse KV of shared prefixes")
    max_num_seqs: int = option(64, "requests that run at once")
    max_num_batched_tokens: int = option(2048, "tokens of one step")
    steps_at_once: int = option(1, "decode steps between answers while nobody waits")
    max_num_queued: int = option(1024, "requests in a worker before it answers 503")
    max_encoder_patches: int = option(16384, "patches of one encoder run")
    embedding_cache_bytes: int = option(256 << 20, "embeddings kept")
    embedding_row_bytes: int = option(4096, "bytes of one token's embedding")
    kv_bytes_per_token: int = option(4096, "told to the master, for the price of moving KV")
    kv_lease: float = option(30.0, "how long KV is held for a worker that does not ask")
    kv_load_failure_policy: str = option("recompute", "or fail", choices=("recompute", "fail"))
    growing_kv: bool = option(True, "let decode ask for KV that is still being computed")
    encode_servers_urls: str = option("", "encoders to ask for embeddings; assumed there if empty")
    first_token: int = option(97, "answers are made of this token id and those that follow")
    num_tokens: int = option(26, "how many token ids answers are made of")
    eos_token_id: int = option(-1, "token id that ends an answer, -1 for none")
    media_tokens: int = option(64, "placeholders of an item whose grid nobody says")
    default_max_tokens: int = option(128, "of an OpenAI request that does not say")
    max_body_bytes: int = option(256 << 20, "largest request body")
    encode_base_ms: float = option(5.0, "of an encoder run")
    encode_patch_ms: float = option(0.02, "and for each patch")
    encode_token_ms: float = option(0.0, "and for each token of an item")
    prefill_base_ms: float = option(5.0, "of a step with prompt tokens")
    prefill_token_ms: float = option(0.1, "and for each of them that is computed")
    prefill_cached_ms: float = option(0.001, "and for each that is reused")
    decode_base_ms: float = option(10.0, "of a step that decodes")
    decode_request_ms: float = option(0.1, "and for each choice in it")
    decode_context_ms: float = option(0.0002, "and for each token of their contexts")
    kv_block_ms: float = option(0.05, "to copy a KV block from another worker")
    ec_token_ms: float = option(0.002, "to copy an embedding, for each token")
    speed: float = option(1.0, "every duration is divided by it; inf for no time at all")
    jitter: float = option(0.0, "durations vary by up to this share, 0 to 1")
    seed: int = option(0, "of jitter and of the faults' draws")
    faults: str = option("", "rules as JSON, as for POST /faults")
    kv_events: str = option(
        "auto", "publish cache events; auto: with a master", choices=("auto", "on", "off")
    )
    master_url: str = option("", "masters to register with, comma-separated")
    heartbeat_interval: float = option(1.0, "between reports to the master")
    enable_request_id_headers: bool = option(True, "echo X-Request-Id")
    log_level: str = option("info", "debug, info, warning or error")

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

    def timing(self) -> Timing:
        """`ConfigError` if a duration is negative or the speed is not positive."""
        names = [name for name in Timing.__dataclass_fields__ if name != "speed"]
        values = {name: float(getattr(self, name)) for name in names}
        wrong = [name for name, value in values.items() if not value >= 0.0]
        if wrong:
            raise ConfigError(f"{wrong[0]}: {values[wrong[0]]} is negative")
        if not self.speed > 0.0:
            raise ConfigError(f"speed: {self.speed} is not positive")
        return Timing(**values, speed=self.speed)

    def settings(self) -> EngineSettings:
        """Everything that all workers of this process share; `ConfigError` names what is wrong."""
        for name in ("count", "block_size", "num_gpu_blocks_override", "max_num_seqs",
                     "max_num_batched_tokens", "steps_at_once", "num_tokens",
                     "media_tokens"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: {getattr(self, name)} is not positive")
        if not 0.0 <= self.jitter < 1.0:
            raise ConfigError(f"jitter: {self.jitter} is not between 0 and 1")
        role: InstanceRole = self.role  # type: ignore[assignment]
        settings = EngineSettings(
            role=role,
            host=self.host,
            model=self.model,
            revision=self.revision or "mock",
            block_size=self.block_size,
            num_blocks=self.num_gpu_blocks_override,
            prefix_caching=self.enable_prefix_caching,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            steps_at_once=self.steps_at_once,
            max_encoder_patches=self.max_encoder_patches,
            ec_cache_bytes=self.embedding_cache_bytes,
            row_bytes=self.embedding_row_bytes,
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
        return replace(settings, model=info.name, revision=self.revision or info.revision)
