"""Imported by processes that services and tests are forked from, once for all of them: what they
would import or build while they run. Nothing here may start a thread or open a connection: forks
copy neither."""

import encodings.idna
import gc
import importlib

import PIL.Image
import torch
import transformers
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto

from services.engine.attention.cpu_prompts import prompt_kernels
from services.engine.attention.cpu_softmax import causal_softmax
from services.engine.environment import ensure_writable
from services.engine.model.cpu_linear import computes_linear
from services.engine.model.fused_layers import ops_for
from services.engine.model.picture_patches import patch_cutter

_MODULES = (
    "fastapi.telemetry._runtime",
    "pydantic.v1",
    "services.engine.attention.cpu_decode_kernel",
    "services.worker.encode",
    "services.worker.generate",
    "services.worker.roles",
    "uvicorn.lifespan.on",
)
for _name in _MODULES:
    importlib.import_module(_name)
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
assert encodings.idna
PIL.Image.init()  # imports the readers of all formats
# Numba and the kernels that it has compiled are loaded by an engine for two seconds. With one
# thread OpenMP starts none here.
ensure_writable()
_threads = torch.get_num_threads()
torch.set_num_threads(1)
for _load in (computes_linear, prompt_kernels, causal_softmax, patch_cutter):
    _load()
ops_for("cpu", torch.bfloat16)
torch.set_num_threads(_threads)
get_checkpoint_conversion_mapping("")  # compiles a thousand patterns, which every load looks at
gc.freeze()  # what is there already is not looked at by the children's collectors, nor copied
