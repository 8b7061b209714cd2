"""Which requests run in the next step. No model, no torch, no clock of its own.

seams             what is given from outside: clock, runner, vision, meter
request           one choice of one request
chunks            what a step computes of it
limits            how much runs at once
block_manager     who owns which KV block, and which hold a known prefix
embedding_cache   embeddings that requests need, here or on their way
scheduler         queues; the chunks of the next step
admission_checks  what a request must be like
live_requests     requests that have not ended, and when they must have
awaited_items     how far a prompt goes with the embeddings that are there
choices           choices that share a prompt, what each puts out, and where its answer ends
generate_core     all of it, for tokens
image_prefetch    pictures prepared ahead of the vision model
decode_delay      how long pictures and prompts may hold up requests that decode
encode_jobs       pictures, and the requests that wait for each
encode_queue      all of it, for pictures
encode_run        the run under way, and what it has made until the store has room
request_times     how long requests are in each stage, and how long they are
rates             what an engine measures of itself
"""
