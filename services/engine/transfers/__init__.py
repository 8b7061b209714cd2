"""KV that crosses engines: offered after prefill, fetched before decode."""
