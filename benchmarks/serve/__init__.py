"""`python -m benchmarks.serve`: load an OpenAI-compatible server and measure what its users see.

options   the command line, named as that of `vllm bench serve`
args      the command line checked and resolved into one `Settings`
server    a session to the server, and which model it has
tokens    how many tokens a text has, and random texts of a wanted length
datasets  what is asked: random, random-mm, demo, sharegpt, custom
sse       server-sent events from bytes that arrive in any pieces
client    one request, timed at the arrival of each chunk
runner    all requests: readiness, warm-up, when each is sent, concurrency limit, progress
metrics   TTFT, TPOT, ITL, E2EL, throughput, goodput, accuracy
report    the result table, the failures, the result JSON
"""
