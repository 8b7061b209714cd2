"""HTTP pieces that proxy, workers and master share: errors as answers, streams, a server's life.

openai      the OpenAI routes, before a pipeline or an engine alike
anthropic   Anthropic's Messages API
responses   OpenAI's Responses API; response_store: what it goes on from
tokens      the model and its tokenizer
counting    requests counted in and out
callers     what a request's headers say of who asks
deadline    until when a request may take
access      who may ask for what: the fleet's key, clients' keys
browsers    what web pages may ask for
errors      any error of the tree as an OpenAI error answer
streams     answers that notice when the client leaves or does not read
listener    a client connection, bounded in what its client can take time over
accepting   connections taken while there is room for them
open_files  how many there may be
joined      an answer's head and body as one write
tasks       how tasks are ended
pace        how fast a queue moves
lame_duck   how a server ends
server      bind first, then serve until told to stop
histogram   a histogram that costs little to observe
background  loops that an error does not end
"""
