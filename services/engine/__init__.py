"""The engine: requests in, tokens and embeddings out, one step at a time. No HTTP.

scheduling  which requests run in the next step
model       transformers models by their parts
attention   attention over the paged KV cache
sampling    logits to tokens
drafting    tokens guessed ahead
transfers   KV that crosses engines

config       what an engine is told; environment: the variables that its process starts with
hardware     what it takes of its machine; kv_memory: how many KV blocks fit, and tiers below them
loaded_model a language model, compiled and recorded; parts: it with its cores, and the vision part
assembly     all of it, built in order and released in reverse
engine       its steps, and the requests that they serve; containment: steps that raise
reports      its figures; pulse: how its steps come on
process      an engine as a process of its own
"""

import logging

# On a CPU torchao, which transformers imports where it is installed, tells of each library for GPUs
# that it cannot load, and PyTorch of how torchao uses it.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
