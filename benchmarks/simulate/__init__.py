"""`python -m benchmarks.simulate`: the master's placement policies side by side, on virtual time.

clock           calls in order of their time
profile         speed, caches and delays of the simulated workers; calibrated.json is measured
hardware        profiles of GPU workers, reckoned from data sheets
processes       real workers as processes, and their processor time
probes          the grids over which they are timed
calibrate       fits the timing model to that
prompts         requests and sessions: lengths, block keys, pictures
traces          workloads of ours: chat, multi-turn, pictures, documents, bursts, agents
public_traces   Mooncake's, Azure's and BurstGPT's formats
arrivals        sessions in an open loop, their turns one after the other
fleet           mock engines on one clock, and what they say to each other
worker          one of them, whose requests are lengths and block keys
virtual_master  the real master, told of everything as late as over a network
records         what a run is given and what comes of it; what a request must keep
simulation      one workload through one fleet
run_length      how long a run lasts
metrics         what a run was worth
memo            runs kept in a folder
cases           which workload goes to which fleets
contenders      policies, their published options, the ranges to tune over
bench           the load that a policy sustains, the fleet that suits it
tuning          the options that suit each policy
study           all policies on a workload; study_results
elastic         workers of the role any beside fixed splits, over a day (a command of its own)
stale           the master's view lags behind (likewise)
large           1,250 workers (likewise)
report          Markdown, rows, pictures
"""
