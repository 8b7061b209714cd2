"""What all workers share: configuration, engine client, routes; and what each role has of it.

config         flags, environment and file → one frozen configuration; engine_options: a part of it
engine_link    the engine process: started, talked to, its death noticed
engine_client  what a worker asks of it
open_requests  requests that wait for outputs of it; queries: questions that wait for an answer
app            routes that every worker has, and the application around a role's own routes
generate       /inference/v1/generate: token-in token-out
encode         /inference/v1/encode: pictures in, handles out
chat           /v1/chat/completions and /v1/completions, with vLLM's EPD handshake
metrics        what /metrics shows
rtp_status     /worker_status and /cache_status, RTP-LLM's
member         what masters are told: registration, load
worker         a role, and a worker of it: its engine and the requests it has taken
roles          which parts of the engine, transports and routes each role has
main           start a worker of one role and serve until told to stop
"""
