"""The rows of `protocol.request_fields`: all fields of OpenAI's and vLLM's requests; those that are
honoured stand here, `protocol.unsupported_fields` has the others.
"""

from __future__ import annotations

from protocol.agent_fields import AGENT_FIELDS
from protocol.dialects import with_dialects
from protocol.pooling_fields import POOLING_FIELDS
from protocol.request_fields import CHAT, TEXT, works
from protocol.unsupported_fields import HARMLESS, REFUSED

_FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

WORKS = (
    works(
        "messages",
        "The conversation; content is text or parts: text, image_url, video_url, input_audio,"
        " audio_url.",
        [],
        routes=CHAT,
    ),
    works("prompt", "A text, texts, token ids, or lists of token ids.", "Hi", routes=TEXT),
    works("model", "A name that is served; left out: the model that is served.", "m"),
    works("stream", "Answer by server-sent events.", True),
    works(
        "stream_options",
        "With include_usage usage comes at a stream's end, with continuous_usage_stats beside it"
        " also in every chunk, counted for its choice. Only with stream: true.",
        {"include_usage": True},
    ),
    works("max_tokens", "Output tokens at most; 0 only where the prompt is scored.", 4),
    works("max_completion_tokens", "As max_tokens, before which it goes.", 4, routes=CHAT),
    works("n", "Choices, 1 to 128.", 2),
    works(
        "best_of",
        "Choices to compute, of which the n with the highest mean log-probability are answered.",
        3,
        routes=TEXT,
    ),
    works(
        "use_beam_search",
        "Search with n beams, in completions with best_of, 16 at most, as transformers does; the n"
        " best are answered, the best first. Not with penalties, stop strings, log-probabilities of"
        " the prompt or a grammar, and without drawing: temperature is 0 or 1.",
        True,
    ),
    works(
        "length_penalty",
        "-10 to 10; beams rank by their log-probability divided by their length to this power.",
        2.0,
    ),
    works(
        "early_stopping",
        "true: beam search ends with as many ended beams as it has; false: when no other looks like"
        ' getting better; "never": when none can.',
        True,
    ),
    works("temperature", "0 for greedy.", 0.5),
    works("top_p", "Probability mass to draw from.", 0.5),
    works("top_k", "Likeliest tokens to draw from; 0 or -1 for all.", 5),
    works("min_p", "Least probability, relative to the likeliest token.", 0.1),
    works("seed", "Makes draws repeatable.", 7),
    works("stop", "Up to 16 strings that end the answer.", ["x"]),
    works("stop_token_ids", "Tokens that end the answer.", [5]),
    works("include_stop_str_in_output", "Show the stop string that ended the answer.", True),
    works("ignore_eos", "Go on past the end-of-sequence token.", True),
    works("min_tokens", "No end before so many output tokens.", 2),
    works("presence_penalty", "-2 to 2, for tokens that the output has.", 0.5),
    works("frequency_penalty", "-2 to 2, for each time that the output has a token.", 0.5),
    works("repetition_penalty", "Above 0, for tokens of prompt and output.", 1.2),
    works("logit_bias", "Token id → -100 to 100, added to its logit.", {"5": 1}),
    works("allowed_token_ids", "The only tokens that the output may have.", [5, 6]),
    works(
        "bad_words",
        "Texts whose tokens the output does not have one after the other, each as it stands and"
        " after a blank.",
        ["x"],
    ),
    works(
        "logprobs",
        "Show log-probabilities of the output's tokens with 0 to 20 alternatives.",
        0,
        routes=TEXT,
    ),
    works("logprobs", "Show log-probabilities of the output's tokens.", True, routes=CHAT),
    works("top_logprobs", "Alternatives, 0 to 20, beside logprobs: true.", 2, routes=CHAT),
    works(
        "logprob_token_ids",
        "Up to 128 tokens whose log-probabilities are shown beside the alternatives of each token."
        " Needs logprobs; not with echo.",
        [5, 6],
    ),
    works(
        "prompt_logprobs",
        "Log-probabilities of the prompt's tokens with 0 to 20 alternatives, in vLLM's form. Not"
        " with stream: true.",
        1,
    ),
    works(
        "echo",
        "The prompt before the output; with logprobs its log-probabilities too, and max_tokens may"
        " be 0.",
        True,
        routes=TEXT,
    ),
    works("return_token_ids", "Token ids of prompt and output beside the text.", True),
    works("return_tokens_as_token_ids", "Tokens of logprobs as token_id:5.", True),
    works("skip_special_tokens", "Leave special tokens out of the text; true if left out.", False),
    works("add_special_tokens", "Whether the tokenizer adds its own, such as BOS.", True),
    works(
        "truncate_prompt_tokens",
        "Keep so many tokens of the prompt; -1: as many as leave room for max_tokens. Not with"
        " pictures.",
        3,
    ),
    works(
        "truncation_side", "left keeps the prompt's end (if left out), right its start.", "right"
    ),
    works("response_format", "text, json_object or json_schema.", {"type": "text"}),
    works(
        "structured_outputs", "vLLM's json, regex, choice, grammar, json_object.", {"regex": "a"}
    ),
    works("guided_json", "A JSON schema, as older vLLMs name it.", {"type": "object"}),
    works("guided_regex", "A regular expression, as older vLLMs name it.", "a"),
    works("guided_choice", "Texts to choose from, as older vLLMs name it.", ["a"]),
    works("guided_grammar", "A grammar, as older vLLMs name it.", 'start: "a"'),
    works("tools", "Functions that the model may call.", [_FUNCTION], routes=CHAT),
    works("tool_choice", "none, auto, required, or a function by name.", "none", routes=CHAT),
    works("parallel_tool_calls", "false: one call at most.", False, routes=CHAT),
    works("documents", "Handed to the chat template.", [{"title": "t", "text": "x"}], routes=CHAT),
    works(
        "reasoning_effort",
        "Handed to the chat template, where one that knows no efforts leaves it.",
        "low",
        routes=CHAT,
    ),
    works(
        "include_reasoning",
        "false leaves out the reasoning that is read from the text.",
        False,
        routes=CHAT,
    ),
    works("verbosity", "Handed to the chat template, as reasoning_effort.", "low", routes=CHAT),
    works("chat_template_kwargs", "Variables of the chat template.", {"a": 1}, routes=CHAT),
    works(
        "mm_processor_kwargs",
        "How large pictures and a clip's frames become: min_pixels and max_pixels, or size, as"
        " transformers takes them, but not larger than without; and which frames of a clip are"
        " taken: fps, or num_frames at most. For Qwen's models.",
        {"max_pixels": 65536},
        routes=CHAT,
    ),
    works(
        "media_io_kwargs",
        "Which frames of a clip are taken: video has fps, or num_frames at most, or both, of which"
        " the fewer are taken. mm_processor_kwargs go before it.",
        {"video": {"fps": 1}},
        routes=CHAT,
    ),
    works(
        "chat_template",
        "A Jinja template instead of the model's own, where --trust-request-chat-template is set.",
        "{{ messages[0].content }}",
        routes=CHAT,
    ),
    works(
        "user_template",
        "As chat_template, which goes before it, for RTP-LLM's clients.",
        "{{ messages[0].content }}",
        routes=CHAT,
    ),
    works("template_key", "Which of the model's templates writes the chat.", "tool", routes=CHAT),
    works("enable_thinking", "Handed to the chat template, as RTP-LLM has it.", False, routes=CHAT),
    works(
        "extra_configs",
        "RTP-LLM's generate_config, where the request's own fields do not say the same. A member"
        " that is not honoured is refused by its name.",
        {"max_new_tokens": 4},
        routes=CHAT,
    ),
    works(
        "nvext",
        "Dynamo's extensions: the members that have a field of their own here, greed_sampling and"
        " session_control, where the request's own fields do not say the same. Those about"
        " placement have no effect; one that is not honoured is refused by its name.",
        {"top_k": 1},
    ),
    works(
        "add_generation_prompt", "Whether an answer begins; true if left out.", False, routes=CHAT
    ),
    works(
        "continue_final_message",
        "Go on with the last message; needs add_generation_prompt: false.",
        True,
        routes=CHAT,
    ),
    works("service_tier", "auto or any other; the answer says default, the only one.", "auto"),
    works("priority", "Lower runs earlier, not below --min-priority.", 1),
    works("cache_salt", "Shares cached prefixes with requests of the same salt only.", "s"),
    works("request_id", "As the header X-Request-Id, which goes before it.", "r"),
    works("session_id", "As the header X-Session-Id, which goes before it.", "s"),
    works("chat_id", "As session_id, which goes before it.", "s", routes=CHAT),
    works("ec_transfer_params", "vLLM's EPD protocol: where embeddings are.", {}),
    works(
        "kv_transfer_params",
        "vLLM's EPD protocol: where KV is.",
        {},
    ),
)


FIELDS = with_dialects((*WORKS, *REFUSED, *HARMLESS))
"""Of chats and completions."""
ALL_FIELDS = (*FIELDS, *AGENT_FIELDS, *POOLING_FIELDS)
