"""HTTP pieces that proxy, workers and master share: errors as answers, streams, a server's life.

openai   the OpenAI routes, before a pipeline or an engine alike
errors   any error of the tree as an OpenAI error answer
streams  answers that notice when the client leaves
server   bind first, then serve until told to stop
"""
