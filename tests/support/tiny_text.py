"""Tokenizers and chat templates of the tiny model families.

A byte-level BPE is trained on a fixed text, so token ids are the same everywhere. Templates render
what each family's published template renders for roles, text, pictures and the generation prompt
(no tools), and clips or audio where it takes them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CORPUS = """What is in this image? There is a red circle and a blue square on a white background.
How many circles are there? There are three circles, two squares and one triangle.
What colour is the square? The square is blue, the star is yellow, the cross is green.
Which of the two images shows a digit? The second image shows the digit seven, the first does not.
Describe the picture in one sentence. The picture shows a black triangle to the left of a circle.
You are a helpful assistant. Hello, how are you today? I am fine, thank you. Tell me a story.
Once upon a time there was a small server that answered every request before it was asked.
def add(a, b): return a + b  # 0123456789 {"name": "value", "list": [1, 2, 3]} https://example.org
Übergröße, café, naïve façade, señor; 你好，世界。これは写真です。Привет, мир! 🙂🎉
"""
BYTES = 256
MERGES = 220

_CHATML = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part['type'] == 'video' or 'video' in part -%}"
    "{{ '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
_DEFAULT_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}"
    "{%- endif -%}"
)
_THINKING_OFF = (
    "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false -%}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
)
# Pictures of a turn come before its text, for any order of the parts.
_LLAVA_ONEVISION = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{%- for part in message['content'] | selectattr('type', 'equalto', 'image') -%}"
    "{{ '<image>' }}{%- endfor -%}"
    "{%- for part in message['content'] | selectattr('type', 'equalto', 'text') -%}"
    "{{ '\\n' + part['text'] }}{%- endfor -%}"
    "{{ '<|im_end|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
_INTERNVL = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<IMG_CONTEXT>\\n' }}"
    "{% elif part['type'] == 'video' %}{{ '<video>\\n' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_MISTRAL = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['role'] == 'user' %}"
    "{%- if message['content'] is string %}{{- '[INST]' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST]' }}"
    "{%- for block in message['content'] %}"
    "{%- if block['type'] == 'text' %}{{- block['text'] }}"
    "{%- elif block['type'] in ['image', 'image_url'] %}{{- '[IMG]' }}{%- endif %}"
    "{%- endfor %}{{- '[/INST]' }}{%- endif %}"
    "{%- else %}"
    "{%- set content = message['content'] %}"
    "{%- set text = content if content is string else content[0]['text'] %}"
    "{%- if message['role'] == 'system' %}{{- '[SYSTEM_PROMPT]' + text + '[/SYSTEM_PROMPT]' }}"
    "{%- else %}{{- text + eos_token }}{%- endif %}"
    "{%- endif %}"
    "{%- endfor %}"
)
_SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
_GEMMA = (
    "{{ bos_token }}"
    "{%- set ns = namespace(turns=messages, prefix='') -%}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set first = messages[0]['content'] -%}"
    "{%- set ns.prefix = (first if first is string else first[0]['text']) + '\\n\\n' -%}"
    "{%- set ns.turns = messages[1:] -%}"
    "{%- endif -%}"
    "{%- for message in ns.turns -%}"
    "{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{%- endif -%}"
    "{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) }}"
    "{{ '\\n' + (ns.prefix if loop.first else '') }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif part['type'] == 'text' -%}{{ part['text'] | trim }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}"
)
_GEMMA4 = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'text' -%}{{ part['text'] | trim }}"
    "{%- elif part['type'] == 'image' -%}{{ '\\n\\n<|image|>\\n\\n' }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<turn|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|turn>model\\n' }}{%- endif -%}"
)
_LLAMA = (
    "{{ bos_token }}"
    "{%- for message in messages -%}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ message['content'] | trim }}{{ '<|eot_id|>' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}"
)

_QWEN_AUDIO = (
    "{%- set heard = namespace(count=0) -%}"
    "{%- for message in messages -%}"
    "{%- if loop.first and message['role'] != 'system' -%}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}{%- for part in message['content'] -%}"
    "{%- if 'audio' in part or 'audio_url' in part -%}"
    "{%- set heard.count = heard.count + 1 -%}"
    "{{ 'Audio ' ~ heard.count ~ ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}"
    "{%- elif 'text' in part -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

_QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_VOCAB_TOKENS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@dataclass(frozen=True)
class TextSide:
    """What a family's tokenizer directory says; `head` ids come before the bytes, `tail` after."""

    template: str
    eos: tuple[str, ...]
    pad: str
    head: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    plain_tail: tuple[str, ...] = ()  # one token each, but shown when special ones are skipped
    bos: str | None = None
    names: tuple[tuple[str, str], ...] = ()  # extra entries of tokenizer_config.json


CHATML_TEXT = TextSide(
    template=_CHATML + _THINKING_OFF,
    eos=("<|im_end|>", "<|endoftext|>"),
    pad="<|endoftext|>",
    tail=_QWEN_SPECIAL,
    plain_tail=_QWEN_VOCAB_TOKENS,
)
QWEN2_VL = TextSide(
    template=_DEFAULT_SYSTEM + _CHATML,
    eos=("<|im_end|>", "<|endoftext|>"),
    pad="<|endoftext|>",
    tail=_QWEN_SPECIAL + _QWEN_VISION,
)
QWEN3_VL = TextSide(
    template=_CHATML,
    eos=("<|im_end|>", "<|endoftext|>"),
    pad="<|endoftext|>",
    tail=_QWEN_SPECIAL + _QWEN_VISION,
    plain_tail=_QWEN_VOCAB_TOKENS,
)
LLAVA_ONEVISION = TextSide(
    template=_LLAVA_ONEVISION,
    eos=("<|im_end|>",),
    pad="<|endoftext|>",
    tail=(*_QWEN_SPECIAL, "<image>", "<video>"),
)
LLAVA = TextSide(
    template=_LLAVA_ONEVISION,
    eos=("<|im_end|>",),
    pad="<|endoftext|>",
    tail=(*_QWEN_SPECIAL, "<image>"),
)
INTERNVL = TextSide(
    template=_INTERNVL,
    eos=("<|im_end|>", "<|endoftext|>"),
    pad="<|endoftext|>",
    tail=(*_QWEN_SPECIAL, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
    names=(
        ("start_image_token", "<img>"),
        ("end_image_token", "</img>"),
        ("context_image_token", "<IMG_CONTEXT>"),
        ("video_token", "<video>"),
    ),
)
QWEN2_AUDIO = TextSide(
    template=_QWEN_AUDIO,
    eos=("<|im_end|>", "<|endoftext|>"),
    pad="<|endoftext|>",
    tail=(*_QWEN_SPECIAL, "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
)
MISTRAL3 = TextSide(
    template=_MISTRAL,
    eos=("</s>",),
    pad="<pad>",
    bos="<s>",
    head=("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"),
    tail=("[IMG]", "[IMG_BREAK]", "[IMG_END]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
)
SMOLVLM = TextSide(
    template=_SMOLVLM,
    eos=("<end_of_utterance>",),
    pad="<|endoftext|>",
    tail=(
        "<|endoftext|>",
        "<|im_start|>",
        "<end_of_utterance>",
        "<fake_token_around_image>",
        "<global-img>",
        "<image>",
        "<row_1_col_1>",
        "<row_1_col_2>",
        "<row_2_col_1>",
        "<row_2_col_2>",
    ),
    names=(
        ("fake_image_token", "<fake_token_around_image>"),
        ("global_image_token", "<global-img>"),
        ("image_token", "<image>"),
        ("end_of_utterance_token", "<end_of_utterance>"),
    ),
)
GEMMA3 = TextSide(
    template=_GEMMA,
    eos=("<eos>", "<end_of_turn>"),
    pad="<pad>",
    bos="<bos>",
    head=("<pad>", "<eos>", "<bos>", "<unk>"),
    tail=(
        "<start_of_turn>",
        "<end_of_turn>",
        "<start_of_image>",
        "<end_of_image>",
        "<image_soft_token>",
    ),
    names=(
        ("boi_token", "<start_of_image>"),
        ("eoi_token", "<end_of_image>"),
        ("image_token", "<image_soft_token>"),
    ),
)
GEMMA4 = TextSide(
    template=_GEMMA4,
    eos=("<eos>", "<turn|>"),
    pad="<pad>",
    bos="<bos>",
    head=("<pad>", "<eos>", "<bos>", "<unk>"),
    tail=("<|turn>", "<turn|>", "<|image>", "<image|>", "<|image|>", "<|video|>", "<|audio|>"),
    names=(
        ("boi_token", "<|image>"),
        ("eoi_token", "<image|>"),
        ("image_token", "<|image|>"),
    ),
)
LLAMA = TextSide(
    template=_LLAMA,
    eos=("<|eot_id|>", "<|end_of_text|>"),
    pad="<|end_of_text|>",
    bos="<|begin_of_text|>",
    tail=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ),
)


def train(side: TextSide) -> Tokenizer:
    """A byte-level BPE of about 500 tokens. A tokenizer with a BOS adds it by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(side.head) + BYTES + MERGES,
        special_tokens=list(side.head),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens(list(side.tail))
    tokenizer.add_tokens(list(side.plain_tail))
    if side.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{side.bos} $A",
            pair=f"{side.bos} $A {side.bos} $B",
            special_tokens=[(side.bos, tokenizer.token_to_id(side.bos))],
        )
    return tokenizer


def write(side: TextSide, path: Path) -> Tokenizer:
    """Writes tokenizer.json, tokenizer_config.json and chat_template.jinja into `path`."""
    tokenizer = train(side)
    tokenizer.save(str(path / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": side.bos,
        "eos_token": side.eos[0],
        "pad_token": side.pad,
        "additional_special_tokens": list(side.tail),
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        **dict(side.names),
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
    (path / "chat_template.jinja").write_text(side.template)
    return tokenizer
