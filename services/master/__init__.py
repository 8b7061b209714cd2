"""Who holds which cache, who is busy, and where a request goes.

`index`, `fleet`, `placement` and `master` have no sockets and no clock, so that a simulation drives
the same code; `events`, `replication` and `api` are around them.
"""
