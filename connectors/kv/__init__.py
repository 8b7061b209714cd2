"""KV connectors: `local` (one process, no peers), `shm` (peers on the same host)."""
