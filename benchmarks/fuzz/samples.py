"""Bodies that each route takes: what mutation begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.common.pictures import sample
from benchmarks.soak.stack import MODEL
from protocol.generate import ABORT_PATH, ENCODE_PATH, GENERATE_PATH
from protocol.openai import CHAT_PATH, COMPLETIONS_PATH
from protocol.refs import KVRef
from protocol.registry import (
    DEREGISTER_PATH,
    DRAIN_PATH,
    FINISHED_PATH,
    HEARTBEAT_PATH,
    REGISTER_PATH,
    SCHEDULE_PATH,
)
from protocol.rtp_status import CACHE_PATHS, WORK_PATHS
from protocol.worker_views import SUSPECT_PATH, WORKERS_PATH

TOKENS = 3
UNREACHABLE = "http://127.0.0.1:9"  # no process listens on this port
_CONSUMER = "tcp://127.0.0.1:9"
_SAMPLED = {"max_tokens": TOKENS, "temperature": 0}
_NAME = {"instance_id": "fuzz-1", "generation": "g"}
_LOAD = {"queued": 1, "running": 1, "free_blocks": 9, "rates": {"decode_base_ms": 2.0}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look", "description": "Looks.",
        "parameters": {
            "type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["at"],
        },
    },
}  # fmt: skip
_SCHEMA = {"name": "one", "schema": {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}}


def _chat(content: Any = "Hello", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, **_SAMPLED, **more}


def _with_a_call() -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    return [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]


def _chats() -> list[dict[str, Any]]:
    seen = sample("describe", 3).openai_messages()
    elsewhere = [
        {"type": "image_url", "image_url": {"url": f"{UNREACHABLE}/a.png", "detail": "low"}}
    ]
    return [
        _chat(),
        _chat(stream=True, stream_options={"include_usage": True}, n=2, temperature=0.7, seed=3),
        _chat(logprobs=True, top_logprobs=2, stop=["a", "b"], logit_bias={"5": 1.0}),
        _chat(frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9, user="u", priority=1),
        _chat(min_tokens=1, top_k=5, min_p=0.1, repetition_penalty=1.1, stop_token_ids=[4]),
        {**_chat(), "messages": seen},
        {**_chat(mm_processor_kwargs={"max_pixels": 50_000}), "messages": seen, "stream": True},
        _chat(elsewhere),
        _chat(tools=[_TOOL], tool_choice="auto", parallel_tool_calls=True),
        _chat(tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "look"}}),
        {**_chat(), "messages": _with_a_call(), "tools": [_TOOL]},
        _chat(response_format={"type": "json_schema", "json_schema": _SCHEMA}),
        _chat(structured_outputs={"regex": "[a-z]+"}, cache_salt="s", ignore_eos=True),
        _chat(ec_transfer_params={"h": {"modality": "image", "item_indices": [0]}}),
        _chat(kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False}),
    ]


def _completions() -> list[dict[str, Any]]:
    base: dict[str, Any] = {"model": MODEL, "prompt": "Hello", **_SAMPLED}
    return [
        base, {**base, "stream": True, "n": 2}, {**base, "prompt": ["a", "b"]},
        {**base, "prompt": [1, 2, 3], "echo": False, "logprobs": 2},
        {**base, "prompt": [[1, 2], [3]], "stop": "x", "suffix": None},
    ]  # fmt: skip


def _generate() -> list[dict[str, Any]]:
    base: dict[str, Any] = {"token_ids": [1, 2, 3], "sampling_params": dict(_SAMPLED)}
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


def _samples() -> dict[str, list[Any]]:
    report = {"request_id": "fuzz", "stage": "encode", "mm_hashes": ["h"], "failed": ["x"]}
    rtp = {
        "block_cache_keys": [1, -2], "seq_len": 128, "debug": True, "generate_timeout": 500,
        "request_priority": 50,
    }  # fmt: skip
    named = [{"role": "decode", "url": UNREACHABLE, "dp_size": 1, "ec_zmq_addrs": [_CONSUMER]}]
    query = {"latest_cache_version": 1, "latest_finished_version": 1}
    return {
        CHAT_PATH: _chats(), COMPLETIONS_PATH: _completions(), GENERATE_PATH: _generate(),
        ENCODE_PATH: _encode(), ABORT_PATH: [{"request_ids": ["a"]}],
        "/abort_requests": [{"request_ids": ["a", "b"]}],
        "/tokenize": [{"prompt": "Hello"}, {"messages": [{"role": "user", "content": "x"}]}],
        "/detokenize": [{"tokens": [1, 2, 3]}],
        "/instances": named,
        REGISTER_PATH: _register(), SCHEDULE_PATH: [_schedule()],
        HEARTBEAT_PATH: [{**_NAME, "load": _LOAD, "progress": {"steps": 3, "step_s": 0.1}}],
        DEREGISTER_PATH: [_NAME], SUSPECT_PATH: [_NAME],
        DRAIN_PATH: [{**_NAME, "draining": True}],
        FINISHED_PATH: [{"reports": [report, {**report, "stage": "request", "elapsed_s": 0.5}]}],
        "/rtp_llm/schedule": [rtp],
        **{path: [query] for path in (*CACHE_PATHS, *WORK_PATHS)},
    }  # fmt: skip


SAMPLES: Mapping[str, Sequence[Any]] = MappingProxyType(_samples())
RPC = frozenset(
    (REGISTER_PATH, HEARTBEAT_PATH, DEREGISTER_PATH, DRAIN_PATH, SCHEDULE_PATH, SUSPECT_PATH,
     FINISHED_PATH)
)  # fmt: skip
"""A master's calls, which pass by the framework that lists its other routes."""
MASTERS_OWN = (*((path, "POST") for path in sorted(RPC)), (WORKERS_PATH, "GET"))
QUERIES: Mapping[str, str] = MappingProxyType({WORKERS_PATH: "after=1&wait_s=0.1"})
