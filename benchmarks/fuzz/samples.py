"""Bodies that each route takes: what mutation begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.fuzz import chat_samples as chat
from benchmarks.fuzz.chat_samples import SAMPLED, UNREACHABLE
from benchmarks.fuzz.pooling_samples import pooling
from benchmarks.soak.stack import MODEL
from protocol.anthropic import MESSAGES_PATH
from protocol.generate import ABORT_PATH, ENCODE_PATH, GENERATE_PATH
from protocol.openai import BATCH_PATH, CHAT_PATH, COMPLETIONS_PATH
from protocol.placement import FINISHED_PATH, SCHEDULE_PATH, SCHEDULES_PATH
from protocol.refs import KVRef
from protocol.registry import (
    DEREGISTER_PATH,
    DRAIN_PATH,
    HEARTBEAT_PATH,
    REGISTER_PATH,
    SUSPECT_PATH,
    WORKERS_PATH,
)
from protocol.responses import RESPONSES_PATH
from protocol.rtp_requests import RAW_PATH
from protocol.rtp_status import CACHE_PATHS, WORK_PATHS
from services.http.access import LOAD_ADAPTER_PATH, UNLOAD_ADAPTER_PATH
from services.http.admin import LOG_LEVEL_PATH
from services.http.rtp_frontend import ALIAS_PATH
from services.http.rtp_operations import EPLB_PATH, UPDATE_PATH
from services.master.api import busy, roles

_CONSUMER = "tcp://127.0.0.1:9"
_NAME = {"instance_id": "fuzz-1", "generation": "g"}
_LOAD = {
    "queued": 1,
    "running": 1,
    "free_blocks": 9,
    "total_blocks": 99,
    "rates": {"decode_base_ms": 2.0},
}


def _generate() -> list[dict[str, Any]]:
    base: dict[str, Any] = {"token_ids": [1, 2, 3], "sampling_params": dict(SAMPLED)}
    media = {
        "mm_hashes": {"image": ["h"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 1}]},
    }
    handle = KVRef("r", "i", (1,), 16, host="127.0.0.1", port=9).to_params()
    entry = {"modality": "image", "metadata": {"image_grid_thw": [1, 2, 2]}}
    return [
        base, {**base, "stream": True, "request_id": "fuzz", "cache_salt": "s"},
        {**base, "emitted": {"0": [4]}, "deadline_s": 3.0, "priority": 1},
        {**base, "features": media, "ec_transfer_params": {"h": entry}, "deadline_s": 1.0},
        {**base, "kv_transfer_params": handle, "deadline_s": 1.0},
        {**base, "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
    ]  # fmt: skip


def _encode() -> list[dict[str, Any]]:
    item = {"mm_hash": "h", "modality": "image", "length": 4, "grid": [1, 4, 4], "data": b"\x89PNG"}
    return [{"request_id": "r", "items": [item], "deadline_s": 2.0, "holder": "fuzz"}]


def _register() -> list[dict[str, Any]]:
    info = {
        **_NAME, "role": "decode", "url": UNREACHABLE, "model": MODEL, "block_size": 16,
        "kv_bytes_per_token": 64, "aliases": ["other"], "adapters": ["lora"], "load": _LOAD,
    }  # fmt: skip
    group = {"layers": [0], "kv_heads": 1, "k_dim": 8, "v_dim": 8}
    layout = {"groups": [group], "block_size": 16, "dtype": "float32", "tp_size": 1}
    events = [{"endpoint": "tcp://127.0.0.1:9", "replay": "tcp://127.0.0.1:9", "topic": "kv"}]
    ends = {"kv_endpoint": {"remote_host": "h"}, "ec_endpoint": {"peer_host": "h"}}
    return [info, {**info, "kv_layout": layout, "events": events, **ends}]


def _schedule() -> dict[str, Any]:
    need = {"mm_hash": "h", "tokens": 4, "offset": 1, "size_bytes": 64}
    return {
        "request_id": "fuzz", "prompt_tokens": 40, "block_keys": [1, 2], "block_size": 16,
        "items": [need], "max_tokens": 4, "priority": 50, "deadline_s": 1.0, "tenant": "t",
        "session": "s", "avoid": ["x"], "debug": True, "ttft_slo_s": 1.0, "tpot_slo_s": 0.5,
    }  # fmt: skip


def _rendered() -> dict[str, list[Any]]:
    """What a frontend takes, by path."""
    chats, messages = chat.chats(), MESSAGES_PATH
    renders = ("/chat/render", "/v1/chat/render", f"{CHAT_PATH}/render")
    return {
        **dict.fromkeys((CHAT_PATH, ALIAS_PATH, *renders), chats),
        BATCH_PATH: chat.batches(),
        COMPLETIONS_PATH: chat.completions(), f"{COMPLETIONS_PATH}/render": chat.completions(),
        RESPONSES_PATH: chat.responses(),
        messages: chat.messages(), f"{messages}/count_tokens": chat.messages(counted=True),
        RAW_PATH: chat.raw_prompts(),
        "/tokenize": chat.tokenized(), "/detokenize": [{"tokens": [1, 2, 3]}],
        "/tokenizer/encode": [{"prompt": "Hello", "return_offsets_mapping": True}],
        "/v1/audio/transcriptions": chat.spoken(), "/v1/audio/translations": chat.spoken(),
        "/v1/audio/speech": [{"model": MODEL, "input": "Hello", "voice": "v", "speed": 1.0}],
    }  # fmt: skip


def _operated() -> dict[str, list[Any]]:
    """What operators send, by path. The threshold is of a model that has no worker: one that is
    close to 0 would make every worker busy."""
    adapter = {"lora_name": "fuzz", "lora_path": "/nowhere"}
    return {
        LOAD_ADAPTER_PATH: [adapter], UNLOAD_ADAPTER_PATH: [{"lora_name": "fuzz"}],
        UPDATE_PATH: [{"peft_info": {"lora_info": {"fuzz": "/nowhere"}}}],
        EPLB_PATH: [{"mode": "NONE", "update_time": 1}],
        LOG_LEVEL_PATH: [{"level": "warning"}, {"log_level": "INFO"}],
        roles.PATH: [{"role": "decode", "instance_id": "fuzz-1"},
                     {"role": "prefill", "url": UNREACHABLE}],
        busy.PATH: [{"model": MODEL}, {"model": "x", "active_decode_blocks_threshold": 0.9}],
        "/instances": [{"role": "decode", "url": UNREACHABLE, "dp_size": 1,
                        "ec_zmq_addrs": [_CONSUMER]}],
    }  # fmt: skip


def _samples() -> dict[str, list[Any]]:
    report = {"request_id": "fuzz", "stage": "encode", "mm_hashes": ["h"], "failed": ["x"]}
    rtp = {
        "block_cache_keys": [1, -2], "seq_len": 128, "debug": True, "generate_timeout": 500,
        "request_priority": 50,
    }  # fmt: skip
    query = {"latest_cache_version": 1, "latest_finished_version": 1}
    return {
        **_rendered(), **pooling(), **_operated(),
        GENERATE_PATH: _generate(), ENCODE_PATH: _encode(), ABORT_PATH: [{"request_ids": ["a"]}],
        "/abort_requests": [{"request_ids": ["a", "b"]}],
        REGISTER_PATH: _register(), SCHEDULE_PATH: [_schedule()],
        SCHEDULES_PATH: [{"requests": [_schedule()]}],
        HEARTBEAT_PATH: [{**_NAME, "load": _LOAD, "progress": {"steps": 3, "step_s": 0.1}}],
        DEREGISTER_PATH: [_NAME], SUSPECT_PATH: [_NAME],
        DRAIN_PATH: [{**_NAME, "draining": True}],
        FINISHED_PATH: [{"reports": [report, {**report, "stage": "request", "elapsed_s": 0.5}]}],
        "/rtp_llm/schedule": [rtp],
        **{path: [query] for path in (*CACHE_PATHS, *WORK_PATHS)},
    }  # fmt: skip


SAMPLES: Mapping[str, Sequence[Any]] = MappingProxyType(_samples())
BODILESS = frozenset(
    {"/GraphService/cm2_status", "/SearchService/cm2_status", "/health", "/health_check", "/ping",
     "/status", "/rtp_llm/master", "/rtp_llm/master/info", "/undrain", "/reset_encoder_cache",
     "/reset_mm_cache", "/reset_prefix_cache", "/start_profile", "/stop_profile", "/nowhere",
     f"{RESPONSES_PATH}/{{response_id}}", f"{RESPONSES_PATH}/{{response_id}}/cancel"}
)  # fmt: skip
"""Routes that change or tell something and take no body."""
RPC = frozenset(
    (REGISTER_PATH, HEARTBEAT_PATH, DEREGISTER_PATH, DRAIN_PATH, SCHEDULE_PATH, SCHEDULES_PATH,
     SUSPECT_PATH, FINISHED_PATH)
)  # fmt: skip
"""A master's calls, which pass by the framework that lists its other routes."""
MASTERS_OWN = (*((path, "POST") for path in sorted(RPC)), (WORKERS_PATH, "GET"))
QUERIES: Mapping[str, str] = MappingProxyType({WORKERS_PATH: "after=1&wait_s=0.1"})
