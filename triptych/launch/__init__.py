"""A whole stack on one machine: what to start (`plan`, `vllm`), starting it (`processes`), the
command (`serve`)."""
