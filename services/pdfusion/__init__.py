"""One worker that does it all: encode, prefill and decode in one engine."""
