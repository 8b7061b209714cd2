"""Clients that others have written, run against a stack of ours."""
