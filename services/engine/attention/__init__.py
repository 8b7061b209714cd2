"""Attention over the paged KV cache: on a CPU kernels that Numba compiles, or PyTorch, on a GPU
Triton kernels."""
