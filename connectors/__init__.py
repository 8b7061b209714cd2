"""Connectors move embeddings (EC) and KV blocks between engines. They know no model and no HTTP.

base          what engines ask of an EC connector, kv.base of a KV one
config        which connector a worker uses
factory       builds it
ec, kv        the connectors
transports    bytes from a peer's memory into ours
side_server   messages between engines, over sockets that are bounded (side_socket);
side_client   the other end
messages      what they say
peers         handshakes
owners        folders that instances share: private to this user, and which instances live
leases        who holds what until when
"""
