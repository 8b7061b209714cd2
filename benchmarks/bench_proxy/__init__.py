"""The relay beside vllm-router, the tokens dialect beside rendering twice."""
