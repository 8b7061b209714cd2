"""KV connectors.

base      what engines ask of one
local     one process, no peers
pull      over a transport that reads a peer's memory
producer  what is offered, to which request, until when
consumer  all fetches under way
fetch     one of them
copies    its blocks on their way
"""
