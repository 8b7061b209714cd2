"""Relayed streams that break, resumed on another worker."""
