"""Who holds which cache, who is busy, and where a request goes.

Without sockets and without a clock, so that a simulation drives the same code:
config      what the master is told
holders     key → set of workers; longest prefix over all of them at once
sources     what the event sources of one worker hold
expected    prefixes that a worker is about to hold
predicted   what a cache without events is thought to hold
foreign     other engines' blocks under our names
columns     what is known of workers, an array for each figure
pool        the load of all workers of a kind
fleet       workers, indices and pending encodes of one model
claims      what workers may not claim
registry    leases, drain, circuit breakers
roster      who has come, changed and left since when
ledger      what placed requests hold until they end
view        one stage of one request, priced on every worker
media       where the embeddings of pictures come from
choice      a worker chosen for a stage
placement   one request onto the workers of its model
explain     the numbers behind a choice
admission   requests that wait because all are busy
sequence    order of event messages
follower    one event source: gaps, replays, restarts
policies    who is chosen
master      all of it
placed      what a placed request holds, told to other masters
peers       other masters and what they have placed
exchange    what masters of one fleet tell one another

Around it:
peer_messages  structs between masters
redis_io    a Redis without retries
turns       sockets read for a bounded time in each turn of the loop
subscriber  ZMQ sockets to event sources
probing     questions to workers
prober      workers that cannot register
shared      the exchange over a Redis
orphans     workers whose own master is silent
metrics     what /metrics shows
collector   Python's garbage collector, calmed
service     the master on a real clock
calls       /register, /heartbeat, /schedule, ...
rtp         RTP-LLM's contract
app         the HTTP application
"""
