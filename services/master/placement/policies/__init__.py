"""Placement policies behind one interface.

base          the interface, and choosing the least with ties drawn by lot
cost          ours: predicted milliseconds, media and prefixes alike (default)
kv            Dynamo's formula
rtp           RTP-LLM's choices
cache_aware   SGLang's gateway, and SMG, which it has become
simple        one after the other, any, fewest requests
factory       by name, or a class of the user's own by module path
"""
