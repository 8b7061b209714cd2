"""Our proxy, encoder and workers together with real vLLM, on a CPU: `scripts/test-interop.sh`.

model       the model that all share, and the same one with a vision tower that sees nothing
vllm        vLLM workers as processes, with their metrics and logs
cases       requests, and what makes two answers the same
shared      workers that are up, and what every part of a run shares
topologies  the fleets, and what is asserted of each
features    workers with clips, sound, several processes, guessed tokens, adapters, INT8 weights
load        `vllm bench serve`
table       results as they are printed
"""
