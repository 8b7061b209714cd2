"""What the figures mean that an engine reports (`services.engine.reports`)."""

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
        "embedding_lost": "Embeddings that requests needed and that no encoder had any more or sent"
        " in time; the proxy has them encoded again.",
        "mm_encoded": "Pictures that were encoded.",
        "mm_reencoded": "Those of the encoded pictures that were encoded here before, as far as the"
        " last 16384 tell: their embeddings had been evicted or lost.",
        "encoder_runs": "Runs of the vision model.",
        "mm_cache_queries": "Pictures that were asked of the encoder.",
        "mm_cache_hits": "Pictures that the encoder had encoded before.",
        "mm_received_bytes": "Bytes of pictures that were received.",
    }
)
_CHOICES = "Of choices that ended here without an error."
ENGINE_HISTOGRAMS = MappingProxyType(
    {
        "request_queue_time_seconds": "Seconds from the arrival of a request at the engine to the"
        " first step that computes it; those whose KV comes from another worker are in"
        " request_kv_wait_seconds instead.",
        "request_kv_wait_seconds": "Seconds from the arrival of a request at the engine to that of"
        " its KV from another worker, whose prefill may go on meanwhile.",
        "request_embedding_wait_seconds": "Seconds from the arrival of a request at the engine to"
        " that of the last embedding it lacked; requests that lacked none are not counted.",
        "request_prefill_time_seconds": "Seconds from the first step that computes a request to its"
        " first token, where its prompt is computed.",
        "request_decode_time_seconds": "Seconds from the first token of a choice, or from the"
        f" arrival of its KV, to its last token. {_CHOICES}",
        "request_inference_time_seconds": "Seconds from the first step that computes a choice, or"
        " the arrival of its KV, to its last token here; also of those that another worker decodes"
        " on.",
        "request_time_per_output_token_seconds": "Mean seconds for each token that decoding a"
        f" choice gained. {_CHOICES}",
        "request_prompt_tokens": "Tokens of a prompt, where it is computed or found in the prefix"
        " cache: as prompt_tokens, once for all choices.",
        "request_generation_tokens": "Tokens of an output, those that other workers have made"
        f" included. {_CHOICES}",
        "encoder_queue_time_seconds": "Seconds from the arrival of a picture at the encoder to the"
        " run that encodes it; preparing its pixels is among them.",
        "encoder_run_time_seconds": "Seconds that a run of the vision model takes.",
    }
)
ENGINE_HELP = MappingProxyType({**ENGINE_GAUGES, **ENGINE_COUNTERS, **ENGINE_HISTOGRAMS})


def help_of(name: str) -> str:
    return ENGINE_HELP.get(name, name.replace("_", " "))
