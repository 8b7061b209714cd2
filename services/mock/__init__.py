"""Workers without a model: the real engine's scheduling core before a timing model, with faults.

config       flags, environment and file → one frozen configuration
settings     what an engine is, apart from its timing
timing       how long a step, an encoder run and a transfer take; calls that are due then
tokens       which token stands where
batches      how long steps take
runner       what stands for the model: tokens, pictures, rates
actions      what an engine has done, and what it wants said to others
kv           a KV connector that counts (kv_offers under leases, kv_loads), tiers that hold nothing
ec           an EC connector that counts: a store, loads
timed_steps  steps of the engine's cores that begin and end at some time
engine       the engine's cores before these, on any clock
driver       an engine on an event loop's clock; waiting: who waits for it
peers        HTTP to other mock workers
faults       what goes wrong, when, how often
instance     one worker: engine, identity, faults
metrics      its figures as text
answering    one HTTP answer, on which a fault may fall
tokens_api   token-in token-out routes, and what mock workers ask each other
openai_api   chat, completions and models, with vLLM's EPD handshake
chat         OpenAI requests as tokens
speaking     tokens as OpenAI answers
status_api   health, load, caches, faults; /worker_status and /cache_status, RTP-LLM's
publisher    cache events over ZMQ
registration told to the master, again and again
server       a socket and its routes
main         start, say where, serve until told to stop

The HTTP side is its own, as it has to answer wrongly on demand, and faster than what it tests.
"""
