"""`python -m benchmarks.bench_engine`: our engine beside vLLM's for CPUs and transformers.

contenders     what is measured, started and ended
loads          what is asked, and the figures of it
mixed          text streams while pictures arrive: the gaps between their tokens
transformers_peer   `generate` and continuous batching of transformers, a program of its own
"""
