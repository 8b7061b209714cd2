"""`python -m benchmarks.simulate`: the master's placement policies side by side, on virtual time.

clock           calls in order of their time
profile         speed, caches and delays of the simulated workers; calibrated.json is measured
processes       real workers as processes, and their processor time
probes          the grids over which they are timed
calibrate       fits the timing model to that
prompts         requests: lengths, block keys, pictures
traces          chat, multi-turn, pictures, documents, bursts
mooncake        Mooncake's public format
fleet           mock engines on one clock, and what they say to each other
worker          one of them, whose requests are lengths and block keys
virtual_master  the real master, told of everything as late as over a network
simulation      one trace through one fleet
metrics         what a run was worth
contenders      policies, their published options, the grids to tune over
cases           which trace goes to which fleet
study           sustained load, tuning, all policies on a trace
report          Markdown, rows, pictures
"""
