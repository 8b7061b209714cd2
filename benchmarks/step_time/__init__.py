"""Time of an engine's step against its batch, the context and the requests that wait."""
