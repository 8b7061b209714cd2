"""Rows of `protocol.request_fields` for the APIs that agents speak: /v1/responses, /v1/messages."""

from __future__ import annotations

from protocol.dialects import with_dialects
from protocol.request_fields import RequestField, RowsOf

_R, _M = RowsOf("responses"), RowsOf("messages")
_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
_SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
_AS_CHAT = "As of chat completions."
_RENDER = "Read by vLLM's render routes only."
_UNMARKED = "outputs carry no mark."
_COMPUTED = "The prompt is computed here: handles are followed in chats and completions."
_ENCODED = "Where embeddings of its pictures are, as of chat completions."

RESPONSES: tuple[RequestField, ...] = (
    _R.works("input", "A text, or items: messages, calls and their results, reasoning.", "Hi"),
    _R.works("model", "A name that is served; left out: the model that is served.", "m"),
    _R.works("instructions", "A system message before all others, of this response alone.", "x"),
    _R.works("previous_response_id", "The stored response that this one goes on from.", "resp_x"),
    _R.works(
        "store",
        "false: the response is not kept. A server keeps a bounded number; one that keeps none"
        " (--response-store-bytes 0, a proxy with --workers 2 or more) answers store: false.",
        False,
    ),
    _R.works("stream", "Answer by server-sent events.", True),
    _R.works("max_output_tokens", "Output tokens at most, reasoning included.", 4),
    _R.works("temperature", "0 for greedy.", 0.5),
    _R.works("top_p", "Probability mass to draw from.", 0.5),
    _R.works("tools", "Functions that the model may call.", [_FUNCTION]),
    _R.works("tool_choice", "none, auto, required, a function by name, or allowed_tools.", "auto"),
    _R.works("parallel_tool_calls", "false: one call at most.", False),
    _R.works("text", "format: text, json_object or json_schema; verbosity.", {"verbosity": "low"}),
    _R.works(
        "reasoning",
        "effort is handed to the chat template. All reasoning is told, so summary has no effect.",
        {"effort": "low"},
    ),
    _R.works("truncation", "Only disabled: a prompt that is too long is refused.", "disabled"),
    _R.works("include", "Only reasoning.encrypted_content, which no answer has.", []),
    _R.works("metadata", "Repeated in the response.", {"a": "b"}),
    _R.works("user", "Repeated in the response.", "u"),
    _R.works("top_k", _AS_CHAT, 5),
    _R.works("min_p", _AS_CHAT, 0.1),
    _R.works("seed", _AS_CHAT, 7),
    _R.works("repetition_penalty", _AS_CHAT, 1.2),
    _R.works("presence_penalty", _AS_CHAT, 0.5),
    _R.works("frequency_penalty", _AS_CHAT, 0.5),
    _R.works("logit_bias", _AS_CHAT, {"5": 1}),
    _R.works("stop", _AS_CHAT, ["x"]),
    _R.works("stop_token_ids", _AS_CHAT, [5]),
    _R.works("ignore_eos", _AS_CHAT, True),
    _R.works("skip_special_tokens", _AS_CHAT, False),
    _R.works("include_stop_str_in_output", _AS_CHAT, True),
    _R.works("structured_outputs", _AS_CHAT, {"regex": "a"}),
    _R.works("mm_processor_kwargs", _AS_CHAT, {"max_pixels": 65536}),
    _R.works("priority", _AS_CHAT, 1),
    _R.works("cache_salt", _AS_CHAT, "s"),
    _R.works("request_id", "The response's id begins with it, after resp_.", "r"),
    _R.works("session_id", _AS_CHAT, "s"),
    _R.works("include_reasoning", "false leaves out items of reasoning.", False),
    _R.works("chat_template", _AS_CHAT, "{{ messages[0].content }}"),
    _R.works("chat_template_kwargs", _AS_CHAT, {"a": 1}),
    _R.works("ec_transfer_params", _ENCODED, {}),
    _R.refused("background", "keep the connection open, or stream.", True, False),
    _R.refused("conversation", "use previous_response_id.", "c"),
    _R.refused("prompt", "send the prompt itself.", {"id": "p"}),
    _R.refused("max_tool_calls", "the client runs the tools here, and may stop.", 1),
    _R.refused("top_logprobs", "use chat completions.", 2, 0),
    _R.refused("context_management", "send the input that is to be read.", [{"type": "x"}], []),
    _R.refused("moderation", "nothing is moderated here.", {"model": "m"}),
    _R.refused("enable_response_messages", "use /v1/chat/completions/render.", True, False),
    _R.refused("previous_input_messages", "send them as input.", [{}], []),
    _R.refused("vllm_xargs", "there are no extensions that read it.", {"a": 1}, {}),
    _R.refused("watermarking", _UNMARKED, True, False),
    _R.refused("media_io_kwargs", "use mm_processor_kwargs.", {"video": {"fps": 1}}, {}),
    _R.harmless("stream_options", "Usage is always told; nothing is padded.", {}),
    _R.harmless("safety_identifier", "The Authorization header names the caller.", "u"),
    _R.harmless("prompt_cache_key", "Prefixes are found by their content.", "k"),
    _R.harmless("prompt_cache_options", "As prompt_cache_key.", {"mode": "implicit"}),
    _R.harmless("prompt_cache_retention", "As prompt_cache_key.", "24h"),
    _R.harmless("service_tier", "ignored: there is one tier.", "auto"),
    _R.harmless("kv_transfer_params", _COMPUTED, {"a": 1}),
    _R.harmless("mm_payload", _RENDER, "none"),
    _R.harmless("return_mm_kwargs", _RENDER, False),
)

MESSAGES: tuple[RequestField, ...] = (
    _M.works(
        "messages",
        "The conversation; content is text or blocks.",
        [{"role": "user", "content": "Hi"}],
    ),
    _M.works("model", "A name that is served; left out: the model that is served.", "m"),
    _M.works("max_tokens", "Output tokens at most, reasoning included.", 4),
    _M.works("system", "A text, or text blocks, before all messages.", "Be brief."),
    _M.works("stream", "Answer by server-sent events.", True),
    _M.works("stop_sequences", "Up to 16 strings that end the answer.", ["x"]),
    _M.works("temperature", "0 for greedy.", 0.5),
    _M.works("top_p", "Probability mass to draw from.", 0.5),
    _M.works("top_k", "Likeliest tokens to draw from.", 5),
    _M.works("tools", "Functions that the model may call.", [{"name": "f", "input_schema": {}}]),
    _M.works("tool_choice", "auto, any, none, or a tool by name.", {"type": "auto"}),
    _M.works(
        "thinking",
        "Whether the chat template asks for reasoning.",
        {"type": "disabled"},
    ),
    _M.works(
        "output_config",
        "format: a JSON schema that the answer keeps to; effort: handed to the chat template.",
        {"effort": "low"},
    ),
    _M.works("output_format", "As output_config.format.", _SCHEMA),
    _M.works("chat_template_kwargs", "Variables of the chat template.", {"a": 1}),
    _M.works("cache_salt", _AS_CHAT, "s"),
    _M.works("ec_transfer_params", _ENCODED, {}),
    _M.refused("vllm_xargs", "there are no extensions that read it.", {"a": 1}, {}),
    _M.refused("watermarking", _UNMARKED, True, False),
    _M.refused("mcp_servers", "the client runs the tools here.", [{"type": "url"}], []),
    _M.refused("container", "nothing is run here.", "c"),
    _M.refused("thread", "no conversation is kept here: send all of it.", {"type": "create"}),
    _M.refused("fallbacks", "name the model that is to answer.", [{"model": "m"}], []),
    _M.harmless("metadata", "The Authorization header names the caller.", {"user_id": "u"}),
    _M.harmless("service_tier", "ignored: there is one tier.", "auto"),
    _M.harmless("speed", "There is one.", "standard"),
    _M.harmless("inference_geo", "ignored: the answer is made where it is asked for.", "eu"),
    _M.harmless("cache_control", "Prefixes are found by their content.", {"type": "ephemeral"}),
    _M.harmless("diagnostics", "ignored: the header Server-Timing tells how a request went.", {}),
    _M.harmless(
        "context_management",
        "Nothing is cleared: a prompt that is too long is refused.",
        {"edits": []},
    ),
    _M.harmless("anthropic_version", "There is one.", "bedrock-2023-05-31"),
    _M.harmless("anthropic_beta", "There are no beta features.", []),
    _M.harmless("betas", "As anthropic_beta.", []),
    _M.harmless("user_profile_id", "As metadata.", "u"),
    _M.harmless("kv_transfer_params", _COMPUTED, {"a": 1}),
    _M.harmless("mm_payload", _RENDER, "none"),
    _M.harmless("return_mm_kwargs", _RENDER, False),
)

AGENT_FIELDS = with_dialects((*RESPONSES, *MESSAGES))
