"""Connectors move embeddings (EC) and KV blocks between engines. They know no model and no HTTP."""
