"""Bodies that ask for text: chats, completions, responses, messages, and what is made of them."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.common.pictures import sample
from benchmarks.fuzz.values import Form, clip, tone
from benchmarks.soak.stack import MODEL

TOKENS = 3
UNREACHABLE = "http://127.0.0.1:9"  # no process listens on this port
SAMPLED = {"max_tokens": TOKENS, "temperature": 0}
_DAMAGED = 5  # copies of each file
_PARAMETERS = {
    "type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["at"],
}  # fmt: skip
_FUNCTION = {"name": "look", "description": "Looks.", "parameters": _PARAMETERS}
_TOOL = {"type": "function", "function": _FUNCTION}
_SCHEMA = {"name": "one", "schema": {"type": "object", "properties": {"a": {"enum": [1, "b"]}}}}
Json = dict[str, Any]


def _chat(content: Any = "Hello", **more: Any) -> Json:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, **SAMPLED, **more}


def _with_a_call() -> list[Json]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"x"}'}}
    return [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    ]


def _copies(data: bytes) -> list[str]:
    """base64 of a file: as it is, cut off, and with a few bytes changed anywhere."""
    chance = random.Random(len(data))
    files = [data, data[: len(data) // 2]]
    for _ in range(_DAMAGED):
        file = bytearray(data)
        for _ in range(chance.randrange(1, 9)):
            file[chance.randrange(len(file))] ^= 1 << chance.randrange(8)
        files.append(bytes(file))
    return [base64.b64encode(file).decode() for file in files]


def _media() -> Iterator[Json]:
    """Parts of a chat that hold a clip or a sound, whole and damaged, or name one elsewhere."""
    for data in _copies(clip(1)):
        yield {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
    for data in _copies(tone()):
        yield {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    sound = base64.b64encode(tone()).decode()
    yield {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{sound}"}}
    for kind, name in (("image", "png"), ("video", "mp4"), ("audio", "mp3")):
        yield {"type": f"{kind}_url", f"{kind}_url": {"url": f"{UNREACHABLE}/a.{name}"}}
        yield {"type": f"{kind}_embeds", f"{kind}_embeds": {"image_grid_thw": [1, 2, 2]},
               "uuid": "h"}  # fmt: skip


def _picture() -> str:
    """A data URL."""
    (message,) = sample("describe", 3).openai_messages()
    urls = [part["image_url"]["url"] for part in message["content"] if "image_url" in part]
    return str(urls[0])


def chats() -> list[Json]:
    seen = sample("describe", 3).openai_messages()
    return [
        _chat(),
        _chat(stream=True, stream_options={"include_usage": True}, n=2, temperature=0.7, seed=3),
        _chat(logprobs=True, top_logprobs=2, stop=["a", "b"], logit_bias={"5": 1.0}),
        _chat(frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9, user="u", priority=1),
        _chat(min_tokens=1, top_k=5, min_p=0.1, repetition_penalty=1.1, stop_token_ids=[4]),
        {**_chat(), "messages": seen},
        {**_chat(mm_processor_kwargs={"max_pixels": 20_000}), "messages": seen, "stream": True},
        *(_chat([part]) for part in _media()),
        _chat(use_beam_search=True, n=2, length_penalty=1.0),
        _chat(tools=[_TOOL], tool_choice="auto", parallel_tool_calls=True),
        _chat(tools=[_TOOL], tool_choice={"type": "function", "function": {"name": "look"}}),
        {**_chat(), "messages": _with_a_call(), "tools": [_TOOL]},
        _chat(response_format={"type": "json_schema", "json_schema": _SCHEMA}),
        _chat(structured_outputs={"regex": "[a-z]+"}, cache_salt="s", ignore_eos=True),
        _chat(extra_configs={"max_new_tokens": TOKENS, "top_k": 1}, chat_id="c"),
        _chat(ec_transfer_params={"h": {"modality": "image", "item_indices": [0]}}),
        _chat(kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False}),
    ]


def batches() -> list[Json]:
    turns = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "Who?"}]
    return [{"model": MODEL, "messages": [*turns], **SAMPLED, "logprobs": True}]


def completions() -> list[Json]:
    base: Json = {"model": MODEL, "prompt": "Hello", **SAMPLED}
    return [
        base, {**base, "stream": True, "n": 2}, {**base, "prompt": ["a", "b"]},
        {**base, "prompt": [1, 2, 3], "echo": False, "logprobs": 2},
        {**base, "prompt": [[1, 2], [3]], "stop": "x", "suffix": None},
        {**base, "prompt": "Hello there", "echo": True, "prompt_logprobs": 1},
    ]  # fmt: skip


def responses() -> list[Json]:
    base: Json = {"model": MODEL, "input": "Hello", "max_output_tokens": TOKENS, "temperature": 0}
    content = [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "image_url": _picture(), "detail": "low"},
    ]
    called = {"call_id": "c1", "name": "look", "arguments": '{"at":"x"}'}
    items = [
        {"type": "message", "role": "user", "content": content},
        {"type": "function_call", **called},
        {"type": "function_call_output", "call_id": "c1", "output": "seen"},
    ]
    tool = {"type": "function", **_FUNCTION, "strict": True}
    form = {"type": "json_schema", **_SCHEMA}
    return [
        base, {**base, "stream": True, "instructions": "Be short.", "metadata": {"a": "b"}},
        {**base, "input": items, "tools": [tool], "tool_choice": "auto"},
        {**base, "tools": [tool], "tool_choice": {"type": "function", "name": "look"}},
        {**base, "text": {"format": form, "verbosity": "low"}, "reasoning": {"effort": "low"}},
        {**base, "store": True, "previous_response_id": "resp_1", "truncation": "auto"},
        {**base, "include": ["message.output_text.logprobs"], "stop": ["a"], "seed": 1},
    ]  # fmt: skip


def messages(counted: bool = False) -> list[Json]:
    """Anthropic's; `counted`: without what only an answer has."""
    said: list[Json] = [{"role": "user", "content": "Hello"}]
    base: Json = {"model": MODEL, "messages": said} | ({} if counted else {"max_tokens": TOKENS})
    picture = {"type": "base64", "media_type": "image/png", "data": _picture().partition(",")[2]}
    used = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "x"}}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Look."},
                                     {"type": "image", "source": picture}]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}]},
    ]  # fmt: skip
    tool = {"name": "look", "description": "Looks.", "input_schema": _PARAMETERS}
    bodies = [
        base, {**base, "system": [{"type": "text", "text": "Be short."}]},
        {**base, "messages": turns, "tools": [tool], "tool_choice": {"type": "auto"}},
        {**base, "thinking": {"type": "enabled", "budget_tokens": 1024},
         "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA["schema"]}}},
    ]  # fmt: skip
    if not counted:
        bodies += [
            {**base, "stream": True, "stop_sequences": ["a"], "top_k": 3, "top_p": 0.9},
            {**base, "tools": [tool], "tool_choice": {"type": "tool", "name": "look"}},
        ]
    return bodies  # fmt: skip


def raw_prompts() -> list[Json]:
    """RTP-LLM's, for `POST /`."""
    config = {"max_new_tokens": TOKENS, "top_k": 1, "do_sample": False, "random_seed": 3,
              "stop_words_list": [[4]], "timeout_ms": 2000}  # fmt: skip
    flags = {"return_incremental": True, "return_output_ids": True, "return_input_ids": True}
    return [
        {"prompt": "Hello", "generate_config": config},
        {"prompt": "Hello", "generate_config": {**config, **flags}, "yield_generator": True},
        {"prompt_batch": ["a", "b"], "generate_config": {**config, "num_return_sequences": 2}},
        {"prompt": [{"role": "user", "content": "Hello"}], "generate_config": config},
        {"prompt": "Look.", "images": [_picture()], "max_new_tokens": TOKENS},
    ]


def tokenized() -> list[Json]:
    return [
        {"prompt": "Hello", "add_special_tokens": False, "return_token_strs": True},
        {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False},
    ]


def spoken() -> list[Form | Json]:
    """Forms with a recording."""
    fields: Json = {"model": MODEL, "file": tone(), "language": "en", "temperature": "0"}
    return [Form(fields), Form({**fields, "stream": "true", "prompt": "x"})]
