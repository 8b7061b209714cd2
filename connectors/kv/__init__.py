"""KV connectors.

local     one process, no peers
pull      over a transport that reads a peer's memory
producer  what is offered, to whom, until when
consumer  fetches under way
"""
