"""HTTP pieces that proxy, workers and master share: errors as answers, streams, a server's life.

Routes:
openai          the OpenAI routes, before a pipeline or an engine alike
anthropic       Anthropic's Messages API
responses       OpenAI's Responses API; response_store: what it goes on from
pooling         vectors, scores and classes; pooled: from body to vectors; pooling_forms: answers
tokens          the models and their tokenizers
rtp_frontend    RTP-LLM's frontend; rtp_raw: raw prompts; rtp_operations: health checks and updates
admin           what the admin key allows to change
api_docs        /docs and /openapi.json; api_bodies: its bodies; api_routes: those of all servers

Of a request:
callers         what its headers say of who asks
access          who may ask for what: the fleet's key, clients' keys
browsers        what web pages may ask for
long_texts      what is made of a long text in a thread, few at once
bodies          counted in and out; the bytes of all bodies together bounded
records         its id, which every answer says, and what is noted of it; tracing: the same as
                OpenTelemetry's spans
errors          any error of the tree as an error answer
streams         until when it may take; answers that notice when the client leaves or does not read
prompt_streams  one stream of the answers to several prompts

Of a server:
server          bind first, then serve until told to stop
lame_duck       how a server ends
accepting       connections taken while there is room for them
open_files      how many files there may be
listener        a client connection, bounded in what its client can take time over
client_bounds   these bounds
turns           when requests begin, and large bodies are read
raw_writes      what is written beside uvicorn, and clients that do not take it
tasks           how tasks are ended; work done at once; loops that an error does not end
metrics         a histogram that costs little to observe; what a process says of itself
vllm_aliases    metrics under vLLM's names
"""
