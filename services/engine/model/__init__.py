"""transformers models by their parts, and the runner that steps them."""
