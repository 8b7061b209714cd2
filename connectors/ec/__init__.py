"""Encoder-cache connectors: `local` (one process), `files` (shm and shared storage)."""
