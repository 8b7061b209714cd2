"""KV blocks that the pool has no room for: kept in host memory and in files until they are needed.

`base` is what the scheduling core asks of a store; it needs no torch.
"""
