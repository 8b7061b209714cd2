"""Attention over the paged KV cache: PyTorch on a CPU, Triton kernels on a GPU."""
