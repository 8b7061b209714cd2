"""Placement policies behind one interface.

base          the interface, and choosing the least with ties drawn by lot
cost          ours: predicted milliseconds, media and prefixes alike (default)
kv            Dynamo's formula
rtp           RTP-LLM's choices
cache_aware   SGLang's gateway
least_loaded  fewest requests
round_robin   one after the other
random_choice any
factory       by name, or a class of the user's own by module path
"""
