"""Requests that nobody means, on every route of proxy, master and workers."""
