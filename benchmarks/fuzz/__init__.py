"""Mutated requests to every route of proxy, master and workers."""
