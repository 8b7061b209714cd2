"""RTP-LLM's raw requests, `POST /`: a prompt as it is, or several, without a chat template.

What is asked of the model stands in `generate_config`, or beside the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from protocol.decoding import ANY_JSON, accepted, converted
from protocol.errors import InvalidRequest
from protocol.openai import ChatCompletionRequest, CompletionRequest, decode_chat, decode_completion
from protocol.rtp_config import config_fields, name_in

RAW_PATH = "/"
MAX_PROMPTS = 128
_OWN = frozenset(
    {"prompt", "text", "prompt_batch", "messages", "images", "urls", "generate_config",
     "generation_config", "stream", "functions", "source", "request_id", "private_request"}
)  # fmt: skip


@dataclass(frozen=True)
class RawRequest:
    """One raw request."""

    # one a prompt; chats, if the prompt is a list of messages
    requests: list[CompletionRequest | ChatCompletionRequest]
    images: list[list[str]]  # URLs, by prompt
    batch: bool  # whether it came as prompt_batch
    several: bool  # whether num_return_sequences was given
    stream: bool  # whether the answer is streamed
    incremental: bool  # whether events have the new text alone
    aux_info: bool  # whether lengths and times are told
    output_ids: bool  # whether the output's tokens are told
    input_ids: bool  # whether the prompt's are
    timeout_s: float | None  # as the config's timeout_ms says
    pixels: dict[str, Any] | None  # min_pixels and max_pixels of the config


class _Flags(msgspec.Struct):
    """Members of the config that are about the answer's form."""

    yield_generator: bool | None = None  # stream the answer
    is_streaming: bool | None = None  # the same under another name
    return_incremental: bool | None = None  # only new text in each event
    aux_info: bool | None = None  # lengths and times beside the text
    return_output_ids: bool | None = None  # the output's tokens beside the text
    return_input_ids: bool | None = None  # the prompt's tokens
    timeout_ms: int | None = None  # 0 and less: none
    num_return_sequences: int | None = None  # choices


def decode_raw(data: bytes) -> RawRequest:
    """The request in a JSON body, which may be a JSON text in a string; `InvalidRequest` names the
    field at fault."""
    body = json_object(data)
    config = _config_of(body)
    flags = converted(config, _Flags, "generate_config", "generate_config.")
    timeout = flags.timeout_ms or 0
    fields = config_fields(
        {k: v for k, v in config.items() if k != "timeout_ms"}, "generate_config"
    )
    stream = bool(body.get("stream") or flags.yield_generator or flags.is_streaming)
    batch = "prompt_batch" in body
    if batch and stream:
        raise InvalidRequest(
            "yield_generator: the prompts of prompt_batch are answered together, not as a stream",
            param="yield_generator",
        )
    if flags.return_incremental and not stream:
        raise InvalidRequest(
            "return_incremental needs yield_generator: true", param="return_incremental"
        )
    pixels = fields.pop("mm_processor_kwargs", None)
    requests = [_request(prompt, fields, config) for prompt in _prompts(body)]
    return RawRequest(
        requests,
        _images(body, len(requests), batch),
        batch,
        bool(flags.num_return_sequences),
        stream,
        bool(flags.return_incremental),
        flags.aux_info is not False,
        bool(flags.return_output_ids),
        bool(flags.return_input_ids),
        timeout / 1e3 if timeout > 0 else None,
        pixels,
    )


def json_object(data: bytes) -> dict[str, Any]:
    """A body that is a JSON object, or a string that holds one, as RTP-LLM takes both."""
    body = accepted(ANY_JSON.decode, data)
    if isinstance(body, str):
        body = accepted(ANY_JSON.decode, body.encode())
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object")
    return body


def _config_of(body: dict[str, Any]) -> dict[str, Any]:
    nested = body.get("generate_config", body.get("generation_config")) or {}
    if not isinstance(nested, dict):
        raise InvalidRequest("generate_config must be an object", param="generate_config")
    renamed: dict[str, str] = {
        "gen_length": "max_new_tokens", "output_input_ids": "return_input_ids"
    }  # fmt: skip
    beside = {renamed.get(k, str(k)): v for k, v in body.items() if k not in _OWN}
    if body.get("functions"):
        raise InvalidRequest(
            "functions is not supported: use tools of /v1/chat/completions",
            param="functions",
            code="unsupported_parameter",
        )
    return {**{renamed.get(k, str(k)): v for k, v in nested.items()}, **beside}


def _prompts(body: dict[str, Any]) -> list[Any]:
    """The prompts: texts, or lists of messages."""
    given = [n for n in ("prompt_batch", "prompt", "text", "messages") if body.get(n) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            "one of prompt, prompt_batch and messages must be given", param="prompt"
        )
    name, value = given[0], body[given[0]]
    if name == "prompt_batch":
        if not isinstance(value, list) or not 0 < len(value) <= MAX_PROMPTS:
            raise InvalidRequest(
                f"prompt_batch must be a list of 1 to {MAX_PROMPTS} prompts", param="prompt_batch"
            )
        return value
    return [value]


def _request(
    prompt: Any, fields: dict[str, Any], config: dict[str, Any]
) -> CompletionRequest | ChatCompletionRequest:
    chat = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
    if not chat and not isinstance(prompt, str):
        raise InvalidRequest("a prompt must be a text or a list of messages", param="prompt")
    name = "messages" if chat else "prompt"
    # A text has no template; RTP-LLM's clients send these with every prompt.
    if not chat and "chat_template_kwargs" in fields:
        fields = {k: v for k, v in fields.items() if k != "chat_template_kwargs"}
    data = msgspec.json.encode({name: prompt, **fields})
    try:
        return decode_chat(data) if chat else decode_completion(data)
    except InvalidRequest as error:
        if (member := name_in(config, error.param or "")) is not None:
            error.param = f"generate_config.{member}"
            error.message = f"{error.param}: {error.message}"
        raise


def _images(body: dict[str, Any], count: int, batch: bool) -> list[list[str]]:
    name = "images" if body.get("images") is not None else "urls"
    given = body.get(name) or []
    if batch and given:
        found = converted(given, list[list[str]], name)
        if len(found) != count:
            raise InvalidRequest(
                f"{name} must hold a list of URLs for each of the {count} prompts", param=name
            )
        return found
    return [converted(given, list[str], name)] if not batch else [[] for _ in range(count)]
