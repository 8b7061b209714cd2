"""Where each flag of the proxy acts: for which dialect of the workers, and beside a master.

The help and docs/flags.md say of a flag what its scope says here; a flag for both dialects that a
master changes nothing about has nothing to say. `tests/unit/proxy/test_flag_scopes.py` asks for a
scope of every flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

_IN_DIALECT = {
    "both": "",
    "tokens": "In the tokens dialect only.",
    "openai": "In the openai dialect only.",
    "keys": "In the openai dialect only for the keys that a master is asked by (see --model).",
}


@dataclass(frozen=True)
class Scope:
    """`dialect`: keys for what the tokens dialect renders with, and the openai dialect only to
    describe a request to a master. `alone`: no effect while a master answers. `note`: what else is
    to be said of it; where the dialect is one of several, in place of its sentence."""

    dialect: Literal["both", "tokens", "openai", "keys"] = "both"
    alone: bool = False
    note: str = ""

    @property
    def sentence(self) -> str:
        """What the help says, "" for a flag that acts in any case."""
        alone = "No effect while a master answers: its own queue holds then." if self.alone else ""
        return " ".join(filter(None, (self.note or _IN_DIALECT[self.dialect], alone)))


_BOTH, _TOKENS, _OPENAI, _KEYS = Scope(), Scope("tokens"), Scope("openai"), Scope("keys")
_ALONE = Scope(alone=True)
_CALLS = Scope("openai", note="In the openai dialect only, and for operators' calls to workers.")
_BREAKER = Scope(note="A master may send requests there all the same.")

SCOPES: Mapping[str, Scope] = MappingProxyType(
    {
        # Server
        "host": _BOTH,
        "port": _BOTH,
        "fd": _BOTH,
        "workers": _BOTH,
        "kserve_grpc_port": _TOKENS,
        "rtp_grpc_port": _TOKENS,
        "max_body_bytes": _BOTH,
        "max_received_bytes": _BOTH,
        "page": _BOTH,
        "drain_delay": _BOTH,
        "shutdown_timeout": _BOTH,
        "log_requests": _BOTH,
        "log_level": _BOTH,
        "log_format": _BOTH,
        "vllm_metrics": _BOTH,
        # Fleet
        "encode_servers_urls": _BOTH,
        "prefill_servers_urls": _BOTH,
        "decode_servers_urls": _BOTH,
        "ec_consumer_zmq_addrs": _OPENAI,
        "ec_consumer_dp_size": _OPENAI,
        "dns_interval": _BOTH,
        "master_url": _BOTH,
        # Access
        "admin_api_key": _BOTH,
        "worker_api_key": _BOTH,
        # Protocol of the workers
        "dialect": _BOTH,
        "allow_media_references": Scope(
            note="In the openai dialect only ec_transfer_params need it, which say where embeddings"
            " are: workers of other engines decide themselves about uuids."
        ),
        "send_media": _OPENAI,
        # Queue
        "max_in_flight": _BOTH,
        "max_per_worker": _ALONE,
        "max_queue": _ALONE,
        "max_queue_wait": _ALONE,
        "queue_timeout": _ALONE,
        "tenant_share": _ALONE,
        # Timeouts and retries
        "request_timeout": _BOTH,
        "encode_timeout": _BOTH,
        "prefill_timeout": _BOTH,
        "first_token_timeout": _BOTH,
        "decode_timeout": _CALLS,
        "stall_timeout": _BOTH,
        "connect_timeout": _BOTH,
        "max_retries": _BOTH,
        "failover_wait": _BOTH,
        "retry_backoff": _BOTH,
        "breaker_failures": _BREAKER,
        "breaker_cooldown": _BREAKER,
        "encode_at_once": _OPENAI,
        "max_answer_bytes": _CALLS,
        "probe_interval": Scope(
            note="While a master answers, only workers that are in doubt are probed."
        ),
        # Model
        "model": Scope(
            "keys",
            note="In the openai dialect it makes the block keys that a master is asked by, and"
            " answers /tokenize and /v1/models; with --dialect openai it is not read.",
        ),
        "served_model_name": Scope(
            note="In the openai dialect they stand for the one model that all workers serve."
        ),
        "task": _TOKENS,
        "max_model_len": _KEYS,
        "allow_long_max_model_len": _KEYS,
        "chat_template": _KEYS,
        "tool_call_parser": _TOKENS,
        "reasoning_parser": _TOKENS,
        "trust_request_chat_template": _KEYS,
        "min_priority": Scope(note="Triptych workers have a flag of their own, which holds too."),
        "enable_tokenizer_info_endpoint": Scope(
            "tokens", note="With --dialect openai the workers answer there."
        ),
        "response_store_bytes": Scope(
            "tokens", note="With --dialect openai the workers store answers."
        ),
        # Media
        "limit_mm_per_prompt": Scope(
            note="With --dialect openai and no encode workers, the workers' own limit holds."
        ),
        "mm_processor_kwargs": _KEYS,
        "allowed_local_media_path": _TOKENS,
        "allowed_media_domains": _TOKENS,
        "allow_private_media": _TOKENS,
        "max_media_bytes": _KEYS,
        "max_media_pixels": _KEYS,
        "allow_clips": _TOKENS,
        "video_fps": _TOKENS,
        "max_video_frames": _TOKENS,
        "max_video_tokens": _TOKENS,
        "max_video_duration": _TOKENS,
        "video_timeout": _TOKENS,
        "video_memory_bytes": _TOKENS,
        "video_readers": _TOKENS,
        "media_timeout": _TOKENS,
        "media_memory_bytes": _KEYS,
        "media_spill_path": _KEYS,
        # Keys, browsers, certificates, tracing
        "fleet_key": _BOTH,
        "fleet_key_file": _BOTH,
        "allow_unprotected": _BOTH,
        "api_key": _BOTH,
        "api_key_file": _BOTH,
        "protect_metrics": _BOTH,
        "allowed_origins": _BOTH,
        "allowed_methods": _BOTH,
        "allowed_headers": _BOTH,
        "allow_credentials": _BOTH,
        "ssl_keyfile": _BOTH,
        "ssl_certfile": _BOTH,
        "ssl_ca_certs": _BOTH,
        "ca_certs": _BOTH,
        "trace_to": _BOTH,
        "trace_sample": _BOTH,
    }
)
NOTES: Mapping[str, str] = MappingProxyType(
    {name: scope.sentence for name, scope in SCOPES.items()}
)
