"""RTP-LLM's generate_config in the words of OpenAI's requests.

Clients of RTP-LLM write out all of its members, most with values that ask for nothing. A member
that would change the answer and is not honoured is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from protocol.errors import InvalidRequest

MAX_NEW_TOKENS = 32000
"""RTP-LLM's default of max_new_tokens: as many as there is room for."""

_SAME = (
    "top_k", "top_p", "temperature", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "ignore_eos", "skip_special_tokens", "response_format",
    "chat_template_kwargs",
)  # fmt: skip
_RENAMED: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in _SAME},
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "random_seed": "seed",
        "num_return_sequences": "n",
        "stop_words_str": "stop",
        "print_stop_words": "include_stop_str_in_output",
        "adapter_name": "model",
        "json_schema": "guided_json",
        "regex": "guided_regex",
        "ebnf": "guided_grammar",
    }
)
_IDLE: Mapping[str, Any] = MappingProxyType(
    {"max_new_tokens": MAX_NEW_TOKENS, "num_return_sequences": 0, "min_new_tokens": 0}
)
_PIXELS = ("min_pixels", "max_pixels")

# Without any effect on the answer's text: logs, placement, caches, hints of speed.
HARMLESS = frozenset(
    {
        "trace_id", "chat_id", "task_id", "md5_value", "custom_prop", "request_format",
        "can_use_pd_separation", "reuse_cache", "enable_device_cache", "enable_memory_cache",
        "enable_remote_cache", "role_addrs", "traffic_reject_priority", "qos_priority",
        "max_input_tokens", "force_disable_sp_run", "using_hf_sampling", "profile_step",
        "profile_trace_name", "global_request_id", "select_tokens_str", "mm_timeout_ms",
        "ttft_timeout_ms", "group_timeout", "aux_info", "return_incremental", "is_streaming",
        "yield_generator", "return_output_ids", "return_input_ids", "add_vision_id",
        "bos_token_id", "pad_token_id", "eos_token_id", "prompt_logits_top_k",
        "prompt_logits_start", "prompt_logits_end", "return_target_logprob",
        "hidden_states_cut_dim", "begin_think_token_ids", "end_think_token_ids",
    }
)  # fmt: skip

# What to do instead, and the value that asks for nothing; null, false, 0 and nothing always do.
_REFUSED: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "num_beams": ("use use_beam_search of /v1/chat/completions", 1),
        "variable_num_beams": ("use use_beam_search of /v1/chat/completions", None),
        "no_repeat_ngram_size": ("use repetition_penalty", None),
        "top_p_decay": ("use top_p", None),
        "top_p_min": ("use top_p", None),
        "top_p_reset_ids": ("use top_p", None),
        "bad_words_list": ("use bad_words of /v1/chat/completions", None),
        "select_tokens_id": ("use logprob_token_ids of /v1/chat/completions", None),
        "timeout_ms": ("use the header X-Request-Timeout, in seconds", -1),
        "calculate_loss": ("use prompt_logprobs of /v1/completions", None),
        "return_logits": ("use logprobs of /v1/completions", None),
        "logits_index": ("use logprobs of /v1/completions", None),
        "return_prompt_logits": ("use prompt_logprobs of /v1/completions", None),
        "return_softmax_probs": ("use logprobs of /v1/completions", None),
        "return_all_probs": ("use logprobs of /v1/completions", None),
        "return_cum_log_probs": ("use logprobs of /v1/completions", None),
        "return_hidden_states": ("hidden states are not answered", None),
        "return_all_hidden_states": ("hidden states are not answered", None),
        "normalized_hidden_states": ("hidden states are not answered", None),
        "structural_tag": ("use json_schema, regex or ebnf", None),
        "json_format": ("use response_format", None),
        "in_think_mode": ("use chat_template_kwargs.enable_thinking", None),
        "thinking_mode": ("use chat_template_kwargs.enable_thinking", None),
        "max_thinking_tokens": ("use max_new_tokens", MAX_NEW_TOKENS),
        "out_prefix": ("write it into the prompt", None),
        "sp_advice_prompt": ("tokens are not guessed here", None),
        "sp_advice_prompt_token_ids": ("tokens are not guessed here", None),
        "sp_edit": ("tokens are not guessed here", None),
        "force_sp_accept": ("tokens are not guessed here", None),
        "gen_timeline": ("use /start_profile", None),
        "resized_shape": ("use min_pixels and max_pixels", None),
        "crop_positions": ("pictures are taken whole", None),
        "combo_token_size": ("combinations of tokens are not kept apart here", None),
        "fps": ("pictures alone are taken", None),
        "min_frames": ("pictures alone are taken", None),
        "max_frames": ("pictures alone are taken", None),
    }
)


def config_fields(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of an OpenAI request that ask for what `config` asks for, unchecked.

    `where` is the field that holds the config, which `InvalidRequest` names with its member.
    """
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if name in _RENAMED:
            if value is not None and value != _IDLE.get(name) and value != []:
                fields[_RENAMED[name]] = value
        elif name not in HARMLESS and name not in (*_PIXELS, "do_sample", "stop_words_list"):
            _check_idle(name, value, f"{where}.{name}" if where else name)
    if config.get("do_sample") is False:
        fields["temperature"] = 0
    if ends := config.get("stop_words_list"):
        fields["stop_token_ids"] = _single(ends, f"{where}.stop_words_list".lstrip("."))
    if pixels := {name: config[name] for name in _PIXELS if config.get(name) is not None}:
        fields["mm_processor_kwargs"] = pixels
    return fields


def name_in(config: Mapping[str, Any], field: str) -> str | None:
    """Which member of `config` the OpenAI field `field` came from, None for none."""
    return next((name for name in config if _RENAMED.get(name) == field), None)


def _check_idle(name: str, value: Any, param: str) -> None:
    if name not in _REFUSED:
        raise InvalidRequest(
            f"{param} is no member of RTP-LLM's generate_config",
            param=param,
            code="unknown_parameter",
        )
    instead, idle = _REFUSED[name]
    if value and value != idle:
        raise InvalidRequest(
            f"{param} is not supported: {instead}", param=param, code="unsupported_parameter"
        )


def _single(ends: Any, param: str) -> list[Any]:
    """Stop words of one token each as token ids."""
    if not isinstance(ends, list) or not all(isinstance(e, list) and len(e) == 1 for e in ends):
        raise InvalidRequest(
            f"{param} must hold lists of one token id each; use stop_words_str for texts",
            param=param,
        )
    return [end[0] for end in ends]
