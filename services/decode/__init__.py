"""Decode workers: KV blocks in, the rest of the tokens out; without KV they prefill too."""
