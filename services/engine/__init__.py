"""The engine: requests in, tokens and embeddings out, one step at a time. No HTTP.

scheduling  which requests run in the next step
model       transformers models by their parts
attention   attention over the paged KV cache
sampling    logits to tokens
transfers   KV that crosses engines

engine      all of it, of the parts that a model has (parts), on one machine (hardware)
process     an engine as a process of its own
"""
