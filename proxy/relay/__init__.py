"""The `openai` dialect: requests relayed as they are to workers that speak vLLM's EPD protocol.

relay       requests taken, timed and answered, errors included
stages      one request through encode, prefill and decode
encoding    its media items to encoders, each once
attempts    which worker is next, what its failure means, when to try again
rewriting   what each stage is asked: the client's body with handles, without media bytes
job         what has been achieved for a request
exact       which streams could be resumed without a trace
tap         what it takes to resume one, noted as it passes
progress    what its client has had, and how its chunks look
resuming    one that has broken, completed by another worker
continuing  that worker's stream as the rest of the first one
stubs       large data URLs kept aside: never decoded, never copied
answers     what workers answer, checked before a byte of it reaches a client
lanes       the kept connections to each worker, and whether it may be asked
connection  one of them, and what can come of asking there
exchange    one request and its answer on a connection
events      a stream cut between events, never inside one
edge        the client's side of the hot path, on the listener that FastAPI shares
seam        what the edge needs of whatever answers
reading     a request's bytes into path, headers and body
call        a request as it has been read
reply       one answer on its way to a client
heads       HTTP/1.1 heads as bytes
serving     a uvicorn server whose connections begin at the edge
passing     management routes of a proxy that has no model of its own
"""
