"""Workers without a model: the real workers' HTTP API before a timing model and simulated caches.

config       flags, environment and file → one frozen configuration
timing       how long a step, an encoder run and a transfer take
tokens       which token stands where
settings     what an engine is, apart from its timing
kv_blocks    KV blocks counted, known prefixes by block key, LRU
embeddings   embeddings counted in bytes, LRU
request      one request and its choices inside the engine
scheduler    continuous batching: who runs in the next step
offers       KV held for other workers, under leases
loads        KV and embeddings on their way from other workers
media        embeddings on their way, or made on the spot
encoding     the encode queue
events       what the caches gain and lose
checks       what is refused
answers      tokens of a choice, cut where it ends
generation   requests admitted, run, answered, handed over
deadlines    when requests must have ended
engine       all of it, on virtual time: no clock, no asyncio
reports      load, gauges, counters
virtual      many engines on one virtual clock
driver       an engine on an event loop's clock
peers        HTTP to other mock workers
faults       what goes wrong, when, how often
instance     one worker: engine, identity, faults
answering    one HTTP answer, on which a fault may fall
tokens_api   token-in token-out routes, and what mock workers ask each other
openai_api   chat, completions and models, with vLLM's EPD handshake
chat         OpenAI requests as tokens
speaking     tokens as OpenAI answers
status_api   health, load, caches, faults
rtp_api      /worker_status and /cache_status, RTP-LLM's
publisher    cache events over ZMQ
registration told to the master, again and again
server       a socket and its routes
main         start, say where, serve until told to stop
"""
