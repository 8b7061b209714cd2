"""HTTP to workers: kept connections, deadlines, server-sent events."""
