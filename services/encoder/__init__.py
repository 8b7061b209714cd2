"""Encode workers: pictures in, embeddings out."""
