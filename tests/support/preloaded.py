"""Imported by the server that services are forked from, once for all of them: what they would
import while they run. Nothing here may start a thread or open a connection: forks copy neither."""

import gc

import transformers
from transformers.models.auto import modeling_auto

for _name in (
    "Gemma3ForConditionalGeneration",
    "LlamaForCausalLM",
    "LlavaOnevisionForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "AutoImageProcessor",
    "AutoTokenizer",
):
    getattr(transformers, _name)
assert modeling_auto
gc.freeze()  # what is there already is not looked at by the children's collectors, nor copied
