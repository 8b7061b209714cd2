"""Which requests run in the next step. No model, no torch, no clock of its own.

seams             what is given from outside: clock, runner, vision, meter
request           one choice of one request
chunks            what a step computes of it
limits            how much runs at once
block_manager     who owns which KV block, and which hold a known prefix
embedding_cache   embeddings that requests need, here or on their way
scheduler         queues; the chunks of the next step
admission_checks  what a request must be like
deadlines         when requests must have ended
live_requests     those that have not
sibling_choices   choices that share a prompt
endings           where an answer ends
generate_core     all of it, for tokens
image_prefetch    pictures prepared ahead of the vision model
run_bound         how many of them a run takes
encode_jobs       pictures, and the requests that wait for each
encode_queue      all of it, for pictures
seen_before       which of them were encoded before
request_times     how long requests are in each stage, and how long they are
stage_times       when the stages of traced requests begin and end
rates             what an engine measures of itself
"""
