"""The engine: requests in, tokens and embeddings out, one step at a time. No HTTP.

scheduling  which requests run in the next step
model       transformers models by their parts
attention   attention over the paged KV cache
sampling    logits to tokens
transfers   KV that crosses engines
"""
