"""A worker as the master and other routers see it, whether it has a model or not. No torch.

events        what its caches gain and lose, as cache events
config        --kv-events-config and the addresses that others reach it by
publisher     those events over ZMQ, with replay and snapshot
tasks         what runs and what has ended
rtp_status    those and its prefix cache, as RTP-LLM's master asks for them
registration  it is there, how busy it is, when it leaves
"""
