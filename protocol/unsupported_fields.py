"""The rows of OpenAI's and vLLM's fields that are refused, or taken without any effect."""

from __future__ import annotations

from protocol.request_fields import CHAT, TEXT, harmless, refused

_RENDER = "Read by vLLM's render routes only."


REFUSED = (
    refused("suffix", "the models here complete a prompt at its end.", "x", "", routes=TEXT),
    refused("watermarking", "outputs carry no mark.", True, False),
    refused(
        "repetition_detection", "use frequency_penalty or max_tokens.", {"max_pattern_size": 3}
    ),
    refused("thinking_token_budget", "use max_tokens.", 5, -1),
    refused("vllm_xargs", "there are no extensions that read it.", {"a": 1}, {}),
    refused("logits_processors", "requests bring no code.", ["x"], []),
    refused("prompt_embeds", "a prompt is text or token ids.", "AAAA", "", [], routes=TEXT),
    refused("routed_experts_prompt_start", "routed experts are not answered.", 3, 0),
    refused("guided_whitespace_pattern", "use structured_outputs.whitespace_pattern.", "a"),
    refused("media_io_kwargs", "a text has no clips.", {"video": {"fps": 1}}, {}, routes=TEXT),
    refused(
        "mm_processor_kwargs",
        "a text has no pictures.",
        {"max_pixels": 4096},
        {},
        routes=TEXT,
    ),
    refused("functions", "use tools.", [{"name": "f"}], [], routes=CHAT),
    refused("function_call", "use tool_choice.", {"name": "f"}, "none", "auto", routes=CHAT),
    refused("modalities", "answers are text.", ["text", "audio"], ["text"], [], routes=CHAT),
    refused("audio", "answers are text.", {"voice": "x", "format": "wav"}, routes=CHAT),
    refused("web_search_options", "nothing is searched here.", {}, routes=CHAT),
    refused("moderation", "nothing is moderated here.", {"model": "m"}, routes=CHAT),
    refused(
        "return_prompt_text", "use return_token_ids and /detokenize.", True, False, routes=CHAT
    ),
    refused("echo", "of completions only.", True, False, routes=CHAT),
    refused("debug_info", "use /v1/chat/render.", True, False, routes=CHAT),
    refused("aux_info", "use usage, and Server-Timing.", True, False, routes=CHAT),
    refused("json_format", "use response_format.", True, False, routes=CHAT),
    refused("logprobs_mode", "there is one.", "original", "default", routes=CHAT),
    refused("thinking_budget", "use max_tokens.", 5, routes=CHAT),
    refused("no_stop_trim", "use include_stop_str_in_output.", True, False),
    refused("return_hidden_states", "use the pooling routes.", True, False),
    refused("separate_reasoning", "use include_reasoning.", False, True, routes=CHAT),
    refused("stream_reasoning", "use include_reasoning.", False, True, routes=CHAT),
)


HARMLESS = (
    harmless("user", "The Authorization header names the caller.", "u"),
    harmless("safety_identifier", "As user.", "u", routes=CHAT),
    harmless("metadata", "Nothing is kept.", {"a": "b"}),
    harmless("store", "Nothing is kept.", True, routes=CHAT),
    harmless("prompt_cache_key", "Prefixes are found by their content.", "k", routes=CHAT),
    harmless("prompt_cache_options", "As prompt_cache_key.", {"mode": "implicit"}, routes=CHAT),
    harmless("prompt_cache_retention", "As prompt_cache_key.", "24h", routes=CHAT),
    harmless(
        "prediction", "Would only be faster.", {"type": "content", "content": "x"}, routes=CHAT
    ),
    harmless("stream_interval", "Chunks come as tokens do.", 4),
    harmless("spaces_between_special_tokens", "Fast tokenizers have none to leave out.", False),
    harmless("guided_decoding_backend", "There is one, llguidance.", "auto"),
    harmless("trace_id", "X-Request-Id names a request.", "t", routes=CHAT),
    harmless("private_request", "No log has what a request says.", True, routes=CHAT),
    harmless("extend_fields", "Of RTP-LLM's logs only.", {"a": 1}, routes=CHAT),
    harmless("master_info", "Each request is placed anew.", {"a": 1}, routes=CHAT),
    harmless("return_token_offsets", _RENDER, True),
    harmless("mm_payload", _RENDER, "none"),
    harmless("return_mm_kwargs", _RENDER, False),
)
