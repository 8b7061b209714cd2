"""What a mock engine is, apart from its timing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from blake3 import blake3

from protocol.registry import InstanceRole, StageRole
from services.engine.config import EngineConfig
from services.engine.scheduling.limits import Limits
from services.mock.tokens import Vocabulary

_INSTANT = 4096
WorkerRole = InstanceRole | Literal["any"]
STAGES: tuple[StageRole, ...] = ("decode", "prefill", "encode")
"""Of a worker of the role any, the first one at the start."""


@dataclass(frozen=True)
class EngineSettings:
    """A mock worker's engine: the real one's sizes, and what stands for its model."""

    role: WorkerRole = "decode"  # which parts it has
    instance_id: str = "mock"  # in handles and at masters
    generation: str = ""  # another one after each start
    host: str = ""  # where others ask for KV and embeddings
    port: int = 0  # beside the host, also of the HTTP routes
    model: str = "mock"  # name of the model in content keys
    revision: str = "mock"  # name of the weights in content keys
    tokenizer: str = ""  # digest of the vocabulary, empty if there is none
    block_size: int = 16  # tokens in one KV block
    num_blocks: int = 4096  # KV blocks
    host_blocks: int = 0  # KV blocks in host memory below the pool, 0 for none
    disk_blocks: int = 0  # KV blocks on disk below that, 0 for none
    prefix_caching: bool = True  # whether KV is reused
    max_model_len: int = 32768  # tokens of prompt and output together
    max_num_seqs: int = 64  # requests computed at once
    max_num_batched_tokens: int = 2048  # tokens of one step
    max_prefill_beside_decode: int = 512  # prompt tokens of a step in which requests decode
    # decode steps that run, while no request waits, before anything is said of them
    steps_at_once: int = 1
    max_encoder_patches: int = 16384  # patches of one encoder run
    ec_cache_bytes: int = 256 << 20  # bytes of embeddings
    row_bytes: int = 4096  # bytes of one row of an embedding
    ec_transport: str = "counted"  # how embeddings are said to move
    kv_bytes_per_token: int = 4096  # bytes of one token's KV
    lease_s: float = 30.0  # seconds that KV is kept for a consumer
    vocabulary: Vocabulary = field(default_factory=Vocabulary)  # which tokens it puts out
    eos_token_id: int = -1  # token that ends an output, -1 for none
    events: bool = False  # collect what the caches gain and lose
    remote_embeddings: bool = False  # encoders can be asked for embeddings
    fail_on_kv_error: bool = False  # a failed load fails the request; else it is computed here

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
        return self.role in ("encode", "pdfusion", "any")

    @property
    def generates(self) -> bool:
        return self.role != "encode"

    @cached_property
    def compatibility(self) -> str:
        """What two workers must share for the KV of one to mean anything to the other."""
        digest = blake3(f"mock:{self.block_size}".encode()).hexdigest()[:16]
        return f"{self.model}@{self.revision[:12]}:{digest}"

    @property
    def ec_compatibility(self) -> str:
        """What two workers must share to hand over embeddings."""
        local = self.role == "pdfusion"
        return "" if local else f"{self.model}@{self.revision[:12]}:mock:{self.ec_transport}"
