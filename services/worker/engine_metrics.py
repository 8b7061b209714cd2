"""What the gauges and counters mean that an engine reports (`services.engine.reports`)."""

from __future__ import annotations

from types import MappingProxyType

ENGINE_GAUGES = MappingProxyType(
    {
        "num_requests_running": "Choices in the running batch, those loading KV included.",
        "num_requests_waiting": "Choices that wait to be computed or for KV of another worker.",
        "kv_cache_usage_perc": "Share of the KV blocks in use, from 0 to 1.",
        "kv_blocks_free": "KV blocks that hold nothing a request needs.",
        "embedding_cache_bytes": "Bytes of embeddings beside the engine, reserved ones included.",
        "kv_host_blocks": "KV blocks in host memory below the KV cache (--kv-host-memory).",
        "kv_disk_blocks": "KV blocks in files below the KV cache (--kv-disk).",
        "gpu_memory_used_bytes": "Bytes of the GPU's memory in use, by all processes.",
        "gpu_memory_total_bytes": "Bytes of the GPU's memory.",
        "num_items_encoding": "Pictures that wait to be encoded or are being encoded.",
    }
)
ENGINE_COUNTERS = MappingProxyType(
    {
        "prompt_tokens": "Prompt tokens of requests whose prompt this worker has computed or found"
        " in its prefix cache.",
        "generation_tokens": "Output tokens that were computed here.",
        "cached_tokens": "Those of the prompt tokens that were found in the prefix cache.",
        "received_tokens": "Prompt tokens of requests whose KV came from another worker, which"
        " counts them as its prompt tokens.",
        "steps": "Steps of the engine that computed tokens.",
        "drafts": "Guesses of the next tokens of a choice (--speculative-config).",
        "draft_tokens": "Output tokens that were guessed.",
        "accepted_draft_tokens": "Those of the guessed output tokens that were right.",
        "preemptions": "Choices whose KV blocks were taken for older ones.",
        "kv_fetched": "KV transfers from other workers that succeeded.",
        "kv_failed": "KV transfers from other workers that failed.",
        "kv_offload_dropped_blocks": "KV blocks that were evicted from the KV cache or from host"
        " memory before they were copied to the next tier.",
        "kv_onboards_given_up": "Requests that stopped waiting for KV from host memory or disk and"
        " computed it.",
        "kv_host_offloaded_blocks": "KV blocks that were copied to host memory.",
        "kv_host_onboarded_blocks": "KV blocks that came back from host memory.",
        "kv_host_failed_blocks": "KV blocks that could not be copied to or from host memory.",
        "kv_host_hit_tokens": "Prompt tokens whose KV came back from host memory; cached_tokens"
        " counts these and hits of the prefix cache.",
        "kv_disk_offloaded_blocks": "KV blocks that were written to disk.",
        "kv_disk_onboarded_blocks": "KV blocks that came back from disk.",
        "kv_disk_failed_blocks": "KV blocks that could not be written to disk, or whose file was"
        " missing or corrupt.",
        "kv_disk_hit_tokens": "Prompt tokens whose KV came back from disk, also in cached_tokens.",
        "embedding_queries": "Lookups in the embedding cache beside the engine.",
        "embedding_hits": "Lookups that found the embedding there.",
        "mm_encoded": "Pictures that were encoded.",
        "encoder_runs": "Runs of the vision model.",
        "mm_cache_queries": "Pictures that were asked of the encoder.",
        "mm_cache_hits": "Pictures that the encoder had encoded before.",
        "mm_received_bytes": "Bytes of pictures that were received.",
    }
)
ENGINE_HELP = MappingProxyType({**ENGINE_GAUGES, **ENGINE_COUNTERS})


def help_of(name: str) -> str:
    return ENGINE_HELP.get(name, name.replace("_", " "))
