"""Who holds which KV block and which embedding."""
