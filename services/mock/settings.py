"""What a mock engine is, apart from its timing."""

from __future__ import annotations

from dataclasses import dataclass, field

from blake3 import blake3

from protocol.registry import InstanceRole
from services.engine.config import EngineConfig
from services.engine.scheduling.limits import Limits
from services.mock.tokens import Vocabulary

_INSTANT = 4096


@dataclass(frozen=True)
class EngineSettings:
    """Sizes are tokens unless the name says bytes or blocks. `instance_id` and `generation` name
    this life of the worker, `host` and `port` where others ask it for KV and embeddings.
    `steps_at_once`: decode steps that run, while nobody waits, before anything is said of them.
    `events`: collect what the caches gain and lose. `remote_embeddings`: encoders can be asked.
    """

    role: InstanceRole = "decode"
    instance_id: str = "mock"
    generation: str = ""
    host: str = ""
    port: int = 0
    model: str = "mock"
    revision: str = "mock"
    block_size: int = 16
    num_blocks: int = 4096
    prefix_caching: bool = True
    max_model_len: int = 32768
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_prefill_beside_decode: int = 512
    steps_at_once: int = 1
    max_encoder_patches: int = 16384
    ec_cache_bytes: int = 256 << 20
    row_bytes: int = 4096
    kv_bytes_per_token: int = 4096
    lease_s: float = 30.0
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    eos_token_id: int = -1
    events: bool = False
    remote_embeddings: bool = False
    fail_on_kv_error: bool = False

    def engine_config(self) -> EngineConfig:
        """What the engine's core reads of it."""
        return EngineConfig(
            model_dir="",
            model=self.model,
            revision=self.revision,
            parts=("language",),
            block_size=self.block_size,
            max_model_len=min(self.max_model_len, self.num_blocks * self.block_size),
            eos_token_ids=() if self.eos_token_id < 0 else (self.eos_token_id,),
        )

    def limits(self, *, instant: bool) -> Limits:
        """`instant`: decode steps take no time, so that no order of them can be observed."""
        return Limits(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            max_prefill_beside_decode=self.max_prefill_beside_decode,
            decode_steps=_INSTANT if instant else self.steps_at_once,
        )

    @property
    def encodes(self) -> bool:
        return self.role in ("encode", "pdfusion")

    @property
    def generates(self) -> bool:
        return self.role != "encode"

    @property
    def compatibility(self) -> str:
        """What two workers must share for the KV of one to mean anything to the other."""
        digest = blake3(f"mock:{self.block_size}".encode()).hexdigest()[:16]
        return f"{self.model}@{self.revision[:12]}:{digest}"
