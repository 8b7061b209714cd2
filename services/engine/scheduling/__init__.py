"""Which requests run in the next step: queues, KV blocks, embeddings, chunks. No model."""
